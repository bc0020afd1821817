from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa

from flightapi import sql_info
from flightapi.protocol.messages import enum_values
from flightapi.sql_info import VERSION
from queryengine.gate.functions import Place, check
from queryengine.gate.gate import Gate
from tests.corpus import each
from tests.system.harness import REPOSITORY

MAX_STATEMENT_BYTES = 1_048_576
NUMBERS = enum_values("SqlInfo")

#: For each type, its name in the engine, and a value that converts to as many other types as possible.
TYPES = {
    **{name: (name, "1") for name in ("BIGINT", "INTEGER", "SMALLINT", "TINYINT")},
    "FLOAT": ("DOUBLE", "1"),
    "REAL": ("FLOAT", "1"),
    **dict.fromkeys(["DECIMAL", "NUMERIC"], ("DECIMAL(18,3)", "1.0")),
    **dict.fromkeys(["BINARY", "LONGVARBINARY", "VARBINARY"], ("BLOB", "'1'::BLOB")),
    **dict.fromkeys(["INTERVAL_DAY_TIME", "INTERVAL_YEAR_MONTH"], ("INTERVAL", "INTERVAL 1 DAY")),
    **dict.fromkeys(["CHAR", "LONGVARCHAR", "VARCHAR"], ("VARCHAR", "1")),
    "BIT": ("BOOLEAN", "true"),
    "DATE": ("DATE", "DATE '2026-11-21'"),
    "TIME": ("TIME", "TIME '01:02:03'"),
    "TIMESTAMP": ("TIMESTAMP", "TIMESTAMP '2026-11-21 01:02:03'"),
}


def told(ids: list[int]) -> dict[int, Any]:
    table = sql_info.answer(ids, MAX_STATEMENT_BYTES)
    table.validate(full=True)
    return dict(zip(table["info_name"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_has_the_schema_of_the_format() -> None:
    kinds = {
        "string_value": pa.string(),
        "bool_value": pa.bool_(),
        "bigint_value": pa.int64(),
        "int32_bitmask": pa.int32(),
        "string_list": pa.list_(pa.string()),
        "int32_to_int32_list_map": pa.map_(pa.int32(), pa.list_(pa.int32())),
    }
    union = pa.dense_union([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])

    fields = [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", union, nullable=False)]
    assert sql_info.answer([], MAX_STATEMENT_BYTES).schema == pa.schema(fields)


def test_every_number_of_the_protocol_has_a_fact() -> None:
    known = told([])

    versions_of_substrait = {NUMBERS[f"FLIGHT_SQL_SERVER_SUBSTRAIT_{end}_VERSION"] for end in ("MIN", "MAX")}
    assert list(known) == sorted(set(NUMBERS.values()) - versions_of_substrait)


def test_requested_facts_without_unknown_ones() -> None:
    assert told([3, 8, 8, 99_999, 6]) == {3: True, 8: 0}
    assert told([99_999]) == {}


def test_facts_about_this_server() -> None:
    known = told([])

    assert f'version = "{VERSION}"' in (REPOSITORY / "pyproject.toml").read_text()
    assert known[NUMBERS["FLIGHT_SQL_SERVER_NAME"]] == "Querykeep"
    assert known[NUMBERS["FLIGHT_SQL_SERVER_VERSION"]] == VERSION
    assert known[NUMBERS["FLIGHT_SQL_SERVER_STATEMENT_TIMEOUT"]] == 600_000
    assert known[NUMBERS["SQL_MAX_STATEMENT_LENGTH"]] == 1_048_576


@each(
    ("name", "kind"),
    [
        ("FLIGHT_SQL_SERVER_TRANSACTION", "int32_bitmask"),  # as ADBC reads it
        ("SQL_DEFAULT_TRANSACTION_ISOLATION", "bigint_value"),  # as JDBC reads it
        ("SQL_OUTER_JOINS_SUPPORT_LEVEL", "int32_bitmask"),
        ("SQL_MAX_STATEMENT_LENGTH", "bigint_value"),
        ("SQL_SUPPORTS_CONVERT", "int32_to_int32_list_map"),
        ("SQL_KEYWORDS", "string_list"),
        ("SQL_IDENTIFIER_QUOTE_CHAR", "string_value"),
        ("FLIGHT_SQL_SERVER_READ_ONLY", "bool_value"),
    ],
)
def test_a_value_is_of_the_kind_that_clients_read(name: str, kind: str) -> None:
    union = sql_info.answer([NUMBERS[name]], MAX_STATEMENT_BYTES)["value"].chunk(0)

    assert union.type.field(union.type_codes[0].as_py()).name == kind


def test_the_keywords_equal_those_of_the_engine() -> None:
    reserved = duckdb.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'")

    assert set(sql_info.KEYWORDS) == {name for (name,) in reserved.fetchall()}


@each("name", [*sql_info.NUMERIC_FUNCTIONS, *sql_info.STRING_FUNCTIONS, *sql_info.DATETIME_FUNCTIONS])
def test_listed_functions_can_be_called(name: str) -> None:
    check(name, Place.EXPRESSION)


def test_system_functions_can_be_called() -> None:
    gate = Gate()
    for name, arguments in {"coalesce": "1, 2", "ifnull": "1, 2", "nullif": "1, 2", "typeof": "1"}.items():
        gate.admit(f"SELECT {name}({arguments})", frozenset())
    gate.close()

    assert sql_info.SYSTEM_FUNCTIONS == ("coalesce", "ifnull", "nullif", "typeof")


@each("source", TYPES)
def test_the_listed_conversions_are_exactly_those_that_work(source: str) -> None:
    said = {target for sources, targets in sql_info.CASTS if source in sources for target in targets}
    works = set()

    for target, (kind, target_sample) in TYPES.items():
        name, sample = TYPES[source]
        if name == "VARCHAR":
            sample = f"CAST({target_sample} AS VARCHAR)"
        with suppress(duckdb.Error):
            duckdb.execute(f"SELECT CAST(CAST({sample} AS {name}) AS {kind})").fetchall()
            works.add(target)

    assert works == said


def test_the_facts_about_the_dialect_are_true_of_the_engine() -> None:
    known = told([])

    null_last = duckdb.execute("SELECT list(x ORDER BY x), list(x ORDER BY x DESC) FROM (VALUES (1), (NULL)) t(x)")
    assert known[NUMBERS["SQL_NULL_ORDERING"]] == enum_values("SqlNullOrdering")["SQL_NULLS_SORTED_AT_END"]
    assert null_last.fetchall() == [([1, None], [1, None])]
    insensitive = enum_values("SqlSupportedCaseSensitivity")["SQL_CASE_SENSITIVITY_CASE_INSENSITIVE"]
    assert known[NUMBERS["SQL_IDENTIFIER_CASE"]] == insensitive
    assert known[NUMBERS["SQL_QUOTED_IDENTIFIER_CASE"]] == insensitive
    assert duckdb.execute('SELECT "A$B" FROM (SELECT 1 AS a$b)').fetchall() == [(1,)]
    assert duckdb.execute("SELECT 'a' || NULL").fetchall() == [(None,)]
