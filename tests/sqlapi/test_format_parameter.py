"""`?format=`, which every route that needs a key accepts or refuses."""

from __future__ import annotations

import pytest

from tests.sqlapi.harness import WITH_KEY, call

SQL = "/v1/sql"
REFRESH = "/v1/datasets/orders/acceleration/refresh"

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize(
    ("query", "content_type", "body"),
    [
        ("format=csv", "text/csv; charset=utf-8", b"a\n1\n"),
        ("format=json", "application/json", b'[{"a":1}]'),
        ("other=1", "application/vnd.apache.arrow.stream", None),
    ],
)
def test_the_parameter_overrides_accept(query: str, content_type: str, body: bytes | None) -> None:
    accept = ("Accept", "application/vnd.apache.arrow.stream")

    answer = call("POST", f"{SQL}?{query}", WITH_KEY, accept, body=b"SELECT 1 AS a")

    assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
    assert body in {answer.body, None}


@pytest.mark.parametrize("query", ["format=xml", "format=", "format=csv&format=json", "format=CSV"])
def test_a_statement_with_an_unknown_format_is_not_run(query: str) -> None:
    assert call("POST", f"{SQL}?{query}", WITH_KEY, body=b"SELEC").code == "invalid_parameter"


def test_lists_are_available_as_csv() -> None:
    assert call("GET", "/v1/catalogs?format=csv", WITH_KEY).body == b"from,name\nruntime,runtime\n"
    runs = call("GET", f"{REFRESH}?format=csv", WITH_KEY)
    assert runs.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert runs.body.startswith(b"id,status,requested_at,started_at,finished_at,rows,duration_ms,error,unchanged,")


@pytest.mark.parametrize("path", [REFRESH, "/v1/sql/abc/cancel"])
def test_actions_refuse_csv_and_do_nothing(path: str) -> None:
    before = call("GET", REFRESH, WITH_KEY).json()

    assert call("POST", f"{path}?format=csv", WITH_KEY).code == "invalid_parameter"

    assert len(call("GET", REFRESH, WITH_KEY).json()) == len(before)
