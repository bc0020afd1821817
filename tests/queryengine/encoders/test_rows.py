"""Many rows are put together in another way than few, and by several threads: the bytes are the same."""

import runpy
import threading
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryengine.encoders import plan
from queryengine.encoders.rendering import Fragment, value_bytes
from queryengine.encoders.rows import joined_rows, row_bytes
from queryengine.engine import Encoding
from tests.queryengine.encoders.answers import declared, encode

MIXED = declared({"i": "BIGINT", "d": "DOUBLE", "s": "VARCHAR", "t": "TIMESTAMP", "n": "DECIMAL(12,2)"})


def mixed(rows: int, seed: int = 0) -> pa.RecordBatch:
    """Return rows of all shapes: nulls here and there, whole and broken numbers, fractions of all lengths."""
    numbers = range(seed, seed + rows)

    def some(values: list[object], every: int) -> list[object]:
        return [None if every and number % every == 0 else value for number, value in zip(numbers, values, strict=True)]

    return pa.record_batch(
        {
            "i": pa.array(some(list(numbers), 0), pa.int64()),
            "d": pa.array(some([number / 4 * 10.0 ** (number % 17) for number in numbers], 7), pa.float64()),
            "s": pa.array(some([f'é"{number}\n' * (number % 5) for number in numbers], 3), pa.string()),
            "t": pa.array(some([number * 10 ** (number % 8) for number in numbers], 5), pa.timestamp("us")),
            "n": pa.array(some([Decimal(number).scaleb(-2) for number in numbers], 2), pa.decimal128(12, 2)),
        }
    )


texts = st.one_of(st.none(), st.text(max_size=5))


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(data=st.data(), null=st.sampled_from(["null", ""]))
def test_many_rows_are_joined_as_few_are(data: st.DataObject, null: str) -> None:
    around = st.sampled_from([("", ""), ('"', '"'), ("[", "Z]")])
    columns = data.draw(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=7), around), min_size=1, max_size=5))
    rows = data.draw(st.integers(512, 1500))
    literals = data.draw(st.lists(st.text(max_size=4), min_size=len(columns) + 1, max_size=len(columns) + 1))
    fragments = [
        Fragment(pa.array((values * (rows + 3))[: rows + 3], pa.string()).slice(3), before, after)
        for values, (before, after) in columns
    ]

    assert bytes(row_bytes(fragments, literals, null)) == bytes(value_bytes(joined_rows(fragments, literals, null)))


@pytest.mark.parametrize("encoding", ["json", "ndjson", "csv", "vnd"])
def test_large_batches_give_what_small_ones_do_in_order(encoding: Encoding) -> None:
    large = [mixed(50_000, seed) for seed in range(0, 150_000, 50_000)]
    small = [whole.slice(first, 500) for whole in large for first in range(0, whole.num_rows, 500)]

    at_once = b"".join(encode(encoding, MIXED, large[0].schema, large))

    assert at_once == b"".join(encode(encoding, MIXED, large[0].schema, small))


def test_pieces_come_in_order_whoever_is_done_first_and_fail_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"i": pa.array(range(5), pa.int64())})
    renderers = plan.renderers(declared({"i": "BIGINT"}), batch.schema)
    monkeypatch.setattr(plan, "TEXT_PIECE_BYTES", renderers[0].size(batch.column(0)[:1]))  # a row each
    later = threading.Event()

    def render(piece: pa.RecordBatch) -> int:
        (row,) = piece.column("i").to_pylist()
        if row == 0:
            assert plan.THREADS == 1 or later.wait(30)
        elif row == 3:
            raise ZeroDivisionError
        else:
            later.set()
        return int(row)

    made = plan.texts([batch], renderers, 0, render)

    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(made)


def test_many_processors_do_not_take_the_memory_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))

    assert runpy.run_path(str(plan.__file__))["THREADS"] == 2


def test_a_thread_that_cannot_be_started_is_a_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", none_left)

    with pytest.raises(MemoryError):
        plan.in_thread(str, 1)
