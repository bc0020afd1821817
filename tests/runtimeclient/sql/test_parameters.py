import pytest

from runtimeclient.errors import UsageError
from runtimeclient.http.results import JsonValue, Number, as_json
from runtimeclient.sql.statements import parameter_names, parameters_of, parse_parameters
from tests.corpus import each


@each(
    ("argument", "json"),
    [
        ("a=1", "1"),
        ("a=-1.50", "-1.50"),
        ("a=2e3", "2e3"),
        ("a=12345678901234567890.1234567890", "12345678901234567890.1234567890"),
        ("a=007", '"007"'),
        ("a=1.", '"1."'),
        ("a=+1", '"+1"'),
        ("a=NaN", '"NaN"'),
        ("a=true", "true"),
        ("a=null", "null"),
        ("a=True", '"True"'),
        ("a=", '""'),
        ("a=x=y", '"x=y"'),
        ("$a=it's", '"it\'s"'),
        ('a:="1"', '"1"'),
        ("a:=[1,2.50,null]", "[1,2.50,null]"),
        ('a:= {"b":"é"} ', '{"b":"é"}'),
    ],
)
def test_a_plain_value_has_a_guessed_type_and_json_an_exact_one(argument: str, json: str) -> None:
    assert as_json(parse_parameters([argument])["a"]) == json


@each(
    ("arguments", "said"),
    [
        (["a"], "NAME=VALUE"),
        (["=1"], "NAME=VALUE"),
        ([":=1"], "NAME=VALUE"),
        (["a=1", "a=2"], "a is given twice"),
        (["a:=x"], "a is not JSON"),
        (["a:=1 2"], "a is not JSON"),
        (["a:="], "a is not JSON"),
        (["a:=NaN"], "a is not JSON"),
        (["a:=" + "[" * 100_000], "a is not JSON"),
    ],
)
def test_an_invalid_parameter_is_a_usage_error(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_parameters(arguments)


@each(
    ("statement", "names"),
    [
        ("SELECT 1", set()),
        ("SELECT $a, $b_2, $A", {"a", "b_2", "A"}),
        ("SELECT ?, ?", {"1", "2"}),
        ("SELECT $2 + $1", {"1", "2"}),
        ("SELECT '$a', \"$b\", $$ $c $$, $t$ ? $t$ -- $d\n, /* ? */ $e", {"e"}),
        ("SELECT x$y, e'\\'$a', $é", {"é"}),
        ("SELECT :a + :b_2, (:C), [:d], x LIKE :e, -:f, :é", {"a", "b_2", "C", "d", "e", "f", "é"}),
        ("SELECT ':a', \":b\", /* :c */ {'d':e, f:g}, x[:n], x[1:m], y::int, z(k := 1) -- :h", set()),
    ],
)
def test_parameter_names_are_outside_literals_and_comments(statement: str, names: set[str]) -> None:
    assert parameter_names(statement) == names


def test_a_statement_gets_the_parameters_that_it_uses() -> None:
    values: dict[str, JsonValue] = {"a": Number("1"), "B": "x", "1": None}

    assert parameters_of("SELECT $A, $b", values) == {"a": "1", "B": "x"}
    assert parameters_of("SELECT ?", values) == {"1": None}
