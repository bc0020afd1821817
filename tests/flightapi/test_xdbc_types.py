import duckdb
import pyarrow as pa
import pytest

from flightapi import xdbc_types
from tests.corpus import each

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
    shown = [f"{field.name}{'?' if field.nullable else ''}: {field.type}" for field in xdbc_types.answer(None).schema]

    assert ", ".join(shown) == (
        "type_name: string, data_type: int32, column_size?: int32, literal_prefix?: string, literal_suffix?: string, "
        "create_params?: list<item: string not null>, nullable: int32, case_sensitive: bool, searchable: int32, "
        "unsigned_attribute?: bool, fixed_prec_scale: bool, auto_increment?: bool, local_type_name?: string, "
        "minimum_scale?: int32, maximum_scale?: int32, sql_data_type: int32, datetime_subcode?: int32, "
        "num_prec_radix?: int32, interval_precision?: int32"
    )


def test_rows_are_sorted_by_type_and_name() -> None:
    order = [(row["data_type"], row["type_name"]) for row in ROWS]

    assert order == sorted(order)
    assert len(set(order)) == len(order)


@pytest.mark.parametrize(("data_type", "names"), [(4, ["INTEGER", "UINTEGER"]), (-7, ["BOOLEAN"]), (11, [])])
def test_types_can_be_filtered(data_type: int, names: list[str]) -> None:
    assert xdbc_types.answer(data_type)["type_name"].to_pylist() == names


@each("row", [pytest.param(row, id=row["type_name"]) for row in ROWS])
def test_a_type_is_one_of_the_engine_and_its_literals_work(row: dict[str, str]) -> None:
    name = row["type_name"]

    written = duckdb.execute(f"SELECT typeof(NULL::{name})").fetchall()[0][0]
    assert written.partition("(")[0] == name
    if row["literal_prefix"] is not None:
        sample = SAMPLES.get(name, "2026-11-21 01:02:03" if name.startswith("TIMESTAMP") else "x")
        literal = f"{row['literal_prefix']}{sample}{row['literal_suffix']}"
        assert duckdb.execute(f"SELECT typeof(CAST({literal} AS {name}))").fetchall() == [(written,)]


@pytest.mark.parametrize(
    ("name", "bits"), [("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128)]
)
def test_the_size_of_an_integer_is_its_digits(name: str, bits: int) -> None:
    for unsigned, greatest in ((False, 2 ** (bits - 1) - 1), (True, 2**bits - 1)):
        type_name = "U" * unsigned + name
        (row,) = (row for row in ROWS if row["type_name"] == type_name)

        assert row["column_size"] == len(str(greatest))
        assert row["unsigned_attribute"] == unsigned
        assert duckdb.execute(f"SELECT {greatest}::{type_name}").fetchall() == [(greatest,)]


@each(
    "name",
    [
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
        *("FLOAT", "DOUBLE", "DECIMAL(18,3)", "VARCHAR", "BLOB", "DATE", "TIME", "TIME_NS", "TIMESTAMP"),
        *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "INTEGER[]", "INTEGER[3]"),
        *('STRUCT(a INTEGER, "B c" VARCHAR[])', "MAP(VARCHAR, DOUBLE)", "UNION(num INTEGER, str VARCHAR)"),
    ],
)
def test_a_column_has_the_name_of_its_type_in_the_engine(name: str) -> None:
    relation = duckdb.sql(f"SELECT NULL::{name} AS a")
    assert relation is not None
    kind = relation.to_arrow_table().schema.field("a").type

    assert [(xdbc_types.type_name(kind),)] == duckdb.execute(f"SELECT typeof(NULL::{name})").fetchall()


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.uint8(), pa.string())])
def test_text_in_any_form_is_varchar(kind: pa.DataType) -> None:
    assert xdbc_types.type_name(kind) == "VARCHAR"
