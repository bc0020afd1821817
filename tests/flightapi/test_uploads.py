import datetime as dt
import decimal
import itertools
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flightapi.errors import FlightApiError, MalformedMessageError, UploadError, UploadTooLargeError
from flightapi.protocol import messages
from flightapi.protocol.uploads import MAX_MESSAGES, MAX_VALUES, read_row
from tests.corpus import each
from tests.flightapi.endpoint import as_upload, ipc_stream

LIMIT = 16 * 1024 * 1024

ONE_OF_TWO = pa.UnionArray.from_dense(
    pa.array([1], pa.int8()), pa.array([0], pa.int32()), [pa.array([], pa.int32()), pa.array(["x"])]
)
TAKEN = {
    "null": pa.nulls(1),
    "bool": pa.array([True]),
    "integer": pa.array([2**63 - 1]),
    "half": pa.array([1.5], pa.float16()),
    "double": pa.array([None], pa.float64()),
    "decimal": pa.array([decimal.Decimal("1.50")], pa.decimal256(50, 2)),
    "text": pa.array(["ä"]),
    "large text": pa.array(["ä"], pa.large_string()),
    "text view": pa.array(["a text of more than twelve bytes"], pa.string_view()),
    "bytes": pa.array([b"\0"]),
    "bytes view": pa.array([b"\0"], pa.binary_view()),
    "fixed bytes": pa.array([b"ab"], pa.binary(2)),
    "date": pa.array([dt.date(2026, 11, 21)]),
    "time": pa.array([dt.time(1)]),
    "moment": pa.array([dt.datetime(2026, 11, 21, tzinfo=dt.UTC)], pa.timestamp("ns", "Europe/Berlin")),
    "duration": pa.array([dt.timedelta(1)]),
    "uuid": pa.array([uuid.UUID(int=1)]),
    "json": pa.array(["{}"], pa.json_()),
    "list": pa.array([[[1], None, []]]),
    "large list": pa.array([[1]], pa.large_list(pa.int8())),
    "fixed list": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
    "struct": pa.array([{"a": {"b": [1]}}]),
    "dictionary": pa.array(["x"]).dictionary_encode(),
    "union": ONE_OF_TWO,
    "sparse union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
}


def upload(*columns: pa.Array, **options: Any) -> list[bytes]:
    return as_upload(ipc_stream(pa.table(list(columns), names=[str(n) for n in range(len(columns))]), **options))


@each("column", [pytest.param(column, id=name) for name, column in TAKEN.items()])
def test_a_row_of_each_supported_type(column: pa.Array) -> None:
    row = read_row(upload(column), LIMIT)

    assert row.num_rows == 1
    assert row.column(0).type == column.type
    assert row.column(0).to_pylist() == column.to_pylist()


def edited(message: bytes, **fields: bytes) -> bytes:
    """Return a FlightData message with other *fields*."""
    data = messages.FlightData.FromString(message)
    for name, value in fields.items():
        setattr(data, name, value)
    return bytes(data.SerializeToString())


def test_empty_messages_and_batches_are_ignored() -> None:
    schema, batch = upload(pa.array([1]))
    _, empty = unvalidated(pa.array([], pa.int64()))
    described = messages.FlightData(flight_descriptor={"type": 2, "cmd": b"x"}).SerializeToString()

    assert read_row([schema, empty], LIMIT).num_rows == 0
    assert read_row([described, schema, empty, batch, empty, b""], LIMIT).to_pylist() == [{"0": 1}]


def test_descriptor_and_schema_in_one_message() -> None:
    first, *rest = upload(pa.array([1]))
    described = messages.FlightData(flight_descriptor={"cmd": b"x"}).SerializeToString()

    assert read_row([first + described, *rest], LIMIT).num_rows == 1


def test_a_body_may_be_longer_than_its_header_states() -> None:
    schema, batch = upload(pa.array([1]))
    body = messages.FlightData.FromString(batch).data_body

    assert read_row([schema, edited(batch, data_body=body + bytes(24))], LIMIT).to_pylist() == [{"0": 1}]


@each(
    "column",
    [
        pytest.param(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), id="map"),
        pytest.param(pa.array([[1]], pa.list_view(pa.int64())), id="list view"),
        pytest.param(pa.array([["a"]], pa.list_(pa.string_view())), id="views in a list"),
        pytest.param(pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), id="dictionary in a list"),
        pytest.param(pa.StructArray.from_arrays([ONE_OF_TWO], ["u"]), id="union in a struct"),
        pytest.param(pa.array([pa.MonthDayNano([1, 1, 1])]), id="interval"),
        pytest.param(pa.RunEndEncodedArray.from_arrays([1], [1]), id="run ends"),
        pytest.param(pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "a", "b"), pa.array([b"x"])), id="opaque"),
    ],
)
def test_unsupported_types_are_refused(column: pa.Array) -> None:
    with pytest.raises(UploadError, match="has an unsupported type"):
        read_row(upload(column), LIMIT)


