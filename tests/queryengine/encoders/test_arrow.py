"""Every DuckDB type in Arrow and vnd, against pyarrow; and what all formats have in common."""

import json

import duckdb
import pyarrow as pa
import pytest

from queryengine.encoders import ENCODERS
from queryengine.encoders.arrow import answer_schema
from queryengine.engine import Encoding
from queryengine.errors import SqlError
from queryengine.values import TABLE, Carrier
from tests.corpus import each
from tests.queryengine.encoders.answers import answer, declared, encode, from_arrow, result, strict_json
from tests.queryengine.encoders.value_samples import SAMPLES, engine_texts, values_of

# Arrow


@each("name", SAMPLES)
def test_arrow_is_what_the_engine_exports_or_its_text(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    table = pa.ipc.open_stream(answer(connection, values_of(name), "arrow")).read_all()

    column = table.column("v").combine_chunks()
    if TABLE[name] is Carrier.ARROW:
        exported = connection.sql(values_of(name)).to_arrow_table().column(0).combine_chunks()
        assert (column.type, str(column)) == (exported.type, str(exported))  # by text: NaN is no equal of NaN
    else:
        assert column.to_pylist() == engine_texts(connection, name)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT i, 'n' || i AS s, [i] AS l, {'a': i} AS t, MAP {i: 'x'} AS m, NULL AS n FROM range(5000) r(i)",
        "SELECT ['b', 'a']::ENUM('a', 'b')[] AS e, i FROM range(5000) r(i)",
        "SELECT 1 AS a WHERE false",
        "SELECT 'x'::ENUM('x') AS a WHERE false",
    ],
    ids=["plain", "a dictionary in a list", "empty", "an empty dictionary"],
)
def test_the_stream_is_what_a_writer_of_arrow_writes(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    body = answer(connection, sql, "arrow")

    columns, reader = result(connection, sql)
    schema = answer_schema(columns, reader.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in reader:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    assert body == sink.getvalue().to_pybytes()


# vnd


VND_TYPES: dict[str, object] = {
    **dict.fromkeys(["UHUGEINT", "BIGNUM", "VARCHAR", "JSON", "UUID", "BIT", "TIMETZ", "INTERVAL"], "Utf8"),
    **dict.fromkeys(["GEOMETRY", "VARIANT"], "Utf8"),
    "BOOLEAN": "Boolean",
    "FLOAT": "Float32",
    "DOUBLE": "Float64",
    "BLOB": "Binary",
    "DATE": "Date32",
    "TINYINT": "Int8",
    "SMALLINT": "Int16",
    "INTEGER": "Int32",
    "BIGINT": "Int64",
    '"NULL"': "Null",
    "UTINYINT": "UInt8",
    "USMALLINT": "UInt16",
    "UINTEGER": "UInt32",
    "UBIGINT": "UInt64",
    "HUGEINT": {"Decimal128": [38, 0]},
    "DECIMAL(18,3)": {"Decimal128": [18, 3]},
    "ENUM('x')": {"Dictionary": ["UInt8", "Utf8"]},
    "TIME": {"Time64": "Microsecond"},
    "TIME_NS": {"Time64": "Nanosecond"},
    "TIMESTAMP": {"Timestamp": ["Microsecond", None]},
    "TIMESTAMP_S": {"Timestamp": ["Second", None]},
    "TIMESTAMP_MS": {"Timestamp": ["Millisecond", None]},
    "TIMESTAMP_NS": {"Timestamp": ["Nanosecond", None]},
    "TIMESTAMPTZ": {"Timestamp": ["Microsecond", "UTC"]},
    "TIMESTAMPTZ_NS": {"Timestamp": ["Nanosecond", "UTC"]},
}


def field(name: str, data_type: object, *, nullable: bool = True) -> dict[str, object]:
    return {"name": name, "data_type": data_type, "nullable": nullable, "dict_id": 0, "dict_is_ordered": False}


@each("kind", VND_TYPES)
def test_vnd_names_the_type_and_has_the_rows_of_json(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    body = strict_json(answer(connection, f"SELECT NULL::{kind} AS v FROM range(3)", "vnd"))

    schema = {"fields": [field("v", VND_TYPES[kind])], "metadata": {}}
    assert body == {"schema": schema, "data": [{"v": None}] * 3, "row_count": 3}
    assert list(body) == ["schema", "data", "row_count"]


def test_vnd_names_nested_types(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT [1] AS l, [1]::INTEGER[1] AS f, {'a': 'x'} AS s, MAP {'k': 1} AS m, union_value(u := 1) AS u"

    fields = json.loads(answer(connection, sql, "vnd"))["schema"]["fields"]

    members = {"Struct": [field("key", "Utf8", nullable=False), field("value", "Int32")]}
    assert fields == [
        field("l", {"List": field("l", "Int32")}),
        field("f", {"FixedSizeList": [field("", "Int32"), 1]}),
        field("s", {"Struct": [field("a", "Utf8")]}),
        field("m", {"Map": [field("entries", members, nullable=False), False]}),
        field("u", {"Union": [[[0, field("u", "Int32")]], "Sparse"]}),
    ]


# All formats


EMPTY = "SELECT 1 AS a, INTERVAL 1 DAY AS b, 'x'::ENUM('x') AS a WHERE false"


def test_an_empty_result_has_its_schema(connection: duckdb.DuckDBPyConnection) -> None:
    fields = [field("a", "Int32"), field("b", "Utf8"), field("a_1", VND_TYPES["ENUM('x')"])]
    expected = {"schema": {"fields": fields, "metadata": {}}, "data": [], "row_count": 0}
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("a_1", pa.dictionary(pa.uint8(), pa.string()))])

    assert answer(connection, EMPTY) == b"[]"
    assert answer(connection, EMPTY, "csv") == b"a,b,a_1\n"
    assert strict_json(answer(connection, EMPTY, "vnd")) == expected
    assert pa.ipc.open_stream(answer(connection, EMPTY, "arrow")).read_all().equals(schema.empty_table())


@each("encoding", ENCODERS)
@each("kind", ["UHUGEINT", "TIMETZ", "BIT", "BIGNUM", "INTERVAL", "VARIANT", "STRUCT(a UHUGEINT)"])
def test_a_value_that_arrow_cannot_hold_is_refused(
    connection: duckdb.DuckDBPyConnection, kind: str, encoding: Encoding
) -> None:
    relation = connection.sql(f"SELECT NULL::{kind} AS v")  # as a statement comes that cannot be projected
    reader = relation.to_arrow_reader(10)

    with pytest.raises(SqlError, match=r'Column "v" has the type .*: cast it to VARCHAR'):
        next(encode(encoding, declared({"v": str(relation.types[0])}), reader.schema, reader))


@pytest.mark.parametrize(
    ("declared", "array"),
    [
        pytest.param("INTEGER", pa.array([None], pa.duration("s")), id="an Arrow type that the engine does not export"),
        pytest.param("INTEGER", pa.array([[1]]), id="another shape than declared"),
        pytest.param("INTEGER[]", pa.array([[[1]]]), id="another depth than declared"),
    ],
)
def test_a_value_that_does_not_fit_its_declaration_is_refused(declared: str, array: pa.Array) -> None:
    with pytest.raises(SqlError, match="cast it to VARCHAR"):
        from_arrow({"v": declared}, pa.record_batch({"v": array}))


@pytest.mark.parametrize(
    ("declared", "array", "token"),
    [
        pytest.param("VARCHAR", pa.array(["é"], pa.large_string()), '"é"', id="large string"),
        pytest.param("VARCHAR", pa.array(["é"], pa.string_view()), '"é"', id="string view"),
        pytest.param("BLOB", pa.array([b"\xff"], pa.large_binary()), '"ff"', id="large binary"),
        pytest.param("INTEGER[]", pa.array([[1, None]], pa.large_list(pa.int32())), "[1,null]", id="large list"),
    ],
)
def test_the_wide_forms_of_arrow_are_taken(declared: str, array: pa.Array, token: str) -> None:
    assert from_arrow({"v": declared}, pa.record_batch({"v": array})).decode() == f'[{{"v":{token}}}]'


def test_batches_of_many_columns(connection: duckdb.DuckDBPyConnection) -> None:
    body = answer(connection, f"SELECT {', '.join(f'{i} AS c{i}' for i in range(2000))} FROM range(3)")

    assert strict_json(body) == [{f"c{i}": i for i in range(2000)}] * 3
