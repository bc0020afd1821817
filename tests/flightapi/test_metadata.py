import time
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightapi import metadata
from flightapi.metadata import Relation
from flightapi.protocol import messages
from flightapi.protocol.messages import CommandGetDbSchemas, CommandGetTables
from runtimeconf.model import Documentation
from tests.corpus import each
from tests.flightapi.endpoint import schema_of

MAX_STATEMENT_BYTES = 1000
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


def answer(command: Any, relations: Sequence[Relation] = RELATIONS) -> pa.Table:
    table = metadata.answer(command, relations, no_schemas, MAX_STATEMENT_BYTES)
    table.validate(full=True)
    assert table.schema == metadata.answer_schema(command)
    return table


def names(command: Any, relations: Sequence[Relation] = RELATIONS) -> list[str]:
    return [str(name) for name in answer(command, relations)["table_name"].to_pylist()]


TABLE_FIELDS = ["catalog_name?", "db_schema_name?", "table_name", "table_type"]
KEY_FIELDS = [
    *("pk_catalog_name?", "pk_db_schema_name?", "pk_table_name", "pk_column_name"),
    *("fk_catalog_name?", "fk_db_schema_name?", "fk_table_name", "fk_column_name"),
    *("key_sequence: int32", "fk_key_name?", "pk_key_name?", "update_rule: uint8", "delete_rule: uint8"),
]
TABLES = [("Flights", "TABLE"), ("flightsX2", "VIEW"), ("flights_2", "VIEW"), ("trips", "TABLE")]


@each(
    ("name", "fields", "rows"),
    [
        ("CommandGetCatalogs", ["catalog_name"], [("runtime",)]),
        ("CommandGetDbSchemas", ["catalog_name?", "db_schema_name"], [("runtime", "main")]),
        ("CommandGetTables", TABLE_FIELDS, [("runtime", "main", *table) for table in TABLES]),
        ("CommandGetTableTypes", ["table_type"], [("TABLE",), ("VIEW",)]),
        (
            "CommandGetPrimaryKeys",
            ["catalog_name?", "db_schema_name?", "table_name", "column_name", "key_name?", "key_sequence: int32"],
            [],
        ),
        ("CommandGetExportedKeys", KEY_FIELDS, []),
        ("CommandGetImportedKeys", KEY_FIELDS, []),
        ("CommandGetCrossReference", KEY_FIELDS, []),
    ],
)
def test_each_command_has_its_columns_and_rows(name: str, fields: list[str], rows: list[tuple[str, ...]]) -> None:
    table = answer(getattr(messages, name)())

    shown = [f"{field.name}{'?' if field.nullable else ''}: {field.type}" for field in table.schema]
    assert [text.removesuffix(": string") for text in shown] == fields
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


@each(
    ("command", "is_shown"),
    [
        (CommandGetDbSchemas(catalog="runtime", db_schema_filter_pattern="main"), True),
        (CommandGetDbSchemas(catalog="RUNTIME", db_schema_filter_pattern="MA%"), True),
        (CommandGetDbSchemas(db_schema_filter_pattern="m_in"), True),
        (CommandGetDbSchemas(catalog=""), False),
        (CommandGetDbSchemas(catalog="runtime%"), False),
        (CommandGetDbSchemas(db_schema_filter_pattern=""), False),
        (CommandGetDbSchemas(db_schema_filter_pattern="mai"), False),
    ],
)
def test_there_is_one_schema(command: Any, is_shown: bool) -> None:
    assert answer(command).num_rows == is_shown


@each(
    ("command", "found"),
    [
        (CommandGetTables(table_name_filter_pattern="flights"), ["Flights"]),
        (CommandGetTables(table_name_filter_pattern="%"), ["Flights", "flightsX2", "flights_2", "trips"]),
        (CommandGetTables(table_name_filter_pattern="%_2"), ["flightsX2", "flights_2"]),
        (CommandGetTables(table_name_filter_pattern=r"FLIGHTS\_2"), ["flights_2"]),
        (CommandGetTables(table_name_filter_pattern=""), []),
        (CommandGetTables(table_types=["VIEW", "VIEW"]), ["flightsX2", "flights_2"]),
        (CommandGetTables(table_types=["table", "SYSTEM TABLE"]), ["Flights", "trips"]),
        (CommandGetTables(table_types=["SYSTEM TABLE"]), []),
        (
            CommandGetTables(catalog="runtime", db_schema_filter_pattern="%"),
            ["Flights", "flightsX2", "flights_2", "trips"],
        ),
        (CommandGetTables(catalog=""), []),
        (CommandGetTables(catalog="other"), []),
        (CommandGetTables(db_schema_filter_pattern="information_schema"), []),
        (CommandGetTables(table_name_filter_pattern="absent", include_schema=True), []),  # asks for no schema
    ],
)
def test_tables_are_found_by_pattern_and_type(command: Any, found: list[str]) -> None:
    assert names(command) == found