@pytest.mark.parametrize("rows", [2, 1000])
def test_more_than_one_row_is_refused(rows: int) -> None:
    with pytest.raises(UploadError, match="more than one row"):
        read_row(upload(pa.array(range(rows))), LIMIT)


def test_a_second_batch_is_refused_before_the_rest_is_read() -> None:
    schema, batch = upload(pa.array([1]))

    def endless() -> Iterator[bytes]:
        yield schema
        yield batch
        yield batch
        raise AssertionError("more is read than one row")

    with pytest.raises(UploadError, match="more than one row"):
        read_row(endless(), LIMIT)


def test_bytes_are_counted_before_anything_is_read() -> None:
    with pytest.raises(UploadTooLargeError, match="more than 1,000 bytes"):
        read_row([b"\xff" * 1001], 1000)
    with pytest.raises(UploadTooLargeError):
        read_row(itertools.repeat(b"\x12\x00"), 1000)


def test_messages_are_counted_even_when_they_are_empty() -> None:
    with pytest.raises(UploadError, match="too many messages"):
        read_row(itertools.repeat(b"", MAX_MESSAGES + 1), LIMIT)


@each(
    "sent",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"", b""], id="empty messages"),
        pytest.param(upload(pa.array([1]))[1:], id="no schema first"),
        pytest.param(upload(pa.array([1])) + upload(pa.array([1])), id="two schemas"),
        pytest.param([messages.FlightData(data_body=b"x").SerializeToString()], id="a body without a head"),
        pytest.param([messages.FlightData(data_header=b"x").SerializeToString()], id="a head of one byte"),
        pytest.param([messages.FlightData(data_header=bytes(64)).SerializeToString()], id="a head of zeros"),
        pytest.param(upload(pa.array(["x"]), pa.array(["x"]).dictionary_encode())[::2], id="no dictionary"),
    ],
)
def test_an_invalid_arrow_stream_is_refused(sent: list[bytes]) -> None:
    with pytest.raises(UploadError):
        read_row(sent, LIMIT)


def test_a_negative_row_count_is_refused() -> None:
    schema, batch = upload(pa.array([7]))
    head = messages.FlightData.FromString(batch).data_header
    places = [found.start() for found in re.finditer(struct.pack("<q", 1), head)]
    assert len(places) == 2  # of the batch and of its column

    for place in places:
        changed = head[:place] + struct.pack("<q", -1) + head[place + 8 :]
        with pytest.raises(UploadError, match="not a valid Arrow stream"):
            read_row([schema, edited(batch, data_header=changed)], LIMIT)


def test_a_name_beyond_its_header_is_refused() -> None:
    head = named(1, 20)
    outside = head.replace(struct.pack("<I", 20), struct.pack("<I", 2000))

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([messages.FlightData(data_header=outside).SerializeToString()], LIMIT)


@pytest.mark.parametrize("text", [b"a name", b"Europe/Berlin"])
def test_names_and_zones_are_utf_8(text: bytes) -> None:
    table = pa.table({"a name": pa.array([0], pa.timestamp("us", "Europe/Berlin"))})
    schema, batch = as_upload(ipc_stream(table))
    header = messages.FlightData.FromString(schema).data_header.replace(text, b"\xff" * len(text))

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([edited(schema, data_header=header), batch], LIMIT)


def test_anything_but_flight_data_is_refused() -> None:
    with pytest.raises(MalformedMessageError):
        read_row([b"\xff\xff"], LIMIT)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize(
    "column",
    [pa.array(["x" * 1_000_000]), pa.array(["x" * 1_000_000]).dictionary_encode()],
    ids=["plain", "dictionary"],
)
def test_compressed_buffers_are_refused(codec: str, column: pa.Array) -> None:
    sent = upload(column, compression=codec)

    assert sum(map(len, sent)) < 100_000
    with pytest.raises(UploadError, match="compressed"):
        read_row(sent, LIMIT)


def of_buffers(kind: pa.DataType, *buffers: bytes | None, children: Sequence[pa.Array] = ()) -> pa.Array:
    """An array of one value over buffers that are not validated."""
    made = [None if data is None else pa.py_buffer(data) for data in buffers]
    return pa.Array.from_buffers(kind, 1, made, children=list(children))


