"""What is behind a null in the engine's memory does not leave it: it may be of a row that nobody may see."""

import pyarrow as pa
import pytest

from queryengine.encoders import arrow, flight
from queryengine.encoders.nulls import cleared
from queryengine.manifest import Column

SECRET = b"SECRET!!"


def uncleared(type_: pa.DataType) -> pa.Array:
    """Return three values of *type_*: null, none of the secret's, null."""
    width = type_.bit_width // 8
    values = SECRET * (width // 8 or 1)
    data = values[:width] + bytes(width) + values[:width]
    return pa.Array.from_buffers(type_, 3, [pa.py_buffer(b"\x02"), pa.py_buffer(data)])


LONGS = uncleared(pa.int64())
FIXED = (
    *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.date32(), pa.time64("us")),
    *(pa.timestamp("us", "UTC"), pa.duration("us"), pa.month_day_nano_interval(), pa.decimal128(38), pa.decimal256(70)),
    pa.binary(16),
)
NESTED = {
    "struct": pa.StructArray.from_arrays([LONGS, pa.array([1, 2, 3])], names=["a", "b"]),
    "list": pa.ListArray.from_arrays(pa.array([0, 2, 3, 3], pa.int32()), LONGS),
    "list of structs": pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 3], pa.int32()), pa.StructArray.from_arrays([LONGS], names=["a"])
    ),
    "map": pa.MapArray.from_arrays(pa.array([0, 2, 3, 3], pa.int32()), pa.array(["a", "b", "c"]), LONGS),
    "array": pa.FixedSizeListArray.from_arrays(LONGS, 1),
    "dictionary": pa.DictionaryArray.from_arrays(uncleared(pa.int32()), pa.array(["a"])),
    "union": pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [LONGS]),
    "dense union": pa.UnionArray.from_dense(pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [LONGS]),
    "struct of a union": pa.StructArray.from_arrays(
        [pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [LONGS])],
        names=["a"],
        mask=pa.array([True, False, False]),
    ),
}


def sent(array: pa.Array) -> bytes:
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    messages = flight.messages(batch.schema, arrow.cut(batch.schema, [batch]))
    return b"".join(part for parts in messages for part in parts)


@pytest.mark.parametrize("array", [*map(uncleared, FIXED), *NESTED.values()], ids=[*map(str, FIXED), *NESTED])
def test_nothing_is_behind_a_null(array: pa.Array) -> None:
    (column,) = cleared(pa.RecordBatch.from_arrays([array], names=["v"])).columns

    column.validate(full=True)
    assert column.equals(array)
    assert SECRET not in sent(array)


def test_a_batch_without_nulls_is_not_copied() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], names=["a", "b"])

    assert cleared(batch) is batch


@pytest.mark.parametrize("valid", [b"\xf2", None], ids=["nulls", "no nulls"])
def test_bits_behind_nulls_and_the_last_one(valid: bytes | None) -> None:
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(b"\xff")]
    array = pa.Array.from_buffers(pa.bool_(), 3, buffers)
    (column,) = cleared(pa.RecordBatch.from_arrays([array], names=["v"])).columns

    assert column.equals(array)
    validity, values = column.buffers()
    assert values.to_pybytes()[:1] == (b"\x02" if valid else b"\x07")
    assert valid is None or validity.to_pybytes() == b"\x02"


@pytest.mark.parametrize("array", [pa.array([True, None, False] * 11), pa.array([True, False, True, True] * 9)])
@pytest.mark.parametrize("start", range(9))
def test_a_part_of_an_array(array: pa.Array, start: int) -> None:
    numbers = pa.array([None if flag.as_py() is None else 7 for flag in array])
    texts = pa.array([None if flag.as_py() is None else "a" for flag in array])
    kinds = pa.array([number % 2 for number in range(len(array))], pa.int8())
    sparse = pa.UnionArray.from_sparse(kinds, [numbers, texts])
    dense = pa.UnionArray.from_dense(kinds, pa.array(range(len(array)), pa.int32()), [numbers, texts])
    part = pa.RecordBatch.from_arrays([array, numbers, texts, sparse, dense], names=list("abcde")).slice(start, 13)

    assert cleared(part).equals(part)


def test_the_last_bit_of_texts() -> None:
    buffers = [pa.py_buffer(b"\xfe"), pa.py_buffer(bytes(8) + b"\1\0\0\0"), pa.py_buffer(b"a")]
    array = pa.Array.from_buffers(pa.string(), 2, buffers)
    (column,) = cleared(pa.RecordBatch.from_arrays([array], names=["v"])).columns

    assert column.to_pylist() == [None, "a"]
    assert column.buffers()[0].to_pybytes() == b"\x02"


def test_a_stream_is_cleared_too() -> None:
    batch = pa.RecordBatch.from_arrays([LONGS], names=["v"])
    parts = arrow.encode([Column(name="v", type="BIGINT")], batch.schema, [batch])

    assert SECRET not in b"".join(bytes(part) for one in parts for part in one)
