"""Answers leave in pieces: nothing is pulled before it is needed, nothing is kept, and a broken answer looks broken."""

import json
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from queryengine.encoders import ENCODERS
from queryengine.encoders.plan import ARROW_PIECE_BYTES, MAX_ROW_BYTES, TEXT_PIECE_BYTES
from queryengine.engine import Encoding
from queryengine.errors import ResourceLimitError
from tests.flightapi.endpoint import table_of
from tests.queryengine.encoders.answers import declared, encode, from_arrow, strict_json

A = declared({"a": "BIGINT"})
S = declared({"s": "VARCHAR"})
TEXT_FORMATS: list[Encoding] = ["json", "csv", "vnd"]


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.array(values, pa.int64())})


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_batch_is_pulled_when_the_one_before_was_given(encoding: Encoding) -> None:
    seen: list[int] = []

    def pulled() -> Iterator[pa.RecordBatch]:
        for position in range(3):
            seen.append(position)
            yield batch(position)

    chunks = encode(encoding, A, batch().schema, pulled())
    assert seen == []
    if encoding == "flight":
        assert next(chunks)  # the schema, a message of its own

    for position in range(3):
        assert next(chunks)
        assert seen == list(range(position + 1))


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_batch_is_not_kept(encoding: Encoding) -> None:
    def ever_the_same_memory() -> Iterator[pa.RecordBatch]:
        for _ in range(40):
            yield batch(*range(20_000))

    before = pa.total_allocated_bytes()
    chunks = encode(encoding, A, batch().schema, ever_the_same_memory())
    held = max(pa.total_allocated_bytes() - before for _ in chunks)

    assert held < 8 * 1024 * 1024
    assert pa.total_allocated_bytes() <= before


@pytest.mark.parametrize("encoding", ENCODERS)
def test_empty_batches_among_others(encoding: Encoding) -> None:
    schema = batch().schema

    def encoded(*batches: pa.RecordBatch) -> bytes:
        return b"".join(encode(encoding, A, schema, batches))

    assert encoded(batch(), batch(1), batch(), batch(2), batch()) == encoded(batch(1), batch(2))
    assert encoded(batch(), batch()) == encoded()


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_failure_passes_through_and_the_answer_stays_open(encoding: Encoding) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise ResourceLimitError("memory")

    chunks = encode(encoding, A, batch().schema, failing())
    received = [next(chunks)]
    with pytest.raises(ResourceLimitError, match="memory"):
        received.extend(chunks)

    complete = b"".join(encode(encoding, A, batch().schema, [batch(1)]))
    cut_short = b"".join(received)
    assert complete.startswith(cut_short)
    if encoding in {"csv", "ndjson", "flight"}:  # These have no end of their own: what carries them must break off
        assert cut_short == complete
    else:
        assert len(cut_short) < len(complete)
    if encoding in {"json", "vnd"}:
        with pytest.raises(json.JSONDecodeError):
            json.loads(cut_short)


@pytest.mark.exhaustive
@pytest.mark.parametrize("encoding", TEXT_FORMATS)
def test_a_batch_of_long_texts_is_cut_by_bytes(encoding: Encoding) -> None:
    long = pa.record_batch({"s": pa.array(["x" * 400_000, "y", *["z" * 400_000] * 30, None])})

    chunks = list(encode(encoding, S, long.schema, [long]))

    assert max(map(len, chunks)) < TEXT_PIECE_BYTES
    assert sum(map(len, chunks)) > 31 * 400_000
    if encoding == "json":
        assert [row["s"] for row in strict_json(b"".join(chunks))] == long.column("s").to_pylist()


@pytest.mark.parametrize("encoding", ["arrow", "flight"])
def test_arrow_batches_fit_into_a_message(encoding: Encoding) -> None:
    long = pa.record_batch({"s": pa.array([str(number) * 100_000 for number in range(100)])})

    chunks = list(encode(encoding, S, long.schema, [long]))

    assert max(map(len, chunks)) < ARROW_PIECE_BYTES + 64 * 1024 < 4 * 1024 * 1024
    sent = table_of(chunks) if encoding == "flight" else pa.ipc.open_stream(b"".join(chunks)).read_all()
    assert sent == pa.Table.from_batches([long])


