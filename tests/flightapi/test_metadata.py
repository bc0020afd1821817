from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightapi import metadata
from flightapi.commands import (
    GetCatalogs,
    GetDbSchemas,
    GetKeys,
    GetSqlInfo,
    GetTables,
    GetTableTypes,
    GetXdbcTypeInfo,
    Metadata,
)
from flightapi.metadata import Relation, ServerFacts

FACTS = ServerFacts(version="1", handle_timeout_ms=1000, max_statement_bytes=1000)
RELATIONS = [
    Relation("trips", "TABLE"),
    Relation("Flights", "TABLE"),
    Relation("flights_2", "VIEW"),
    Relation("flightsX2", "VIEW"),
]
SCHEMA = pa.schema(
    [
        pa.field("price", pa.decimal128(18, 2), metadata={"kept": "yes"}),
        pa.field("id", pa.int64(), nullable=False),
    ],
    metadata={"of": "the table"},
)


def no_schemas(names: Sequence[str]) -> Mapping[str, pa.Schema]:
    raise AssertionError("nobody asked for schemas")


def answer(plan: Metadata) -> pa.Table:
    table = metadata.answer(plan, RELATIONS, no_schemas, FACTS)
    table.validate(full=True)
    assert table.schema == metadata.answer_schema(plan)
    return table


def names(plan: GetTables) -> list[str]:
    return [str(name) for name in answer(plan)["table_name"].to_pylist()]


def fields(schema: pa.Schema) -> list[str]:
    return [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema]


def test_there_is_one_catalog() -> None:
    table = answer(GetCatalogs())

    assert fields(table.schema) == ["catalog_name: string not null"]
    assert table.to_pylist() == [{"catalog_name": "runtime"}]


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        (GetDbSchemas(), True),
        (GetDbSchemas("runtime", "main"), True),
        (GetDbSchemas("RUNTIME", "MA%"), True),
        (GetDbSchemas(None, "m_in"), True),
        (GetDbSchemas("", None), False),
        (GetDbSchemas("runtime%", None), False),
        (GetDbSchemas(None, ""), False),
        (GetDbSchemas(None, "mai"), False),
    ],
)
def test_there_is_one_schema(plan: GetDbSchemas, shown: bool) -> None:
    table = answer(plan)

    assert fields(table.schema) == ["catalog_name: string", "db_schema_name: string not null"]
    assert table.to_pylist() == ([{"catalog_name": "runtime", "db_schema_name": "main"}] if shown else [])


def test_tables_are_the_declared_ones_in_order() -> None:
    table = answer(GetTables())

    assert fields(table.schema) == [
        "catalog_name: string",
        "db_schema_name: string",
        "table_name: string not null",
        "table_type: string not null",
    ]
    assert table.to_pylist() == [
        {"catalog_name": "runtime", "db_schema_name": "main", "table_name": name, "table_type": kind}
        for name, kind in [("Flights", "TABLE"), ("flightsX2", "VIEW"), ("flights_2", "VIEW"), ("trips", "TABLE")]
    ]


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (GetTables(table_pattern="flights"), ["Flights"]),
        (GetTables(table_pattern="%"), ["Flights", "flightsX2", "flights_2", "trips"]),
        (GetTables(table_pattern="%_2"), ["flightsX2", "flights_2"]),
        (GetTables(table_pattern=r"FLIGHTS\_2"), ["flights_2"]),
        (GetTables(table_pattern=""), []),
        (GetTables(table_types=("VIEW",)), ["flightsX2", "flights_2"]),
        (GetTables(table_types=("table", "SYSTEM TABLE")), ["Flights", "trips"]),
        (GetTables(table_types=("SYSTEM TABLE",)), []),
        (GetTables(catalog="runtime", schema_pattern="%"), ["Flights", "flightsX2", "flights_2", "trips"]),
        (GetTables(catalog=""), []),
        (GetTables(catalog="other"), []),
        (GetTables(schema_pattern="information_schema"), []),
    ],
)
def test_tables_are_found_by_pattern_and_type(plan: GetTables, found: list[str]) -> None:
    assert names(plan) == found


