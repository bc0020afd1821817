"""The parameters that DoPut brings: hostile until proven sound, one row at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from flightapi.errors import UploadError, UploadTooLargeError
from flightapi.protocol import messages
from flightapi.protocol.ipc import (
    ALIGNMENT,
    CONTINUATION,
    END_OF_STREAM,
    PREFIX,
    Head,
    IpcError,
    Kind,
    read_head,
    weigh,
)
from queryengine.execution.parameters import MAX_PARAMETERS

#: The most messages of one upload: a schema, a dictionary for each column, a record batch, and some that are empty.
MAX_MESSAGES: Final = MAX_PARAMETERS + 100

#: What the heads of an upload may weigh together (`ipc.weigh`): ten thousand columns with long names.
MAX_HEADS_WEIGHT: Final = 4 * 1024 * 1024

#: The most values in one upload, those inside of lists included. Names of this length count as one more.
MAX_VALUES: Final = 1_000_000
_NAME_CHARACTERS: Final = 32

_UNSOUND = "The parameters are no sound Arrow stream."
_TOO_MANY_ROWS = "The parameters have more than one row: a statement runs once for each call."

_PLAIN: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def read_row(upload: Iterable[bytes], max_bytes: int) -> pa.Table:
    """
    Return the row of parameters that the serialised FlightData messages of a DoPut bring, its descriptor ignored.

    The table has one row or none (none: no parameters) and is validated in full; its columns have types of which each
    value is one parameter.

    Args:
        upload: All messages, the first with the descriptor included. Taken only as far as they are sound.
        max_bytes: Of all messages together, counted before anything is decoded.

    Raises:
        UploadTooLargeError: There are more bytes.
        UploadError: They are no Arrow stream, or an unsound one, or of types that no parameter has, or more than one
            row.
        MalformedMessageError: One is no FlightData.
    """
    try:
        stream = b"".join(_stream(_bounded(upload, max_bytes)))
    except IpcError:
        raise UploadError(_UNSOUND) from None
    row = _decoded(stream)
    if row.num_rows > 1:
        raise UploadError(_TOO_MANY_ROWS)
    for field in row.schema:
        if not _is_parameter(field.type):
            raise UploadError(f"The parameter {field.name[:100]!r} is of a type that parameters do not have.")
    _check_sizes([chunk for column in row.columns for chunk in column.chunks], len(stream))
    return row


def _bounded(upload: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Pass on messages, and stop before there are too many, or too many bytes in them."""
    left = max_bytes
    for number, message in enumerate(upload, start=1):
        left -= len(message)
        if left < 0:
            raise UploadTooLargeError(max_bytes)
        if number > MAX_MESSAGES:
            raise UploadError("The parameters come in too many messages.")
        yield message


def _stream(upload: Iterable[bytes]) -> Iterator[bytes]:
    """Give the Arrow stream that *upload* holds; what would make much out of little is refused here."""
    budget = MAX_HEADS_WEIGHT
    rows = 0
    is_begun = False
    for message in upload:
        data = messages.parse(messages.FlightData, message)
        if not data.data_header:
            if data.data_body:
                raise IpcError
            continue  # Flight allows messages that hold application metadata only.
        head = read_head(data.data_header)
        budget = weigh(head, budget)
        if (head.kind is Kind.SCHEMA) is is_begun:
            raise UploadError("The parameters need one schema, and that first.")
        is_begun = True
        rows += _checked_rows(head)
        if rows > 1:
            raise UploadError(_TOO_MANY_ROWS)
        if len(data.data_body) < head.body_bytes:
            raise IpcError
        yield from _encapsulated(data.data_header, data.data_body[: head.body_bytes])
    if not is_begun:
        raise UploadError("The parameters have no schema.")
    yield END_OF_STREAM


def _checked_rows(head: Head) -> int:
    """Return the rows of a record batch, 0 of anything else."""
    if head.kind is Kind.SCHEMA:
        return 0
    if head.is_compressed:
        raise UploadError("The parameters are compressed: send them as they are.")
    if head.kind is not Kind.RECORD_BATCH:
        return 0
    if head.rows < 0:
        raise IpcError
    return head.rows


def _encapsulated(head: bytes, body: bytes) -> Iterator[bytes]:
    """Give one message of a stream, padded: its parts in FlightData need not be."""
    padding = -len(head) % ALIGNMENT
    yield PREFIX.pack(CONTINUATION, len(head) + padding)
    yield head
    yield bytes(padding)
    yield body


def _decoded(stream: bytes) -> pa.Table:
    """Return the rows of *stream*: batches without any left out."""
    options = pa.ipc.IpcReadOptions(use_threads=False, ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream), options=options) as reader:
            row = pa.Table.from_batches([batch for batch in reader if batch.num_rows], schema=reader.schema)
        row.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError, LookupError):
        raise UploadError(_UNSOUND) from None
    return row


def _is_parameter(kind: pa.DataType) -> bool:
    """
    Whether a whole column may be of *kind*.

    A dictionary, a view or a union holds values that many places may refer to. With one row there is one place.
    """
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if pa.types.is_union(kind):  # flightsql-dbapi sends each value so.
        return all(_is_nested(kind.field(number).type) for number in range(kind.num_fields))
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or _is_nested(kind)


def _is_nested(kind: pa.DataType) -> bool:
    """Whether a value inside a value may be of *kind*; `ipc.weigh` has bounded how deep it is."""
    if pa.types.is_struct(kind):
        return all(_is_nested(kind.field(number).type) for number in range(kind.num_fields))
    if any(is_list(kind) for is_list in _LISTS):
        return _is_nested(kind.value_type)
    return _is_plain(kind)


def _is_plain(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return isinstance(kind, pa.UuidType | pa.JsonType)
    return any(is_kind(kind) for is_kind in _PLAIN)


def _check_sizes(columns: Sequence[pa.Array], stream_bytes: int) -> None:
    """
    Check that the columns hold no more than was sent.

    Buffers may lie over each other in a body, and values of no bytes may be many.
    """
    if sum(map(_buffer_bytes, columns)) > stream_bytes:
        raise UploadError(_UNSOUND)
    if sum(map(_values, columns)) > MAX_VALUES:
        raise UploadError(f"The parameters hold more than {MAX_VALUES:,} values.")


def _buffer_bytes(array: pa.Array) -> int:
    own = sum(int(buffer.size) for buffer in array.buffers() if buffer is not None)
    return own + (_buffer_bytes(array.dictionary) if pa.types.is_dictionary(array.type) else 0)


def _values(array: pa.Array) -> int:
    """Return how many values an array holds on all its levels; the names in a struct come again with each value."""
    kind = array.type
    if any(is_list(kind) for is_list in _LISTS):
        return len(array) + _values(array.values)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        places = range(kind.num_fields)
        names = sum(len(kind.field(place).name) for place in places)
        each = 1 + names // _NAME_CHARACTERS
        return len(array) * each + sum(_values(array.field(place)) for place in places)
    return len(array)
