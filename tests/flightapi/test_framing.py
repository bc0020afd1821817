from __future__ import annotations

import datetime as dt
import decimal
import itertools
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightapi.errors import AnswerCutError
from flightapi.protocol import framing, messages, schemas
from queryengine.catalog import Column
from queryengine.encoders.arrow import encode
from tests.flightapi.streams import in_pieces, ipc_stream, reread

END = b"\xff\xff\xff\xff\0\0\0\0"
TABLE = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "word": pa.array([f"word {number % 7}" for number in range(1000)]).dictionary_encode(),
        "price": pa.array([decimal.Decimal(number) / 4 for number in range(1000)], pa.decimal128(18, 2)),
        "seen": pa.array([dt.datetime(2026, 11, 21, tzinfo=dt.UTC)] * 1000, pa.timestamp("us", "Europe/Berlin")),
        "inner": pa.array([{"a": [1, None], "b": "x"}] * 1000),
        "nothing": pa.nulls(1000),
    }
)
STREAM = ipc_stream(TABLE)


@pytest.mark.parametrize("length", [1, 7, 8, 4096, len(STREAM)])
def test_a_stream_becomes_flight_data_wherever_its_chunks_end(length: int) -> None:
    data = list(framing.flight_data(in_pieces(STREAM, length)))

    kinds = [messages.FlightData.FromString(message) for message in data]
    assert reread(data) == TABLE
    assert len(data) == 3  # schema, dictionary, record batch
    assert [message.HasField("flight_descriptor") or message.app_metadata for message in kinds] == [b""] * 3
    assert [bool(message.data_body) for message in kinds] == [False, True, True]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_chunks_may_be_empty_and_of_any_length(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[begin:end] for begin, end in itertools.pairwise(edges)]

    assert reread(framing.flight_data(chunks)) == TABLE


def test_what_the_engine_encodes_is_read_as_it_was() -> None:
    batches = TABLE.select(["id", "nothing"]).to_batches()
    columns = [Column(name="id", type="BIGINT"), Column(name="nothing", type='"NULL"')]

    data = list(framing.flight_data(encode(columns, batches[0].schema, batches)))

    assert reread(data) == TABLE.select(["id", "nothing"])


def test_an_empty_answer_keeps_its_schema() -> None:
    data = list(framing.flight_data([ipc_stream(TABLE.slice(0, 0).select(["id"]))]))

    assert reread(data).schema == TABLE.select(["id"]).schema


def test_a_batch_without_a_body_says_that_it_has_none() -> None:
    data = list(framing.flight_data([ipc_stream(pa.table({"n": pa.nulls(3)}))]))

    assert data[1].endswith(b"\xc2\x3e\x00")
    assert reread(data).num_rows == 3


def test_messages_are_given_as_soon_as_they_are_whole() -> None:
    taken = 0

    def chunks() -> Iterator[bytes]:
        nonlocal taken
        for chunk in in_pieces(STREAM, 64):
            taken += 1
            yield chunk

    data = framing.flight_data(chunks())
    next(data)

    assert taken * 64 < len(STREAM) / 2


@pytest.mark.parametrize("kept", [0, 4, 8, 100, len(STREAM) - len(END), len(STREAM) - 1])
def test_a_stream_that_was_cut_is_an_error(kept: int) -> None:
    with pytest.raises(AnswerCutError, match="broke off"):
        list(framing.flight_data([STREAM[:kept]]))


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(STREAM + b"x", id="bytes after the end"),
        pytest.param(END, id="no schema"),
        pytest.param(STREAM[: -len(END)] + STREAM, id="two schemas"),
        pytest.param(STREAM[STREAM.index(b"\xff\xff\xff\xff", 8) :], id="a batch first"),
        pytest.param(b"\0\0\0\0" + STREAM, id="no continuation marker"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\xff\xff", id="a negative length"),
        pytest.param(b"\xff\xff\xff\xff\x02\0\0\0ab", id="a head of two bytes"),
        pytest.param(b"\xff\xff\xff\xff\x08\0\0\0\xff\xff\xff\x7f\0\0\0\0", id="a head that points outside"),
    ],
)
def test_what_is_no_arrow_stream_is_an_error(stream: bytes) -> None:
    with pytest.raises(AnswerCutError):
        list(framing.flight_data([stream]))


@pytest.mark.parametrize("announced", [-1, 2**31, 2**62])
def test_a_body_that_no_message_can_have_is_an_error(announced: int) -> None:
    body = messages.FlightData.FromString(list(framing.flight_data([STREAM]))[2]).data_body
    length = struct.pack("<q", len(body))
    assert length in STREAM

    with pytest.raises(AnswerCutError):
        list(framing.flight_data([STREAM.replace(length, struct.pack("<q", announced))]))


def test_an_error_of_the_engine_passes_through() -> None:
    def chunks() -> Iterator[bytes]:
        yield STREAM[:-100]
        raise TimeoutError

    with pytest.raises(TimeoutError):
        list(framing.flight_data(chunks()))


def test_a_table_is_cut_into_messages_below_4_mib() -> None:
    table = pa.table({"text": ["x" * 100_000] * 100})

    data = list(framing.table_data(table))

    assert max(map(len, data)) < 4 * 1024 * 1024
    assert reread(data) == table


def test_a_schema_travels_as_an_encapsulated_message() -> None:
    encapsulated = schemas.encapsulated(TABLE.schema)

    assert encapsulated[:4] == b"\xff\xff\xff\xff"
    assert int.from_bytes(encapsulated[4:8], "little") == len(encapsulated) - 8
    assert pa.ipc.read_schema(pa.py_buffer(encapsulated)) == TABLE.schema


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        pytest.param({"10", "2", "1"}, ["$1", "$2", "$10"], id="numbered"),
        pytest.param({"b", "a"}, ["a", "b"], id="named"),
    ],
)
def test_parameters_are_announced_in_their_order(names: set[str], fields: list[str]) -> None:
    schema = schemas.parameter_schema(names)

    assert schema == pa.schema([pa.field(name, pa.null()) for name in fields])


def test_a_statement_without_parameters_announces_none() -> None:
    assert schemas.parameter_schema(frozenset()) is None
