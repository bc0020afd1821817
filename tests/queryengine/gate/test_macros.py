"""The macros for DataFusion's functions, as the gate sees them: their bodies, their names, their cost."""

import itertools
import re
from importlib.resources import files
from itertools import pairwise

import duckdb
import pytest

from queryengine.errors import SqlError, SqlSyntaxError, StatementNotAllowedError
from queryengine.gate import macros as macros_module
from queryengine.gate.functions import CALLED_BY_NAME, NONDETERMINISTIC, judgements
from queryengine.gate.gate import Gate
from queryengine.gate.lexer import Kind, scan
from queryengine.gate.macros import INTERNAL, called_in, macros, needed
from tests.corpus import each

NAMES = sorted(macros())


def bodies(name: str) -> list[str]:
    """Return the body of each form of a macro."""
    found = scan(macros()[name].definition)
    begins = [at for at, token in enumerate(found.tokens) if token.word == "as" and token.depth == 0]
    commas = [at for at, token in enumerate(found.tokens) if token.text == "," and token.depth == 0]
    ends = [*commas, found.size]
    return [
        found.text[found.tokens[begin].end : found.tokens[end - 1].end] for begin, end in zip(begins, ends, strict=True)
    ]


@each("name", NAMES)
def test_a_body_calls_only_what_a_caller_may_and_reads_nothing(gate: Gate, name: str) -> None:
    for body in bodies(name):
        statement = gate.admit(f"SELECT {body}", frozenset({"flights"}))

        assert statement.sql == f"SELECT {body}"
        assert (statement.kind, statement.relations, statement.catalog) == ("select", frozenset(), None)
        assert statement.deterministic == (name not in NONDETERMINISTIC)


@each("name", NAMES)
def test_a_body_has_no_subquery_and_no_name_of_its_own_that_an_argument_may_have(name: str) -> None:
    words = [token.word for token in scan(macros()[name].definition).tokens]

    assert not {"select", "with", "exists"}.intersection(words)
    assert all(after == "when" for word, after in pairwise(words) if word == "case"), "CASE x WHEN repeats x unseen"
    for bound in re.findall(r"lambda([\w,\s]+):", macros()[name].definition):
        assert all(variable.strip().startswith(INTERNAL) for variable in bound.split(","))


def test_no_name_is_one_of_duckdb() -> None:
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT lower(function_name) FROM duckdb_functions()").fetchall()
        words = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'")

        assert macros().keys().isdisjoint({name for (name,) in rows})
        assert macros().keys().isdisjoint({name for (name,) in words.fetchall()} | CALLED_BY_NAME | judgements().keys())


def test_no_format_asks_for_nanoseconds_once_it_is_translated() -> None:
    texts = ["".join(letters) for size in range(1, 6) for letters in itertools.product("%n\x01.3ft-", repeat=size)]
    with duckdb.connect() as connection:
        for macro in needed({"df_format"}):
            connection.execute(f"CREATE MACRO {macro.definition}")
        found = connection.execute("SELECT df_format(text) FROM (SELECT unnest(?) AS text)", [texts]).fetchall()

    assert len(found) > 30_000
    assert [text for (text,) in found if "%n" in text.replace("%%", "")] == []


def test_what_the_macros_of_duckdb_repeat_is_counted() -> None:
    called = {token.text for macro in macros().values() for token in scan(macro.definition).tokens}
    repeated: dict[str, int] = {}
    with duckdb.connect() as connection:
        for name, arguments, body in connection.execute(
            "SELECT function_name, parameters, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
        ).fetchall():
            times = max((len(re.findall(rf"\b{re.escape(one)}\b", body)) for one in arguments), default=1)
            if name in called and times > 1:
                repeated[name] = times

    assert repeated == macros_module._COPIES


