"""
Clears the unused memory of Arrow arrays: values behind nulls, and bits after the last row.

The engine leaves earlier contents of its memory there, such as part of a row that only another key may see. A client
that reads the buffers would see these contents.
"""

import pyarrow as pa
import pyarrow.compute as pc

_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def cleared(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* with zeros behind its nulls. If there is nothing to clear, return *batch* itself."""
    before = batch.columns
    columns = [_cleared(column) for column in before]
    if all(new is old for new, old in zip(columns, before, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def fields_of(array: pa.StructArray) -> list[pa.Array]:
    """Return the fields of a structure, which are null where the structure is. A union has no nulls of its own."""
    # Flattening a union into a null structure crashes the process. `struct_field` takes time for each of its siblings.
    types = [field.type for field in array.type]
    if not any(map(pa.types.is_union, types)):
        return array.flatten()  # type: ignore[no-any-return]
    return [
        array.field(index) if pa.types.is_union(type_) else pc.struct_field(array, [index])
        for index, type_ in enumerate(types)
    ]


def _cleared(array: pa.Array) -> pa.Array:
    type_ = array.type
    if not (pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_)):
        return _nested(array)
    if pa.types.is_boolean(type_):
        return _flags(array) if array.null_count or len(array) % 8 else array
    return _zeroed(array) if array.null_count else array


def _nested(array: pa.Array) -> pa.Array:  # noqa: PLR0911 (one for each kind)
    """Return *array*, whose type has no fixed width, with zeros behind its nulls."""
    type_ = array.type
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(type_, _cleared(array.storage))
    if isinstance(array, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(_cleared(array.indices), array.dictionary, ordered=type_.ordered)
    if isinstance(array, pa.StructArray):
        fields = [_cleared(field) for field in fields_of(array)]
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=array.is_null()) if fields else array
    if isinstance(array, pa.MapArray):
        entries = pa.StructArray.from_arrays(
            [_cleared(array.keys), _cleared(array.items)], fields=[type_.key_field, type_.item_field]
        )
        return _rebuilt(array, 2, [entries])
    if isinstance(array, pa.ListArray | pa.LargeListArray):
        return _rebuilt(array, 2, [_cleared(array.values)])
    if isinstance(array, pa.FixedSizeListArray):
        return _rebuilt(array, 1, [_cleared(array.values)])
    if isinstance(array, pa.UnionArray):
        fields = [_cleared(array.field(index)) for index in range(type_.num_fields)]
        # The fields of a sparse union are sliced like the union, those of a dense union are whole. A union has no
        # validity buffer.
        buffers = [
            buffer.slice(array.offset * width, len(array) * width)
            for buffer, width in zip(array.buffers()[1:], (1, 4) if type_.mode == "dense" else (1,), strict=False)
        ]
        return pa.Array.from_buffers(type_, len(array), [None, *buffers], 0, 0, fields)
    if not array.null_count or pa.types.is_null(type_):
        return array
    return _rebuilt(array, 3, [])  # A null string has no bytes.


def _rebuilt(array: pa.Array, number: int, children: list[pa.Array]) -> pa.Array:
    """Return *array* with other *children*. Its first *number* buffers are its own and are kept."""
    buffers = array.buffers()[:number]
    if array.null_count and not array.offset:
        buffers[0] = _bits(buffers[0], len(array))
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset, children or None)


def _flags(array: pa.Array) -> pa.Array:
    flags = pc.invert(pc.invert(pc.fill_null(array, False)))  # The result starts at bit 0.
    return _fixed(array, _bits(flags.buffers()[1], len(array)))


def _zeroed(array: pa.Array) -> pa.Array:
    """Return *array*, which has a fixed-width type and nulls, with zeros behind the nulls."""
    width = array.type.bit_width // 8
    integer = _INTEGERS.get(array.type.bit_width)
    plain = array.view(integer or pa.binary(width))
    return _fixed(array, pc.fill_null(plain, 0 if integer else bytes(width)).buffers()[1])


def _fixed(array: pa.Array, values: pa.Buffer) -> pa.Array:
    validity = _bits(pc.is_valid(array).buffers()[1], len(array)) if array.null_count else None
    return pa.Array.from_buffers(array.type, len(array), [validity, values], array.null_count)


def _bits(buffer: pa.Buffer, count: int) -> pa.Buffer:
    """Return the first *count* bits of *buffer*, padded with zeros to a whole byte."""
    if not count % 8:
        return buffer
    bits = bytearray(buffer.slice(0, (count + 7) // 8))
    bits[-1] &= (1 << count % 8) - 1
    return pa.py_buffer(bytes(bits))