def unvalidated(array: pa.Array) -> list[bytes]:
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    return as_upload(batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes())


HUGE = 2**31 - 1
OFFSETS = struct.pack("<ii", 0, HUGE)


@each(
    ("array", "old", "new"),
    [
        pytest.param(pa.array(["ab"]), struct.pack("<ii", 0, 2), struct.pack("<ii", 2, 0), id="a negative length"),
        pytest.param(pa.array(["ab"]), struct.pack("<ii", 0, 2), struct.pack("<ii", 0, 99), id="text outside"),
        pytest.param(pa.array(["ab"]), struct.pack("<ii", 0, 2), struct.pack("<ii", -9, 2), id="text before"),
        pytest.param(pa.array(["ab"]), b"ab", b"\xff\xff", id="no UTF-8"),
        pytest.param(pa.array(["x"]).dictionary_encode(), bytes(4), b"\x05\0\0\0", id="index outside"),
        pytest.param(pa.array([[7]]), struct.pack("<ii", 0, 1), struct.pack("<ii", 0, 100), id="a list outside"),
        pytest.param(
            pa.array([decimal.Decimal(7)], pa.decimal128(3, 0)), b"\x07\0\0", b"\xff\xff\xff", id="too many digits"
        ),
        pytest.param(ONE_OF_TWO, b"\x01" + bytes(7), b"\x07" + bytes(7), id="no such kind"),
        pytest.param(ONE_OF_TWO, b"\x01" + bytes(11), b"\x01" + bytes(7) + b"\x09\0\0\0", id="union outside"),
    ],
)
def test_invalid_values_are_refused(array: pa.Array, old: bytes, new: bytes) -> None:
    *before, last = upload(array)
    body = messages.FlightData.FromString(last).data_body
    assert old in body

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([*before, edited(last, data_body=body.replace(old, new, 1))], LIMIT)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(pa.nulls(1, pa.list_(pa.null(), HUGE)), id="a fixed list"),
        pytest.param(of_buffers(pa.list_(pa.null()), None, OFFSETS, children=[pa.nulls(HUGE)]), id="a list"),
        pytest.param(
            of_buffers(
                pa.list_(pa.binary(0)),
                None,
                OFFSETS,
                children=[pa.Array.from_buffers(pa.binary(0), HUGE, [None, pa.py_buffer(b"")])],
            ),
            id="values of no bytes",
        ),
        pytest.param(pa.array([[True] * (MAX_VALUES + 1)]), id="bits"),
        pytest.param(pa.array([[{"n" * 1000: None}] * (MAX_VALUES // 30)]), id="structs of long names"),
    ],
)
def test_values_without_bytes_are_bounded(array: pa.Array) -> None:
    with pytest.raises(UploadError, match="more than 1,000,000 values"):
        read_row(unvalidated(array), LIMIT)


def test_a_list_of_many_values() -> None:
    assert len(read_row(upload(pa.array([[1] * (MAX_VALUES - 1)])), LIMIT).column(0)[0]) == MAX_VALUES - 1


def test_overlapping_buffers_are_refused() -> None:
    schema, batch = upload(*[pa.array([b"x" * 1000])] * 3)
    data = messages.FlightData.FromString(batch)
    header, length = data.data_header, 1064
    for start in (1008, 2016):  # each column has 8 bytes of offsets, then 1,000 bytes of values
        for column, first in ((start, 0), (start + 8, 8)):
            size = struct.pack("<q", 8 if first == 0 else 1000)
            assert struct.pack("<q", column) + size in header
            header = header.replace(struct.pack("<q", column) + size, struct.pack("<q", first) + size)
    header = header.replace(struct.pack("<q", len(data.data_body)), struct.pack("<q", length))

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([schema, edited(batch, data_header=header, data_body=data.data_body[:length])], LIMIT)


#: A part of a flatbuffer: a table by the indexes of its fields, a vector, a text, or the bytes of a number.
Part = dict[int, Any] | list[Any] | str | bytes


def flatbuffer(root: Part) -> bytes:
    """Serialise a hostile flatbuffer: a part that is used many times is written once, and referred to."""
    data = bytearray(4)
    written: dict[int, int] = {}

    def write(part: Part, reference: int) -> None:
        if id(part) not in written:
            data.extend(bytes(-len(data) % 8))
            written[id(part)] = len(data)
            references: list[tuple[Part, int]] = []
            if isinstance(part, str):
                data.extend(struct.pack("<I", len(part)) + part.encode() + b"\0")
            elif isinstance(part, list):
                references = [(item, len(data) + 4 + 4 * number) for number, item in enumerate(part)]
                data.extend(struct.pack("<I", len(part)) + bytes(4 * len(part)))
            elif isinstance(part, dict):
                slots = [0] * (max(part) + 1)
                for number, index in enumerate(part, start=1):
                    slots[index] = 8 * number
                vtable = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), 8 + 8 * len(part), *slots)
                vtable += bytes(-len(vtable) % 8)
                data.extend(vtable)
                written[id(part)] = len(data)
                references = [(value, len(data) + slots[index]) for index, value in part.items()]
                data.extend(struct.pack("<ii", len(vtable), 0))
                data.extend(
                    b"".join(value.ljust(8, b"\0") if isinstance(value, bytes) else bytes(8) for value in part.values())
                )
            for value, place in references:
                if not isinstance(value, bytes):
                    write(value, place)
        data[reference : reference + 4] = struct.pack("<I", written[id(part)] - reference)

    write(root, 0)
    return bytes(data)


