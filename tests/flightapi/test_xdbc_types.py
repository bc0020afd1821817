from __future__ import annotations

import duckdb
import pytest

from flightapi import xdbc_types

ROWS = xdbc_types.answer(None).to_pylist()
SAMPLES = {
    "UUID": "00000000-0000-0000-0000-000000000001",
    "JSON": "{}",
    "DATE": "2026-11-21",
    "TIME": "01:02:03",
    "TIME WITH TIME ZONE": "01:02:03+00",
    "INTERVAL": "1 day",
}


def test_has_the_schema_of_the_format() -> None:
    schema = xdbc_types.answer(None).schema

    assert [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema] == [
        "type_name: string not null",
        "data_type: int32 not null",
        "column_size: int32",
        "literal_prefix: string",
        "literal_suffix: string",
        "create_params: list<item: string not null>",
        "nullable: int32 not null",
        "case_sensitive: bool not null",
        "searchable: int32 not null",
        "unsigned_attribute: bool",
        "fixed_prec_scale: bool not null",
        "auto_increment: bool",
        "local_type_name: string",
        "minimum_scale: int32",
        "maximum_scale: int32",
        "sql_data_type: int32 not null",
        "datetime_subcode: int32",
        "num_prec_radix: int32",
        "interval_precision: int32",
    ]


def test_rows_are_sorted_by_type_and_name() -> None:
    order = [(row["data_type"], row["type_name"]) for row in ROWS]

    assert order == sorted(order)
    assert len(set(order)) == len(order)


@pytest.mark.parametrize(("data_type", "names"), [(4, ["INTEGER", "UINTEGER"]), (-7, ["BOOLEAN"]), (11, [])])
def test_types_can_be_filtered(data_type: int, names: list[str]) -> None:
    assert xdbc_types.answer(data_type)["type_name"].to_pylist() == names


@pytest.mark.parametrize("row", [pytest.param(row, id=row["type_name"]) for row in ROWS])
def test_a_type_is_one_of_the_engine_and_its_literals_work(row: dict[str, str]) -> None:
    name = row["type_name"]

    written = duckdb.execute(f"SELECT typeof(NULL::{name})").fetchall()[0][0]
    assert written.partition("(")[0] == name
    if row["literal_prefix"] is not None:
        sample = SAMPLES.get(name, "2026-11-21 01:02:03" if name.startswith("TIMESTAMP") else "x")
        literal = f"{row['literal_prefix']}{sample}{row['literal_suffix']}"
        assert duckdb.execute(f"SELECT typeof(CAST({literal} AS {name}))").fetchall() == [(written,)]


@pytest.mark.parametrize(
    ("name", "greatest"),
    [
        ("TINYINT", 2**7 - 1),
        ("UTINYINT", 2**8 - 1),
        ("SMALLINT", 2**15 - 1),
        ("USMALLINT", 2**16 - 1),
        ("INTEGER", 2**31 - 1),
        ("UINTEGER", 2**32 - 1),
        ("BIGINT", 2**63 - 1),
        ("UBIGINT", 2**64 - 1),
        ("HUGEINT", 2**127 - 1),
        ("UHUGEINT", 2**128 - 1),
    ],
)
def test_the_size_of_an_integer_is_its_digits(name: str, greatest: int) -> None:
    (row,) = (row for row in ROWS if row["type_name"] == name)

    assert row["column_size"] == len(str(greatest))
    assert row["unsigned_attribute"] == name.startswith("U")
    assert duckdb.execute(f"SELECT {greatest}::{name}").fetchall() == [(greatest,)]
