"""Reads and validates the parameters of DoPut: an untrusted Arrow stream of at most one row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from flightapi.errors import UploadError, UploadTooLargeError
from flightapi.protocol import messages
from flightapi.protocol.ipc import END_OF_STREAM, Header, IpcError, Kind, encapsulated, read_header, weigh
from queryengine.execution.parameters import MAX_PARAMETERS

#: The limit on messages in one upload: a schema, a dictionary for each column, a record batch, and a few empty ones.
MAX_MESSAGES: Final = MAX_PARAMETERS + 100

#: The limit on the expanded size of all headers (`ipc.weigh`): ten thousand columns with long names.
MAX_HEADERS_WEIGHT: Final = 4 * 1024 * 1024

#: The limit on values in one upload, including those inside lists. A name counts as one value per 32 characters.
MAX_VALUES: Final = 1_000_000
_NAME_CHARACTERS: Final = 32

_INVALID = "The parameters are not a valid Arrow stream."
_TOO_MANY_ROWS = "The parameters have more than one row: a call runs the statement only once."

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
    Return the row of parameters in the serialised FlightData messages of a DoPut.

    The table has one row, or none if there are no parameters, and is fully validated. Each column is one parameter.

    Args:
        upload: All messages, including the first with the descriptor, which is ignored. Reading stops at an error.
        max_bytes: The limit on all messages together, checked before decoding.

    Raises:
        UploadTooLargeError: The messages exceed *max_bytes*.
        UploadError: They are not a valid Arrow stream, have an unsupported type, or have more than one row.
        MalformedMessageError: A message is not a FlightData.
    """
    try:
        stream = b"".join(_stream(_bounded(upload, max_bytes)))
    except IpcError:
        raise UploadError(_INVALID) from None
    row = _decoded(stream)
    if row.num_rows > 1:
        raise UploadError(_TOO_MANY_ROWS)
    for field in row.schema:
        if not _is_parameter(field.type):
            raise UploadError(f"The parameter {field.name[:100]!r} has an unsupported type.")
    _check_sizes([chunk for column in row.columns for chunk in column.chunks], len(stream))
    return row


def _bounded(upload: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the messages, and fail as soon as there are too many messages or bytes."""
    left = max_bytes
    for number, message in enumerate(upload, start=1):
        left -= len(message)
        if left < 0:
            raise UploadTooLargeError(max_bytes)
        if number > MAX_MESSAGES:
            raise UploadError("The parameters are split over too many messages.")
        yield message


def _stream(upload: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the Arrow stream in *upload*, refusing headers that would expand to much more than their size."""
    budget = MAX_HEADERS_WEIGHT
    rows = 0
    is_begun = False
    for message in upload:
        data = messages.parse(messages.FlightData, message)
        if not data.data_header:
            if data.data_body:
                raise IpcError
            continue  # Flight allows messages with application metadata only.
        header = read_header(data.data_header)
        budget = weigh(header, budget)
        if (header.kind is Kind.SCHEMA) is is_begun:
            raise UploadError("The parameters must begin with a schema and have no other.")
        is_begun = True
        rows += _checked_rows(header)
        if rows > 1:
            raise UploadError(_TOO_MANY_ROWS)
        if len(data.data_body) < header.body_bytes:
            raise IpcError
        yield from encapsulated(data.data_header, data.data_body[: header.body_bytes])
    if not is_begun:
        raise UploadError("The parameters have no schema.")
    yield END_OF_STREAM


def _checked_rows(header: Header) -> int:
    """Return the number of rows of a record batch; 0 for any other kind."""
    if header.kind is Kind.SCHEMA:
        return 0
    if header.is_compressed:
        raise UploadError("The parameters are compressed: send them uncompressed.")
    if header.kind is not Kind.RECORD_BATCH:
        return 0
    if header.rows < 0:
        raise IpcError
    return header.rows


def _decoded(stream: bytes) -> pa.Table:
    """Return the rows of *stream*, ignoring empty batches."""
    options = pa.ipc.IpcReadOptions(use_threads=False, ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream), options=options) as reader:
            row = pa.Table.from_batches([batch for batch in reader if batch.num_rows], schema=reader.schema)
        row.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError, LookupError):
        raise UploadError(_INVALID) from None
    return row


def _is_parameter(kind: pa.DataType) -> bool:
    """
    Return whether a column may have the type *kind*.

    A dictionary, view or union may refer to one value many times, but a column has only one row.
    """
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if pa.types.is_union(kind):  # flightsql-dbapi sends each value as a union.
        return all(_is_nested(kind.field(number).type) for number in range(kind.num_fields))
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or _is_nested(kind)


def _is_nested(kind: pa.DataType) -> bool:
    """Return whether a nested value may have the type *kind*. `ipc.weigh` limits the depth."""
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
    Check that the columns are not larger than the upload.

    Buffers may overlap in a body, and there can be any number of values without bytes.
    """
    if sum(map(_buffer_bytes, columns)) > stream_bytes:
        raise UploadError(_INVALID)
    if sum(map(_values, columns)) > MAX_VALUES:
        raise UploadError(f"The parameters contain more than {MAX_VALUES:,} values.")


def _buffer_bytes(array: pa.Array) -> int:
    own = sum(int(buffer.size) for buffer in array.buffers() if buffer is not None)
    return own + (_buffer_bytes(array.dictionary) if pa.types.is_dictionary(array.type) else 0)


def _values(array: pa.Array) -> int:
    """Return the number of values in an array on all levels. Each struct value repeats its field names."""
    kind = array.type
    if any(is_list(kind) for is_list in _LISTS):
        return len(array) + _values(array.values)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        fields = range(kind.num_fields)
        names = sum(len(kind.field(number).name) for number in fields)
        each = 1 + names // _NAME_CHARACTERS
        return len(array) * each + sum(_values(array.field(number)) for number in fields)
    return len(array)
