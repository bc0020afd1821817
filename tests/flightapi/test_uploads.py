from __future__ import annotations

import datetime as dt
import decimal
import itertools
import re
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flightapi.errors import FlightApiError, MalformedMessageError, UploadError, UploadTooLargeError
from flightapi.protocol import messages
from flightapi.protocol.uploads import MAX_MESSAGES, MAX_VALUES, read_row
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


@pytest.mark.parametrize("column", [pytest.param(column, id=name) for name, column in TAKEN.items()])
def test_a_row_of_each_supported_type(column: pa.Array) -> None:
    row = read_row(upload(column), LIMIT)

    assert row.num_rows == 1
    assert row.column(0).type == column.type
    assert row.column(0).to_pylist() == column.to_pylist()


def test_a_row_with_all_types_at_once() -> None:
    assert read_row(upload(*TAKEN.values()), LIMIT).num_columns == len(TAKEN)


def test_an_empty_upload_means_no_parameters() -> None:
    assert read_row(upload(pa.array([], pa.int64())), LIMIT).num_rows == 0


def test_empty_messages_and_batches_are_ignored() -> None:
    table = pa.table({"a": [1]})
    sink = BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_batch(
                part.to_batches()[0] if part.num_rows else pa.record_batch([pa.array([], pa.int64())], ["a"])
            )
    described = messages.FlightData(flight_descriptor={"type": 2, "cmd": b"x"}).SerializeToString()

    row = read_row([described, *as_upload(sink.getvalue()), b""], LIMIT)

    assert row.to_pylist() == [{"a": 1}]


def test_descriptor_and_schema_in_one_message() -> None:
    first, *rest = upload(pa.array([1]))
    data = messages.FlightData.FromString(first)
    data.flight_descriptor.cmd = b"x"

    assert read_row([data.SerializeToString(), *rest], LIMIT).num_rows == 1


def test_a_body_may_be_longer_than_its_header_states() -> None:
    schema, batch = upload(pa.array([1]))
    data = messages.FlightData.FromString(batch)
    data.data_body += bytes(24)

    assert read_row([schema, data.SerializeToString()], LIMIT).to_pylist() == [{"0": 1}]


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
        data = messages.FlightData.FromString(batch)
        data.data_header = head[:place] + struct.pack("<q", -1) + head[place + 8 :]
        with pytest.raises(UploadError, match="not a valid Arrow stream"):
            read_row([schema, data.SerializeToString()], LIMIT)


def test_a_name_beyond_its_header_is_refused() -> None:
    head = named(1, 20)
    outside = head.replace(struct.pack("<I", 20), struct.pack("<I", 2000))

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([messages.FlightData(data_header=outside).SerializeToString()], LIMIT)


@pytest.mark.parametrize("text", [b"a name", b"Europe/Berlin"])
def test_names_and_zones_are_utf_8(text: bytes) -> None:
    column = pa.array([0], pa.timestamp("us", "Europe/Berlin"))
    sent = as_upload(ipc_stream(pa.table({"a name": column})))
    data = messages.FlightData.FromString(sent[0])
    data.data_header = data.data_header.replace(text, b"\xff" * len(text))

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([data.SerializeToString(), *sent[1:]], LIMIT)


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
    sink = BytesIO()
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return as_upload(sink.getvalue())


HUGE = 2**31 - 1
OFFSETS = struct.pack("<ii", 0, HUGE)


@pytest.mark.parametrize(
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
    data = messages.FlightData.FromString(last)
    assert old in data.data_body
    data.data_body = data.data_body.replace(old, new, 1)

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([*before, data.SerializeToString()], LIMIT)


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
    head = data.data_header
    places = [head.index(struct.pack("<qq", offset, 1000)) for offset in (8, 1016, 2024)]
    for place in places[1:]:
        head = head[:place] + struct.pack("<qq", 8, 1000) + head[place + 16 :]
    body_length = struct.pack("<q", len(data.data_body))
    short = 1064
    changed = messages.FlightData(
        data_header=head.replace(body_length, struct.pack("<q", short)), data_body=data.data_body[:short]
    )
    offsets = [struct.pack("<qq", offset, 8) for offset in (0, 1008, 2016)]
    for old in offsets[1:]:
        changed.data_header = changed.data_header.replace(old, offsets[0])

    with pytest.raises(UploadError, match="not a valid Arrow stream"):
        read_row([schema, changed.SerializeToString()], LIMIT)


class Flat:
    """Writes hostile flatbuffers: a table may be referred to any number of times."""

    def __init__(self) -> None:
        self.data = bytearray(8)
        self.position = 0

    def _begin(self) -> int:
        self.data += bytes(-len(self.data) % 8)
        return len(self.data)

    def table(self, fields: dict[int, bytes]) -> dict[int, int]:
        """Append a table of fields of at most 8 bytes, and return the position of each."""
        slots = [0] * (max(fields) + 1)
        for number, index in enumerate(fields, start=1):
            slots[index] = 8 * number
        vtable = self._begin()
        self.data += struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), 8 + 8 * len(fields), *slots)
        self.position = self._begin()
        self.data += struct.pack("<ii", self.position - vtable, 0)
        self.data += b"".join(value.ljust(8, b"\0") for value in fields.values())
        return {index: self.position + slots[index] for index in fields}

    def vector(self, length: int) -> list[int]:
        self.position = self._begin()
        self.data += struct.pack("<I", length) + bytes(4 * length)
        return [self.position + 4 + 4 * number for number in range(length)]

    def text(self, length: int) -> None:
        self.position = self._begin()
        self.data += struct.pack("<I", length) + b"n" * length + b"\0"

    def refer(self, *places: int) -> None:
        """Let *places* refer to the last appended part."""
        for place in places:
            self.data[place : place + 4] = struct.pack("<I", self.position - place)


