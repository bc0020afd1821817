import io
import json

import pytest

from sqlapi.errors import InvalidJsonError
from sqlapi.refresh_request import RefreshRequest, read_refresh_request

WRONG_TYPES: list[object] = [1, True, [], {}]
FIELDS = ("refresh_sql", "refresh_mode", "refresh_jitter_max")


def read(body: str) -> RefreshRequest:
    data = body.encode()
    return read_refresh_request({"wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}, 1000)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", RefreshRequest()),
        (" \n", RefreshRequest()),
        ("{}", RefreshRequest()),
        ('{"refresh_sql": null, "refresh_mode": null, "refresh_jitter_max": null}', RefreshRequest()),
        ('{"refresh_sql": "FROM a"}', RefreshRequest("FROM a")),
        ('{"refresh_mode": "append"}', RefreshRequest(None, "append")),
        ('{"refresh_mode": "full", "refresh_jitter_max": "1.5m"}', RefreshRequest(None, "full", 90.0)),
        ('{"refresh_jitter_max": "0s"}', RefreshRequest()),
    ],
)
def test_valid_bodies(body: str, expected: RefreshRequest) -> None:
    assert read(body) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("refresh_sql", "refresh_mode", "refresh_jitter_max") for value in WRONG_TYPES),
        *(("refresh_mode", value) for value in ("changes", "Full", "")),
        *(("refresh_jitter_max", value) for value in ("", "10", "-1s", "1 week", "366d")),
    ],
)
def test_a_wrong_type_or_value_names_the_field(field: str, value: object) -> None:
    with pytest.raises(InvalidJsonError, match=f'^"{field}" must be .* null'):
        read(json.dumps({field: value}))


def test_an_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(InvalidJsonError, match='"refresh_sql", "refresh_mode" and "refresh_jitter_max"'):
        read('{"refresh_data_window": "1d"}')