def schema_of(fields: list[Part], metadata: list[Part] | None = None) -> bytes:
    """Return a Message with a Schema."""
    return flatbuffer({0: struct.pack("<H", 4), 1: b"\x01", 2: {1: fields}, 3: bytes(8), 4: metadata or []})


def nested(width: int, depth: int) -> bytes:
    """A schema of width ** depth fields in a few kilobytes: every item of a list refers to the same struct."""
    fields: list[Part] = []
    for _ in range(depth):
        fields = [{2: b"\x0d", 3: {0: b"\0"}, 5: fields}] * width
    return schema_of(fields)


def named(fields: int, characters: int) -> bytes:
    """A schema of many fields that share one long name."""
    return schema_of([{0: "n" * characters, 2: b"\x01", 3: {0: b"\0"}}] * fields)


def described(pairs: int, characters: int) -> bytes:
    """A schema whose metadata repeats one long pair."""
    text = "n" * characters
    return schema_of([], [{0: text, 1: text}] * pairs)


def zoned(fields: int, characters: int) -> bytes:
    """A schema of many timestamps that share one long zone."""
    return schema_of([{2: b"\x0a", 3: {1: "n" * characters}}] * fields)


@each(
    ("write", "count", "size"),
    [
        pytest.param(nested, 100, 8, id="fields in fields"),
        pytest.param(nested, 1, 70, id="fields 70 deep"),
        pytest.param(nested, 100_000, 1, id="fields"),
        pytest.param(named, 10_000, 100_000, id="names"),
        pytest.param(described, 10_000, 100_000, id="metadata"),
        pytest.param(zoned, 10_000, 100_000, id="zones"),
    ],
)
def test_a_short_header_cannot_expand_to_a_large_schema(
    write: Callable[[int, int], bytes], count: int, size: int
) -> None:
    head = write(count, size)

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([messages.FlightData(data_header=head).SerializeToString()], LIMIT)


def test_small_headers_of_the_hostile_writer_are_valid() -> None:
    for head, columns in ((nested(3, 1), 3), (named(2, 5), 2), (zoned(4, 3), 4), (described(2, 2), 0)):
        row = read_row([messages.FlightData(data_header=head).SerializeToString()], LIMIT)
        assert (row.num_rows, row.num_columns) == (0, columns)


SOUND = upload(*(column for name, column in TAKEN.items() if name not in ("null", "json")))


@settings(max_examples=300)
@given(
    message=st.integers(0, len(SOUND) - 1),
    edits=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    ),
    is_cut=st.booleans(),
)
def test_hostile_bytes_give_a_row_or_our_own_error(
    message: int, edits: list[tuple[float, bytes]], is_cut: bool
) -> None:
    data = messages.FlightData.FromString(SOUND[message])
    head, body = bytearray(data.data_header), bytearray(data.data_body)
    for at, change in edits:
        place = int(at * (len(head) + len(body)))
        part, place = (head, place) if place < len(head) else (body, place - len(head))
        part[place : place + len(change)] = change[: len(part) - place]
    if is_cut:
        del body[len(body) // 2 :]
    changed = edited(SOUND[message], data_header=bytes(head), data_body=bytes(body))

    with suppress(FlightApiError):
        row = read_row([*SOUND[:message], changed, *SOUND[message + 1 :]], LIMIT)
        assert row.num_rows <= 1


@given(sent=st.lists(st.binary(max_size=100), max_size=5))
def test_random_messages_give_our_own_error(sent: list[bytes]) -> None:
    with pytest.raises(FlightApiError):
        read_row(sent, LIMIT)