def test_a_large_dictionary_does_not_make_pieces_small() -> None:
    words = pa.array([f"{number:050}" for number in range(100_000)])
    column = pa.DictionaryArray.from_arrays(pa.array(range(20_000), pa.int32()), words)
    coded = pa.record_batch({"s": column})
    assert column.nbytes > ARROW_PIECE_BYTES

    chunks = list(encode("arrow", declared({"s": "ENUM('...')"}), coded.schema, [coded]))

    assert len(chunks) == 2
    assert pa.ipc.open_stream(b"".join(chunks)).read_all().column("s").to_pylist() == column.to_pylist()


def long_names() -> dict[str, tuple[str, pa.Array]]:
    return {f"{number:01000}": ("BOOLEAN", pa.array([True] * 2000)) for number in range(20)}


def long_members() -> dict[str, tuple[str, pa.Array]]:
    member = "m" * 10_000
    lists = pa.array([[{member: True}] * 10] * 200, pa.list_(pa.struct([(member, pa.bool_())])))
    return {"v": (f"STRUCT({member} BOOLEAN)[]", lists)}


def long_enum() -> dict[str, tuple[str, pa.Array]]:
    indices = pa.array([1] * 20_000, pa.int8())
    return {"v": ("ENUM('', 'e...')", pa.DictionaryArray.from_arrays(indices, pa.array(["", "e" * 1000])))}


def maps_in_unions() -> dict[str, tuple[str, pa.Array]]:
    maps = pa.array([[("k" * 1000, 1)]] * 10_000, pa.map_(pa.string(), pa.int8()))
    union = pa.UnionArray.from_sparse(pa.array([0] * 10_000, pa.int8()), [maps], ["m"])
    return {"v": ("UNION(m MAP(VARCHAR, TINYINT))", union)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [long_names, long_members, long_enum, maps_in_unions])
def test_what_is_short_in_arrow_and_long_as_text_is_cut_too(
    make: Callable[[], dict[str, tuple[str, pa.Array]]],
) -> None:
    made = make()
    columns = declared({name: type_ for name, (type_, _) in made.items()})
    wide = pa.record_batch({name: array for name, (_, array) in made.items()})

    chunks = list(encode("json", columns, wide.schema, [wide]))

    assert len(chunks) > 3
    assert max(map(len, chunks)) < TEXT_PIECE_BYTES
    assert len(strict_json(b"".join(chunks))) == wide.num_rows


@pytest.mark.parametrize("encoding", [*TEXT_FORMATS, "arrow"])
def test_a_row_beyond_the_limit_leaves_only_as_arrow(encoding: Encoding) -> None:
    huge = pa.record_batch({"s": pa.array(["x" * (MAX_ROW_BYTES // 2 + 1)])})
    chunks = encode(encoding, S, huge.schema, [huge])

    if encoding == "arrow":
        assert pa.ipc.open_stream(b"".join(chunks)).read_all().num_rows == 1
    else:
        with pytest.raises(ResourceLimitError, match="One row takes more than 128 MiB as text"):
            list(chunks)


@pytest.mark.parametrize("encoding", ["json", "csv", "arrow"])
def test_a_wide_structure_takes_time_for_each_member_once(encoding: Encoding) -> None:
    members = {f"m{number}": pa.array([number, None]) for number in range(8000)}
    array = pa.StructArray.from_arrays(list(members.values()), names=list(members))
    type_ = f"STRUCT({', '.join(f'{name} BIGINT' for name in members)})"

    started = time.process_time()
    found = from_arrow({"a": type_}, pa.record_batch([array], names=["a"]), encoding=encoding)

    assert b"m7999" in found
    assert time.process_time() - started < 10
