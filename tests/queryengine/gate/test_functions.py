import contextlib
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from queryengine.errors import SqlError, StatementError, StatementNotAllowedError
from queryengine.gate.functions import CALLED_BY_NAME, NONDETERMINISTIC, REPLACED, Place, check, judgements
from queryengine.gate.gate import Gate
from queryengine.gate.lexer import MAX_NESTING, MAX_PREFIX_RUN, MAX_TOKENS
from tests.corpus import each

JUDGED = {(kind, name): reason for name, kinds in judgements().items() for kind, reason in kinds.items()}


def functions_of_duckdb(*columns: str) -> list[Any]:
    with duckdb.connect() as connection:
        selected = ", ".join(("lower(function_name)", *columns))
        return connection.execute(f"SELECT {selected} FROM duckdb_functions()").fetchall()


def test_every_function_of_duckdb_and_no_other_is_judged() -> None:
    of_duckdb = {(kind, name) for name, kind in functions_of_duckdb("function_type")}
    ours = {("macro", "to_variant"), ("scalar", "unnest")}

    assert of_duckdb - JUDGED.keys() == set(), "judge these in function_list.txt"
    assert JUDGED.keys() - of_duckdb == ours, "remove these from function_list.txt"


def test_no_pragma_and_no_function_that_starts_like_one_is_allowed() -> None:
    prefixes = ("duckdb_", "pragma_", "read_", "parquet_", "__internal", "has_", "enable_", "disable_", "sleep")

    allowed = [key for key, reason in JUDGED.items() if reason is None]
    assert not [name for kind, name in allowed if kind == "pragma" or name.startswith(prefixes)]


def test_macros_that_are_allowed_call_only_what_is_allowed(gate: Gate) -> None:
    for name, kind, definition in functions_of_duckdb("function_type", "macro_definition"):
        if kind in ("macro", "table_macro") and JUDGED[kind, name] is None and name not in REPLACED:
            gate.admit(definition if kind == "table_macro" else f"SELECT {definition}", frozenset())


def test_a_refused_table_function_is_refused_wherever_it_stands() -> None:
    for (kind, name), reason in JUDGED.items():
        if kind in ("table", "table_macro") and reason is not None:
            with pytest.raises(StatementNotAllowedError, match=f"^Function '{name}' is not allowed: .+[^.]\\.$"):
                check(name, Place.TABLE)
            if ("aggregate", name) not in JUDGED:
                with pytest.raises(StatementNotAllowedError):
                    check(name, Place.EXPRESSION)


def test_no_name_without_brackets_calls_what_is_refused() -> None:
    found = set()
    with duckdb.connect() as connection:
        keywords = connection.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
        for (name,) in {*functions_of_duckdb(), *keywords, *((name,) for name in CALLED_BY_NAME)}:
            try:
                connection.execute(f'SELECT "{name.replace(chr(34), chr(34) * 2)}"')
            except duckdb.Error:
                continue
            found.add(name)

    assert found == CALLED_BY_NAME


def test_what_depends_on_more_than_its_arguments_is_known() -> None:
    allowed = {name for (_, name), reason in JUDGED.items() if reason is None}
    functions = functions_of_duckdb("stability", "lower(macro_definition)")
    found = {name for name, stability, _ in functions if stability not in (None, "CONSISTENT")} | CALLED_BY_NAME
    for name, _, definition in functions:
        if definition and found.intersection(re.findall(r"\w+", definition)):
            found.add(name)

    ours = {"rand"}
    unmarked = {
        *("age", "current_localtime", "current_localtimestamp", "pg_timezone_names"),
        *("reservoir_quantile", "timezone"),
    }
    only_fail = {"error", "assert_true", "json_group_object"}
    expected = (found & allowed) - only_fail | unmarked | ours | CALLED_BY_NAME
    assert expected == NONDETERMINISTIC


@each(
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


def test_what_may_be_called_there() -> None:
    for place, names in (
        (Place.EXPRESSION, "abs,+,sum,range,unnest,histogram,formatreadablesize,if"),
        (Place.WINDOW, "sum,row_number"),
        (Place.TABLE, "range,unnest,json_tree"),
    ):
        for name in names.split(","):
            check(name, place)


@pytest.mark.exhaustive
def test_no_function_name_brings_the_gate_down(gate: Gate) -> None:
    for name in judgements():
        quoted = '"' + name.replace('"', '""') + '"'
        for sql in (f"SELECT {quoted}(1)", f"FROM {quoted}(1)", f"SELECT {quoted}(1) OVER ()"):
            with contextlib.suppress(StatementError):
                assert gate.admit(sql, frozenset()).sql == sql


def test_the_documents_name_every_table_function_and_why_others_are_refused() -> None:
    text = (Path(__file__).parents[3] / "docs" / "sql.md").read_text(encoding="utf-8")

    for (kind, name), reason in JUDGED.items():
        if kind in ("table", "table_macro") and reason is None:
            assert f"`{name}`" in text
    for limit in (MAX_TOKENS, MAX_NESTING, MAX_PREFIX_RUN):
        assert f"| {limit:,} |" in text
