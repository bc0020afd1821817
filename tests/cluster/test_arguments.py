import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from cluster.arguments import arguments
from queryengine.errors import ParameterError

PLUS_TWO = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "field", "content"),
    [
        (True, "boolean", True),
        (-(2**31), "integer", -(2**31)),
        (2**31, "long", 2**31),
        (1.5, "double", 1.5),
        ("a'b", "string", "a'b"),
        (b"\x00", "binary", b"\x00"),
        (dt.date(1969, 12, 31), "date", -1),
        (dt.datetime(1970, 1, 1, 0, 0, 1), "timestamp_ntz", 1_000_000),  # noqa: DTZ001
        (dt.datetime(1970, 1, 1, 2, 0, 1, tzinfo=PLUS_TWO), "timestamp", 1_000_000),
    ],
)
def test_a_value_is_a_literal(value: Any, field: str, content: Any) -> None:
    literal = arguments([value])["_1"].literal

    assert literal.WhichOneof("literal_type") == field
    assert getattr(literal, field) == content


@pytest.mark.parametrize(
    ("value", "text", "precision", "scale"),
    [
        (2**64, "18446744073709551616", 20, 0),
        (Decimal("1.50"), "1.50", 3, 2),
        (Decimal("0.001"), "0.001", 3, 3),
        (Decimal("1E+3"), "1000", 4, 0),
    ],
)
def test_a_decimal_has_its_digits(value: Any, text: str, precision: int, scale: int) -> None:
    decimal = arguments({"a": value})["_a"].literal.decimal

    assert (decimal.value, decimal.precision, decimal.scale) == (text, precision, scale)


def test_null_and_nothing() -> None:
    assert arguments([None])["_1"].literal.HasField("null")
    assert arguments(None) == {}


@pytest.mark.parametrize("value", [[1], {"a": 1}, Decimal("NaN"), 10**38, Decimal("1E-39")])
def test_what_a_cluster_does_not_take_is_refused(value: Any) -> None:
    with pytest.raises(ParameterError):
        arguments([value])