def test_a_macro_comes_with_those_that_it_calls_before_it() -> None:
    assert [macro.name for macro in needed({"regexp_match", "nvl"})] == ["nvl", "df_groups", "df_match", "regexp_match"]
    assert [macro.name for macro in called_in("SELECT NVL(a, 1)", 'SELECT x."array_sum"()')] == ["nvl", "array_sum"]
    assert called_in("SELECT 'nvl(1, 2)' -- nvl(1, 2)") == ()


def test_what_repeats_its_arguments_is_nested_a_few_levels_only(gate: Gate) -> None:
    def nested(call: str, levels: int) -> str:
        sql = "x"
        for _ in range(levels):
            sql = call.format(sql)
        return f"SELECT {sql} FROM (SELECT 1 AS x)"

    for call in ("array_remove({}, 1)", "to_date({})", "regexp_match({}, 'a')", "array_scale(y, {})", "nanvl({}, 1)"):
        gate.admit(nested(call, 3), frozenset())
        with pytest.raises(SqlSyntaxError, match="expand to more than 50,000"):
            gate.admit(nested(call, 30), frozenset())
        with pytest.raises(SqlSyntaxError, match="expand to more than 50,000"):
            gate.admit(f"WITH a AS ({nested(call, 30)}) SELECT (SELECT * FROM a)", frozenset())
    gate.admit(nested("nvl({}, 1)", 60), frozenset())


def test_repetitions_count_through_subqueries_and_side_by_side(gate: Gate) -> None:
    inner = "to_date(to_date(to_date(to_date(x))))"

    with pytest.raises(SqlSyntaxError, match="expand to more than 50,000"):
        gate.admit(f"SELECT to_date((WITH a AS (SELECT to_date({inner}) AS d) SELECT d FROM a)) FROM b", frozenset("b"))
    with pytest.raises(SqlSyntaxError, match="expand to more than 50,000"):
        gate.admit(f"SELECT {', '.join([inner] * 100)}", frozenset())


@each(
    ("sql", "error", "message"),
    [
        ("FROM nvl(1, 2)", SqlError, "call it after SELECT"),
        ("SELECT nvl(1, 2) OVER ()", SqlError, "not a window function"),
        ("SELECT list_aggregate([1], 'nvl')", SqlError, "does not exist"),
        ("SELECT nvl(getvariable('a'), 1)", StatementNotAllowedError, "'getvariable' is not allowed"),
        ("SELECT nvl((FROM read_text('/etc/passwd')), 1)", StatementNotAllowedError, "it reads files"),
        ("SELECT to_chat(1)", SqlError, r"Did you mean 'to_char'\?"),
        ("SELECT df_encod(1, 2)", SqlError, r"does not exist\."),
        ("SELECT array_summ([1])", SqlError, r"Did you mean 'array_sum'\?"),
    ],
)
def test_a_macro_is_judged_like_any_function(gate: Gate, sql: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        gate.admit(sql, frozenset())
    assert "df_" not in str(caught.value).replace("df_encod'", "")


def test_a_statement_says_which_macros_it_calls(gate: Gate) -> None:
    assert gate.admit("SELECT nvl(array_sum([1]), 2), abs(1)", frozenset()).macros == {"nvl", "array_sum"}
    assert gate.admit("SELECT 1", frozenset()).macros == frozenset()
    assert not gate.admit("SELECT rand()", frozenset()).deterministic
    assert (
        gate.admit("SELECT nvl(1, 2) + 3", frozenset()).pattern
        == gate.admit("SELECT nvl(1, 2) + 4", frozenset()).pattern
    )


def test_without_them_none_exists() -> None:
    gate = Gate(datafusion_sql=False)
    try:
        for name in NAMES:
            with pytest.raises(SqlError, match=f"^Function '{name}' does not exist"):
                gate.admit(f"SELECT {name}(1, 2)", frozenset())
    finally:
        gate.close()


def test_the_file_has_one_definition_for_each_name() -> None:
    text = (files("queryengine.gate") / "datafusion_macros.sql").read_text(encoding="utf-8")
    ends = [token for token in scan(text).tokens if token.text == ";" and token.kind is Kind.PUNCTUATION]

    assert len(ends) == len(NAMES)