def test_tables_with_schemas_on_request() -> None:
    asked: list[Sequence[str]] = []

    def schemas(wanted: Sequence[str]) -> Mapping[str, pa.Schema]:
        asked.append(wanted)
        return {"Flights": SCHEMA}

    command = CommandGetTables(table_types=["TABLE"], include_schema=True)
    table = metadata.answer(command, RELATIONS, schemas, MAX_STATEMENT_BYTES)

    assert table.schema == metadata.answer_schema(command)
    assert table.schema.field("table_schema") == pa.field("table_schema", pa.binary(), nullable=False)
    assert asked == [["Flights", "trips"]]
    flights, trips = (schema_of(data) for data in table["table_schema"].to_pylist())
    assert flights == SCHEMA
    assert flights.metadata == SCHEMA.metadata
    assert flights.field("price").metadata == {
        b"kept": b"yes",
        b"ARROW:FLIGHT:SQL:TYPE_NAME": b"DECIMAL(18,2)",
        b"ARROW:FLIGHT:SQL:PRECISION": b"18",
        b"ARROW:FLIGHT:SQL:SCALE": b"2",
    }
    assert trips == pa.schema([]), "a table whose schema nobody knows has no columns"


def test_a_name_with_a_dot_is_in_a_schema() -> None:
    relations = [*RELATIONS, Relation("taxi.trips", "TABLE"), Relation("bus.late", "VIEW")]

    found = answer(CommandGetTables(), relations).select(["db_schema_name", "table_name"]).to_pylist()
    assert [tuple(row.values()) for row in found if row["db_schema_name"] != "main"] == [
        ("bus", "late"),
        ("taxi", "trips"),
    ]
    assert names(CommandGetTables(db_schema_filter_pattern="taxi", table_name_filter_pattern="tr%"), relations) == [
        "trips"
    ]
    schemas = answer(CommandGetDbSchemas(), relations)["db_schema_name"].to_pylist()
    assert schemas == ["bus", "main", "taxi"]
    assert answer(CommandGetDbSchemas(db_schema_filter_pattern="t%"), relations).num_rows == 1


def test_descriptions_are_in_the_metadata_of_table_and_columns() -> None:
    documentation = Documentation(
        description="All trips", metadata={"owner": "ops"}, columns={"PRICE": "in euros", "absent": "no column"}
    )

    table = metadata.answer(
        CommandGetTables(include_schema=True),
        [Relation("trips", "TABLE", documentation)],
        lambda names: dict.fromkeys(names, SCHEMA),
        MAX_STATEMENT_BYTES,
    )

    schema = schema_of(table["table_schema"][0].as_py())
    assert schema.metadata == {b"of": b"the table", b"description": b"All trips", b"owner": b"ops"}
    assert (schema.field("price").metadata or {})[b"ARROW:FLIGHT:SQL:REMARKS"] == b"in euros"
    assert schema.field("id").metadata == {b"ARROW:FLIGHT:SQL:TYPE_NAME": b"BIGINT"}


@pytest.mark.parametrize("command", [messages.CommandGetSqlInfo(), messages.CommandGetXdbcTypeInfo()])
def test_facts_and_types_have_the_schema_that_was_announced(command: Any) -> None:
    assert answer(command).num_rows > 0


@given(pattern=st.text("aB_%", max_size=12), name=st.text("abB_", max_size=12))
def test_patterns_match_like_sql(pattern: str, name: str) -> None:
    found = names(CommandGetTables(table_name_filter_pattern=pattern), [Relation(name, "TABLE")])

    assert [(found == [name],)] == duckdb.execute("SELECT $1 ILIKE $2", [name, pattern]).fetchall()


@given(name=st.text("a_%\\", min_size=1, max_size=8))
def test_an_escaped_name_finds_just_itself(name: str) -> None:
    escaped = "".join(f"\\{character}" if character in "_%\\" else character for character in name)
    others = [Relation(other, "TABLE") for other in {name, name + "a", "a" * len(name)}]

    assert names(CommandGetTables(table_name_filter_pattern=escaped), others) == [name]


def test_no_pattern_takes_long() -> None:
    hostile = CommandGetTables(table_name_filter_pattern="%a" * 5000 + "b")

    assert names(hostile, [Relation("a" * 5000, "TABLE")] * 3) == []


def test_wildcards_in_a_row_are_as_one() -> None:
    began = time.process_time()

    assert len(names(CommandGetTables(table_name_filter_pattern="%" * 10_000), [Relation("a", "TABLE")] * 500)) == 500
    assert time.process_time() - began < 1  # each by itself: 4 s
