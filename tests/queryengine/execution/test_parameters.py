from decimal import Decimal
from typing import Any

import duckdb
import pytest

from queryengine.errors import ParameterError
from queryengine.execution.parameters import MAX_DEPTH, MAX_PARAMETERS, bind, nulls
from tests.corpus import each


@each(
    ("taken", "given", "bound"),
    [
        pytest.param((), None, None, id="none"),
        pytest.param((), [], None, id="empty list"),
        pytest.param((), {}, None, id="empty mapping"),
        pytest.param(("1",), [5], [5], id="one"),
        pytest.param(("1", "2"), (5, None), [5, None], id="tuple"),
        pytest.param(("a",), {"a": 1}, {"a": 1}, id="name"),
        pytest.param(("A",), {"a": 1}, {"a": 1}, id="name in another case"),
        pytest.param(("a", "A"), {"A": 1}, {"a": 1}, id="one name in two cases"),
        pytest.param(("1",), {"1": 5}, {"1": 5}, id="number as a name"),
    ],
)
def test_values_that_fit(taken: tuple[str, ...], given: Any, bound: Any) -> None:
    assert bind(taken, given) == bound


@each(
    ("taken", "given", "message"),
    [
        pytest.param(("1",), None, "takes 1 parameter, and 0 are given", id="S29 none"),
        pytest.param(("1", "2"), [1], "takes 2 parameters, and 1 is given", id="S29 too few"),
        pytest.param((), [1], "takes 0 parameters, and 1 is given", id="S29 unasked"),
        pytest.param(("2",), [2], r"uses \$2 but not \$1: number the parameters without gaps", id="S29 no first"),
        pytest.param(("1", "3"), [1, 2, 3], r"uses \$3 but not \$2: number", id="S29 a gap in the numbers"),
        pytest.param(
            ("a", "b"),
            [1, 2],
            r"uses named parameters \(\$a, \$b\): send the values as an object",
            id="S29 list for names",
        ),
        pytest.param(("a", "b"), {"a": 1}, r"takes \$b, and no value", id="S29 missing name"),
        pytest.param(("a",), {}, r"takes \$a, and no value", id="S29 no names"),
        pytest.param(("1", "2"), {}, r"takes \$1, \$2, and no value", id="S29 no numbers as names"),
        pytest.param(("a",), {"a": 1, "b": 2}, r"has no parameter \$b", id="S29 extra name"),
        pytest.param((), {"b": 2}, r"has no parameter \$b", id="S29 name unasked"),
        pytest.param(("a",), {"a": 1, "A": 2}, "set twice", id="S29 name twice"),
        pytest.param((), {"x" * 1000: 2}, r"no parameter \$x{40}\.", id="S29 long name"),
        pytest.param((), [0] * (MAX_PARAMETERS + 1), "10,000 parameters at most, but 10,001", id="S29 too many"),
        pytest.param(
            (), dict.fromkeys(range(MAX_PARAMETERS + 1)), "10,000 parameters at most", id="S29 too many names"
        ),
    ],
)
def test_values_that_do_not_fit(taken: tuple[str, ...], given: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        bind(taken, given)


DIGITS = "123456789" * 5


@each(
    ("text", "kind"),
    [
        (DIGITS[:38], "DECIMAL(38,0)"),
        ("-1." + DIGITS[:37], "DECIMAL(38,37)"),
        ("0." + DIGITS[:38], "DECIMAL(38,38)"),
        ("1E-37", "DECIMAL(38,37)"),
        ("1E+37", "DECIMAL(38,0)"),
        *((text, None) for text in (DIGITS[:39], "1." + DIGITS[:38], "1E-38", "1E+38")),
    ],
)
def test_a_decimal_is_exact_or_refused(text: str, kind: str | None) -> None:
    value = Decimal(text)
    if kind is None:
        for given in ([value], {"1": [{"a": value}]}):
            with pytest.raises(ParameterError, match=r"\$1 contains a decimal with more than 38 digits"):
                bind(("1",), given)
    else:
        assert duckdb.connect().execute("SELECT $1, typeof($1)", bind(("1",), [value])).fetchone() == (value, kind)


def nested(depth: int, *, mapping: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if mapping else [value]
    return value


@pytest.mark.parametrize("mapping", [False, True])
def test_s29_values_may_be_nested_up_to_a_depth(mapping: bool) -> None:
    deep, deeper = nested(MAX_DEPTH - 1, mapping=mapping), nested(100_000, mapping=mapping)

    assert bind(("1",), [deep]) == [deep]
    with pytest.raises(ParameterError, match="more than 64 levels"):
        bind(("1",), [deeper])
    with pytest.raises(ParameterError, match="more than 64 levels"):
        bind(("a",), {"a": deeper})


def test_values_for_a_description_are_bounded() -> None:
    assert nulls({"2"}) == [None, None]
    assert nulls({"b", "a"}) == {"a": None, "b": None}
    with pytest.raises(ParameterError, match=r"10,000 parameters at most, but this one uses \$4000000000"):
        nulls({"4000000000"})


@each(
    ("value", "message"),
    [
        ([1, "a"], "different types"),
        ([True, 1], "different types"),
        ([None, 1, [2]], "different types"),
        ([[1], ["x"]], "different types"),
        ([{"a": [1]}, {"b": 2}, {"a": ["x"]}], "different types"),
        ({"a": {"b": [{}, 1]}}, "different types"),
        ([1.5, 2**53 + 1], "would be rounded"),
        ([2**128 - 1, 2**64], "would be rounded"),
        ([[2**127], [None, -(2**63) - 1]], "would be rounded"),
        ([{"a": 2**100 + 1}, {"a": 0.5}], "would be rounded"),
        ([1.5, 2**53, -(2**80), None], None),
        ([2**53 + 1, 1, -(2**100)], None),
        ([2**128 - 1, 2**64 - 1, 2**127], None),
        ([Decimal("1.5"), 2], None),
        ([{"a": 1, "b": "x"}, {"a": None}, None, {"b": "y"}], None),
        ([[], [1], [None]], None),
    ],
)
def test_no_value_of_a_list_is_changed_to_the_type_of_another(value: Any, message: str | None) -> None:
    if message is None:
        ((bound,),) = duckdb.execute("SELECT ?", bind(("1",), [value])).fetchall()
        missing = [{"a": None, "b": None} | one if isinstance(one, dict) else one for one in value]
        assert bound == missing
    else:
        with pytest.raises(ParameterError, match=message):
            bind(("1",), [value])
