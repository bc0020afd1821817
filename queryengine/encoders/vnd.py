"""Encodes results as `application/vnd.spiceai.sql.v1+json`: the rows as JSON, with their schema and the row count."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from queryengine.encoders import json as json_encoder
from queryengine.encoders.arrow import answer_schema
from queryengine.engine import Parts
from queryengine.manifest import Column


def encode(columns: Sequence[Column], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Parts]:
    """
    Yield `{"schema":{...},"data":[...],"row_count":2}`.

    The row count comes last because rows are streamed, so their number is known only at the end.
    """
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    fields = [_field(field) for field in answer_schema(columns, schema)]  # Raises for types without a name below.
    described = json.dumps({"fields": fields, "metadata": {}}, ensure_ascii=False, separators=(",", ":"))
    start = b'{"schema":%s,"data":' % described.encode()
    for chunk in json_encoder.encode(columns, schema, counted()):
        yield start, *chunk
        start = b""
    yield (b',"row_count":%d}' % rows,)


def data_type(arrow: pa.DataType) -> Any:
    """Return the JSON for an Arrow type in the format of arrow-rs, such as `"Int64"` or `{"Decimal128":[18,3]}`."""
    return _SIMPLE.get(arrow.id) or _PARAMETRISED[arrow.id](arrow)


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "data_type": data_type(field.type),
        "nullable": field.nullable,
        "dict_id": 0,
        "dict_is_ordered": False,
    }


_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}

_SIMPLE: Mapping[int, str] = {
    pa.lib.Type_NA: "Null",
    pa.lib.Type_BOOL: "Boolean",
    pa.lib.Type_INT8: "Int8",
    pa.lib.Type_INT16: "Int16",
    pa.lib.Type_INT32: "Int32",
    pa.lib.Type_INT64: "Int64",
    pa.lib.Type_UINT8: "UInt8",
    pa.lib.Type_UINT16: "UInt16",
    pa.lib.Type_UINT32: "UInt32",
    pa.lib.Type_UINT64: "UInt64",
    pa.lib.Type_FLOAT: "Float32",
    pa.lib.Type_DOUBLE: "Float64",
    pa.lib.Type_STRING: "Utf8",
    pa.lib.Type_LARGE_STRING: "LargeUtf8",
    pa.lib.Type_BINARY: "Binary",
    pa.lib.Type_LARGE_BINARY: "LargeBinary",
    pa.lib.Type_DATE32: "Date32",
}

_PARAMETRISED: Mapping[int, Callable[[Any], Any]] = {
    pa.lib.Type_DECIMAL128: lambda arrow: {"Decimal128": [arrow.precision, arrow.scale]},
    pa.lib.Type_TIME64: lambda arrow: {"Time64": _UNITS[arrow.unit]},
    pa.lib.Type_TIMESTAMP: lambda arrow: {"Timestamp": [_UNITS[arrow.unit], arrow.tz]},
    pa.lib.Type_DICTIONARY: lambda arrow: {"Dictionary": [data_type(arrow.index_type), data_type(arrow.value_type)]},
    pa.lib.Type_LIST: lambda arrow: {"List": _field(arrow.value_field)},
    pa.lib.Type_LARGE_LIST: lambda arrow: {"LargeList": _field(arrow.value_field)},
    pa.lib.Type_FIXED_SIZE_LIST: lambda arrow: {"FixedSizeList": [_field(arrow.value_field), arrow.list_size]},
    pa.lib.Type_STRUCT: lambda arrow: {"Struct": [_field(field) for field in arrow]},
    pa.lib.Type_MAP: lambda arrow: {"Map": [_entries(arrow), arrow.keys_sorted]},
    pa.lib.Type_SPARSE_UNION: lambda arrow: {
        "Union": [
            [[code, _field(arrow.field(position))] for position, code in enumerate(arrow.type_codes)],
            "Sparse",
        ]
    },
}


def _entries(arrow: pa.MapType) -> dict[str, Any]:
    entries = pa.field("entries", pa.struct([arrow.key_field, arrow.item_field]), nullable=False)
    return _field(entries)