def schema_message(flat: Flat) -> int:
    """Begin a Message with a Schema, and return the position of the reference to its list of fields."""
    message = flat.table({0: struct.pack("<H", 4), 1: b"\x01", 2: bytes(4), 3: bytes(8)})
    flat.refer(0)
    schema = flat.table({1: bytes(4)})
    flat.refer(message[2])
    return schema[1]


def nested(width: int, depth: int) -> bytes:
    """A schema of width ** depth fields in a few kilobytes: every item of a list refers to the same struct."""
    flat = Flat()
    place = schema_message(flat)
    for _ in range(depth):
        items = flat.vector(width)
        flat.refer(place)
        field = flat.table({2: b"\x0d", 3: bytes(4), 5: bytes(4)})
        flat.refer(*items)
        place = field[5]
        flat.table({0: b"\0"})
        flat.refer(field[3])
    flat.vector(0)
    flat.refer(place)
    return bytes(flat.data)


def named(fields: int, characters: int) -> bytes:
    """A schema of many fields that share one long name."""
    flat = Flat()
    place = schema_message(flat)
    items = flat.vector(fields)
    flat.refer(place)
    field = flat.table({0: bytes(4), 2: b"\x01", 3: bytes(4)})
    flat.refer(*items)
    flat.table({0: b"\0"})
    flat.refer(field[3])
    flat.text(characters)
    flat.refer(field[0])
    return bytes(flat.data)


def described(fields: int, characters: int) -> bytes:
    """A schema whose metadata repeats one long pair."""
    flat = Flat()
    message = flat.table({0: struct.pack("<H", 4), 1: b"\x01", 2: bytes(4), 3: bytes(8), 4: bytes(4)})
    flat.refer(0)
    schema = flat.table({1: bytes(4)})
    flat.refer(message[2])
    flat.vector(0)
    flat.refer(schema[1])
    items = flat.vector(fields)
    flat.refer(message[4])
    pair = flat.table({0: bytes(4), 1: bytes(4)})
    flat.refer(*items)
    flat.text(characters)
    flat.refer(*pair.values())
    return bytes(flat.data)


def zoned(fields: int, characters: int) -> bytes:
    """A schema of many timestamps that share one long zone."""
    flat = Flat()
    place = schema_message(flat)
    items = flat.vector(fields)
    flat.refer(place)
    field = flat.table({2: b"\x0a", 3: bytes(4)})
    flat.refer(*items)
    kind = flat.table({1: bytes(4)})
    flat.refer(field[3])
    flat.text(characters)
    flat.refer(kind[1])
    return bytes(flat.data)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(nested(100, 8), id="fields in fields"),
        pytest.param(nested(1, 70), id="fields 70 deep"),
        pytest.param(nested(100_000, 1), id="fields"),
        pytest.param(named(10_000, 100_000), id="names"),
        pytest.param(described(10_000, 100_000), id="metadata"),
        pytest.param(zoned(10_000, 100_000), id="zones"),
    ],
)
def test_a_short_header_cannot_expand_to_a_large_schema(head: bytes) -> None:
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
    changed = messages.FlightData(data_header=bytes(head), data_body=bytes(body)).SerializeToString()

    with suppress(FlightApiError):
        row = read_row([*SOUND[:message], changed, *SOUND[message + 1 :]], LIMIT)
        assert row.num_rows <= 1


@given(sent=st.lists(st.binary(max_size=100), max_size=5))
def test_random_messages_give_our_own_error(sent: list[bytes]) -> None:
    with pytest.raises(FlightApiError):
        read_row(sent, LIMIT)
