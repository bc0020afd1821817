from __future__ import annotations

import contextlib
import re
from pathlib import Path

import duckdb
import pytest

from queryengine.errors import SqlError, StatementError, StatementNotAllowedError
from queryengine.execution.macros import NAMES, NAMES_OF_DUCKDB
from queryengine.gate.functions import CALLED_BY_NAME, NONDETERMINISTIC, Place, check, judgements, refusal
from queryengine.gate.gate import Gate
from queryengine.gate.lexer import MAX_NESTING, MAX_PREFIX_RUN, MAX_TOKENS


def of_the_engine() -> set[tuple[str, str]]:
    with duckdb.connect() as connection:
        return set(
            connection.execute("SELECT DISTINCT function_type, lower(function_name) FROM duckdb_functions()").fetchall()
        )


def test_every_function_of_the_engine_is_judged() -> None:
    assert of_the_engine() - judgements().keys() == set(), "judge these in function_list.txt"


def test_no_judged_function_has_gone() -> None:
    ours = {("macro", name) for name in NAMES}
    assert judgements().keys() - of_the_engine() - ours == set(), "remove these from function_list.txt"


def test_no_pragma_and_no_function_that_starts_like_one_is_allowed() -> None:
    allowed = {(kind, name) for (kind, name), reason in judgements().items() if reason is None}

    prefixes = ("duckdb_", "pragma_", "read_", "parquet_", "__internal", "has_", "enable_", "disable_", "sleep")
    assert not [name for kind, name in allowed if kind == "pragma" or name.startswith(prefixes)]


def test_macros_that_are_allowed_call_only_what_is_allowed() -> None:
    with duckdb.connect() as connection:
        macros = connection.execute(
            "SELECT function_type, lower(function_name), macro_definition FROM duckdb_functions()"
            " WHERE function_type IN ('macro', 'table_macro')"
        ).fetchall()
    gate = Gate()

    for kind, name, definition in macros:
        if judgements()[kind, name] is None and name not in NAMES_OF_DUCKDB:
            gate.admit(definition if kind == "table_macro" else f"SELECT {definition}", frozenset())
    gate.close()


@pytest.mark.parametrize(
    "name",
    [name for (kind, name), reason in judgements().items() if kind in ("table", "table_macro") and reason is not None],
)
def test_a_refused_table_function_is_refused_wherever_it_stands(name: str) -> None:
    with pytest.raises(StatementNotAllowedError, match=f"^Function '{name}' is not allowed: .+[^.]\\.$"):
        check(name, Place.TABLE)
    if ("aggregate", name) not in judgements():
        with pytest.raises(StatementNotAllowedError):
            check(name, Place.EXPRESSION)


def test_no_name_without_brackets_calls_what_is_refused() -> None:
    found = set()
    with duckdb.connect() as connection:
        keywords = {
            keyword for (keyword,) in connection.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
        }
        for name in {name for _, name in of_the_engine()} | keywords | CALLED_BY_NAME:
            try:
                connection.execute(f'SELECT "{name.replace(chr(34), chr(34) * 2)}"')
            except duckdb.Error:
                continue
            found.add(name)

    assert found == CALLED_BY_NAME


def test_what_depends_on_more_than_its_arguments_is_known() -> None:
    allowed = {name for (_, name), reason in judgements().items() if reason is None}
    with duckdb.connect() as connection:
        functions = connection.execute(
            "SELECT lower(function_name), stability, lower(macro_definition) FROM duckdb_functions()"
        ).fetchall()
    found = {name for name, stability, _ in functions if stability not in (None, "CONSISTENT")} | CALLED_BY_NAME
    for name, _, definition in functions:
        if definition and found.intersection(re.findall(r"\w+", definition)):
            found.add(name)

    without_a_word_from_the_engine = {
        *("age", "current_localtime", "current_localtimestamp", "pg_timezone_names", "timezone")
    }
    only_fail = {"error", "assert_true", "json_group_object"}
    expected = (found & allowed) - only_fail | without_a_word_from_the_engine | CALLED_BY_NAME
    assert expected == NONDETERMINISTIC


@pytest.mark.parametrize(
    ("name", "place", "error", "message"),
    [
        ("nosuch", Place.EXPRESSION, SqlError, "^Function 'nosuch' does not exist."),
        ("upperr", Place.EXPRESSION, SqlError, r"Did you mean 'upper'\?$"),
        ("read_cvs", Place.TABLE, SqlError, r"^Function 'read_cvs' does not exist\.$"),
        ("x" * 200, Place.TABLE, SqlError, f"'{'x' * 80}'"),
        ("abs", Place.TABLE, SqlError, "call it after SELECT"),
        ("json_each", Place.EXPRESSION, SqlError, "call it after FROM"),
        ("upper", Place.WINDOW, SqlError, "not a window function"),
        ("read_csv", Place.WINDOW, StatementNotAllowedError, "reads files"),
        ("histogram", Place.TABLE, StatementNotAllowedError, "name of a table"),
        ("sleep_ms", Place.EXPRESSION, StatementNotAllowedError, "holds a place"),
    ],
)
def test_what_may_not_be_called_there(name: str, place: Place, error: type[StatementError], message: str) -> None:
    with pytest.raises(error, match=message):
        check(name, place)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("abs", Place.EXPRESSION), ("+", Place.EXPRESSION), ("sum", Place.EXPRESSION), ("sum", Place.WINDOW)),
        *(("row_number", Place.WINDOW), ("range", Place.TABLE), ("range", Place.EXPRESSION), ("unnest", Place.TABLE)),
        *(("unnest", Place.EXPRESSION), ("histogram", Place.EXPRESSION), ("is distinct from", Place.EXPRESSION)),
        *(("formatreadablesize", Place.EXPRESSION), ("if", Place.EXPRESSION), ("json_tree", Place.TABLE)),
    ],
)
def test_what_may_be_called_there(name: str, place: Place) -> None:
    check(name, place)


def test_a_refusal_is_found_without_a_place() -> None:
    assert refusal("read_text") == "it reads files"
    assert refusal("upper") is None
    assert refusal("nosuch") is None


def test_no_function_name_brings_the_gate_down() -> None:
    gate = Gate()
    for _, name in judgements():
        quoted = '"' + name.replace('"', '""') + '"'
        for sql in (f"SELECT {quoted}(1)", f"FROM {quoted}(1)", f"SELECT {quoted}(1) OVER ()"):
            with contextlib.suppress(StatementError):
                assert gate.admit(sql, frozenset()).sql == sql
    gate.close()


def test_the_documents_name_every_table_function_and_why_others_are_refused() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")

    for (kind, name), reason in judgements().items():
        if kind in ("table", "table_macro") and reason is None:
            assert f"`{name}`" in text
    for limit in (MAX_TOKENS, MAX_NESTING, MAX_PREFIX_RUN):
        assert f"| {limit:,} |" in text