def test_tables_with_schemas_on_request() -> None:
    asked: list[Sequence[str]] = []

    def schemas(wanted: Sequence[str]) -> Mapping[str, pa.Schema]:
        asked.append(wanted)
        return {"Flights": SCHEMA}

    plan = GetTables(table_types=("TABLE",), include_schema=True)
    table = metadata.answer(plan, RELATIONS, schemas, FACTS)

    assert table.schema == metadata.answer_schema(plan)
    assert table.schema.field("table_schema") == pa.field("table_schema", pa.binary(), nullable=False)
    assert asked == [["Flights", "trips"]]
    flights, trips = (pa.ipc.read_schema(pa.py_buffer(data)) for data in table["table_schema"].to_pylist())
    assert flights == SCHEMA
    assert flights.metadata == SCHEMA.metadata
    assert flights.field("price").metadata == {
        b"kept": b"yes",
        b"ARROW:FLIGHT:SQL:PRECISION": b"18",
        b"ARROW:FLIGHT:SQL:SCALE": b"2",
    }
    assert trips == pa.schema([]), "a table whose schema nobody knows has no columns"


def test_without_matching_tables_no_schema_is_requested() -> None:
    assert answer(GetTables(table_pattern="absent", include_schema=True)).num_rows == 0


def test_there_are_tables_and_views() -> None:
    table = answer(GetTableTypes())

    assert fields(table.schema) == ["table_type: string not null"]
    assert table["table_type"].to_pylist() == ["TABLE", "VIEW"]


def test_there_are_no_keys() -> None:
    primary = answer(GetKeys("primary"))
    foreign = [answer(GetKeys(kind)) for kind in ("exported", "imported", "cross")]

    assert fields(primary.schema) == [
        "catalog_name: string",
        "db_schema_name: string",
        "table_name: string not null",
        "column_name: string not null",
        "key_name: string",
        "key_sequence: int32 not null",
    ]
    assert fields(foreign[0].schema) == [
        "pk_catalog_name: string",
        "pk_db_schema_name: string",
        "pk_table_name: string not null",
        "pk_column_name: string not null",
        "fk_catalog_name: string",
        "fk_db_schema_name: string",
        "fk_table_name: string not null",
        "fk_column_name: string not null",
        "key_sequence: int32 not null",
        "fk_key_name: string",
        "pk_key_name: string",
        "update_rule: uint8 not null",
        "delete_rule: uint8 not null",
    ]
    assert {table.schema for table in foreign} == {foreign[0].schema}
    assert [table.num_rows for table in [primary, *foreign]] == [0, 0, 0, 0]


@pytest.mark.parametrize("plan", [GetSqlInfo(), GetXdbcTypeInfo()])
def test_facts_and_types_have_the_schema_that_was_announced(plan: Metadata) -> None:
    assert answer(plan).num_rows > 0


@given(pattern=st.text("aB_%", max_size=12), name=st.text("abB_", max_size=12))
def test_patterns_match_like_sql(pattern: str, name: str) -> None:
    table = metadata.answer(GetTables(table_pattern=pattern), [Relation(name, "TABLE")], no_schemas, FACTS)

    assert [(table.num_rows == 1,)] == duckdb.execute("SELECT $1 ILIKE $2", [name, pattern]).fetchall()


@given(name=st.text("a_%\\", min_size=1, max_size=8))
def test_an_escaped_name_finds_just_itself(name: str) -> None:
    escaped = "".join(f"\\{character}" if character in "_%\\" else character for character in name)
    others = [Relation(other, "TABLE") for other in {name, name + "a", "a" * len(name)}]

    table = metadata.answer(GetTables(table_pattern=escaped), others, no_schemas, FACTS)

    assert table["table_name"].to_pylist() == [name]


def test_no_pattern_takes_long() -> None:
    hostile = GetTables(table_pattern="%a" * 5000 + "b")

    assert metadata.answer(hostile, [Relation("a" * 5000, "TABLE")] * 3, no_schemas, FACTS).num_rows == 0
