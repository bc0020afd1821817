import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from flightapi.protocol import messages
from queryengine.encoders import encode_parts, flight
from queryengine.errors import ResourceLimitError
from tests.flightapi.endpoint import table_of
from tests.queryengine.encoders.answers import declared, encode

DATA = {
    "id": ("BIGINT", pa.array(range(1000), pa.int64())),
    "word": ("ENUM('word 0')", pa.array([f"word {number % 7}" for number in range(1000)]).dictionary_encode()),
    "price": ("DECIMAL(18,2)", pa.array([Decimal(number) / 4 for number in range(1000)], pa.decimal128(18, 2))),
    "seen": (
        "TIMESTAMP WITH TIME ZONE",
        pa.array([dt.datetime(2026, 11, 21, tzinfo=dt.UTC)] * 1000, pa.timestamp("us", "Europe/Berlin")),
    ),
    "inner": ("STRUCT(a BIGINT[], b VARCHAR)", pa.array([{"a": [1, None], "b": "x"}] * 1000)),
    "nothing": ('"NULL"', pa.nulls(1000)),
}
TABLE = pa.table({name: array for name, (_, array) in DATA.items()})
COLUMNS = declared({name: type_ for name, (type_, _) in DATA.items()})


def messages_of(table: pa.Table, batch_rows: int = 400) -> list[bytes]:
    """Return the messages of a table from an engine worker."""
    chosen = tuple(column for column in COLUMNS if column.name in table.column_names)
    return list(encode("flight", chosen, table.schema, table.to_batches(max_chunksize=batch_rows)))


def test_each_chunk_of_an_answer_is_a_message() -> None:
    data = messages_of(TABLE)

    kinds = [messages.FlightData.FromString(message) for message in data]
    assert table_of(data) == TABLE
    assert len(data) == 5  # schema, dictionary, three record batches
    assert [message.HasField("flight_descriptor") or message.app_metadata for message in kinds] == [b""] * 5
    assert [bool(message.data_body) for message in kinds] == [False, True, True, True, True]
    (schema,) = messages_of(TABLE.slice(0, 0))
    assert table_of([schema]).schema == TABLE.schema


def test_a_dictionary_that_changes_is_sent_again() -> None:
    words = pa.chunked_array([pa.array(words).dictionary_encode() for words in (["a", "b"], ["a", "b"], ["c", "a"])])
    batches = pa.table({"word": words}).to_batches()

    data = list(encode("flight", declared({"word": "ENUM('a', 'b', 'c')"}), batches[0].schema, batches))

    assert table_of(data).column("word").to_pylist() == ["a", "b", "a", "b", "c", "a"]
    assert len(data) == 6


@pytest.mark.parametrize("rows", [1, 1000])
def test_messages_equal_those_of_pyarrow(rows: int) -> None:
    table = TABLE.drop_columns("word").slice(3, rows)

    *_, batch = (messages.FlightData.FromString(message) for message in messages_of(table, rows))

    expected = pa.ipc.read_message(table.to_batches()[0].serialize())
    assert batch.data_header == expected.metadata.to_pybytes()
    assert batch.data_body == expected.body.to_pybytes()


def test_a_batch_without_columns_has_an_empty_body() -> None:
    data = messages_of(pa.table({"nothing": pa.nulls(3)}))

    assert data[1].endswith(b"\xc2\x3e\x00")
    assert table_of(data).num_rows == 3


def test_bodies_are_not_copied() -> None:
    short = TABLE.select(["id"]).to_batches()[0]
    batch = pa.record_batch([pa.array(range(10_000), pa.int64())], schema=short.schema)
    body = batch.column("id").buffers()[1]

    *first, parts = encode_parts("flight", (COLUMNS[0],), batch.schema, [short, batch, batch])

    assert pa.py_buffer(parts[1]).address == body.address
    assert table_of(list(map(b"".join, [*first, parts]))).num_rows == short.num_rows + 2 * batch.num_rows


def test_a_row_that_no_message_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MAX_MESSAGE_BYTES", 1000)

    with pytest.raises(ResourceLimitError, match="2 GiB"):
        messages_of(TABLE.select(["id"]))
