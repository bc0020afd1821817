from typing import Any

import pyarrow as pa
import pytest

from cluster.protocol import messages
from cluster.types import as_schema, name_of, schema_of
from queryengine.errors import SqlError
from queryengine.manifest import Column

LONG = messages.DataType(long=messages.DataType.Long())
TEXT = messages.DataType(string=messages.DataType.String())
DECIMAL = messages.DataType(decimal=messages.DataType.Decimal(precision=12, scale=2))
INTERVAL = messages.DataType(day_time_interval=messages.DataType.DayTimeInterval())
VOID = messages.DataType(null=messages.DataType.NULL())
TOO_LONG = messages.DataType(decimal=messages.DataType.Decimal(precision=99, scale=0))
UNKNOWN = messages.DataType()


def array_of(element: Any) -> Any:
    return messages.DataType(array=messages.DataType.Array(element_type=element))


def map_of(key: Any, value: Any) -> Any:
    return messages.DataType(map=messages.DataType.Map(key_type=key, value_type=value))


def struct_of(**members: Any) -> Any:
    fields = [messages.DataType.StructField(name=name, data_type=kind) for name, kind in members.items()]
    return messages.DataType(struct=messages.DataType.Struct(fields=fields))


TWINS = messages.DataType(
    struct=messages.DataType.Struct(
        fields=[messages.DataType.StructField(name="a", data_type=kind) for kind in (LONG, TEXT)]
    )
)


def test_every_type_has_its_names_and_its_arrow_type() -> None:
    row = struct_of(a=LONG, b=array_of(DECIMAL), c=map_of(TEXT, LONG), d=struct_of(**{'x"y': TEXT}))

    columns, schema = schema_of(row)

    assert columns == (
        Column(name="a", type="BIGINT"),
        Column(name="b", type="DECIMAL(12,2)[]"),
        Column(name="c", type="MAP(VARCHAR, BIGINT)"),
        Column(name="d", type='STRUCT("x""y" VARCHAR)'),
    )
    assert schema.types == [
        pa.int64(),
        pa.list_(pa.decimal128(12, 2)),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([('x"y', pa.string())]),
    ]
    assert name_of(row) == 'struct<a:bigint,b:array<decimal(12,2)>,c:map<string,bigint>,d:struct<x"y:string>>'


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (INTERVAL, "interval day to second"),
        (array_of(INTERVAL), "array<interval day to second>"),
        (map_of(TEXT, INTERVAL), "map<string,interval day to second>"),
        (struct_of(i=INTERVAL), "struct<i:interval day to second>"),
        (map_of(VOID, LONG), "map<void,bigint>"),
        (TWINS, "struct<a:bigint,a:string>"),
        (array_of(TWINS), "array<struct<a:bigint,a:string>>"),
        (TOO_LONG, "decimal(99,0)"),
        (UNKNOWN, "unknown"),
    ],
)
def test_a_type_without_an_exact_form_is_refused(kind: Any, name: str) -> None:
    with pytest.raises(SqlError) as caught:
        schema_of(struct_of(c=kind))

    assert str(caught.value) == f'Column "c" has the type {name}, which cannot be sent: cast it to STRING.'


def test_rows_without_columns_are_refused() -> None:
    with pytest.raises(SqlError, match="selects no columns"):
        schema_of(struct_of())


def test_a_batch_gets_the_types_of_its_schema() -> None:
    at = pa.array([0], pa.timestamp("us", "Etc/UTC"))
    list_type = pa.list_(pa.field("element", pa.int64(), nullable=False))
    batch = pa.record_batch({"at": at, "l": pa.array([[1]], list_type)})
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.int64()))])

    assert as_schema(batch, schema).schema == schema
