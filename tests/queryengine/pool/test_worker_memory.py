"""The memory of an engine worker: what a statement may use, and what the worker gives back."""

import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from queryengine.pool.frames import FrameDecoder, Kind
from queryengine.pool.worker import SPARE_BYTES
from runtimeconf.model import MIB, DatasetRule, Scope
from tests.queryengine.bare_engine import Engine, receive, running, still_works
from tests.queryengine.publishing import Publisher, wait_until

LIMIT_MIB = 256

HUNGRY = {
    "aggregate": "SELECT string_agg(repeat('a', 1000000), '') FROM range(100000)",
    "list": "SELECT list_sort(range(50000000))",
    "text": "SELECT repeat('a', 4000000000)",
    "sort": "SELECT unnest(range(100000000)) AS x ORDER BY x",
    "damerau": "SELECT damerau_levenshtein(repeat('a', 20000), repeat('b', 20000))",
    "rows": "SELECT list(repeat('x', 1000) || i) FROM range(3000000) t(i)",
    "answer": "SELECT repeat('a', 100000000) AS a FROM range(20)",
}


def private_bytes(worker: int) -> int:
    status = Path(f"/proc/{worker}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.parametrize("name", HUNGRY)
def test_a_statement_that_exhausts_memory_ends_and_gives_it_back(mortal: Engine, name: str) -> None:
    still_works(mortal)
    base = private_bytes(mortal.worker())

    answer = mortal.ask(HUNGRY[name], timeout_s=10.0)

    assert answer.is_cut or answer.code in {"resource_limit", "query_timeout"}
    still_works(mortal)
    assert private_bytes(mortal.worker()) < base + 64 * MIB


def peak_bytes(worker: int) -> int:
    """Return the largest private memory, since `clear_refs` was written or the start."""
    status = Path(f"/proc/{worker}/status").read_text()
    peak, shared = (int(status.partition(name)[2].split()[0]) * 1024 for name in ("VmHWM:", "RssFile:"))
    return peak - shared


def streamed(connection: socket.socket) -> Iterator[tuple[Kind, bytes]]:
    """Give the frames of an answer, until its end."""
    decoder = FrameDecoder()
    for data in iter(partial(connection.recv, MIB), b""):
        for kind, payload in decoder.feed(data):
            yield kind, payload
            if kind is Kind.END:
                return


@pytest.mark.exhaustive
def test_memory_stays_within_its_limit(mortal: Engine) -> None:
    still_works(mortal)
    base = private_bytes(worker := mortal.worker())
    Path(f"/proc/{worker}/clear_refs").write_text("5")  # resets the peak

    for name in ("aggregate", "damerau", "rows"):
        mortal.ask(HUNGRY[name], timeout_s=10.0)

    peak = peak_bytes(worker) if mortal.worker() == worker else 0
    assert peak < base + LIMIT_MIB * MIB + SPARE_BYTES


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sql", "encoding", "rows"),
    [
        pytest.param("SELECT * FROM range(20000000)", "json", 20_000_000, id="L10 many rows, JSON"),
        pytest.param("SELECT * FROM range(20000000)", "csv", 20_000_000, id="L10 many rows, CSV"),
        pytest.param("SELECT repeat('x', 20000) || range AS v FROM range(50000)", "json", 50_000, id="L10 wide rows"),
    ],
)
def test_l10_a_large_answer_streams_in_little_memory(state_dir: Path, sql: str, encoding: str, rows: int) -> None:
    with running(state_dir, memory_limit_bytes=1024 * MIB, timeout_s=300.0) as engine:
        base = private_bytes(worker := engine.worker())
        size, last = 0, b""
        with engine.send(sql, encoding=encoding) as connection:
            for _, last in streamed(connection):
                size += len(last)
        grown = peak_bytes(worker) - base

    assert json.loads(last)["timings"]["rows"] == rows
    assert size > rows * 8
    assert grown < 300 * MIB


@pytest.mark.exhaustive
def test_heavy_statements_that_spill_work_again_and_again(state_dir: Path) -> None:
    grouped = "SELECT count(*) AS n FROM (SELECT i % 3000000 AS k, max(i) FROM range(6000000) t(i) GROUP BY k)"
    ordered = "SELECT hash(i) AS h, repeat('x', 100) || i AS s FROM range(2000000) t(i) ORDER BY h"

    with running(state_dir, timeout_s=300.0) as engine:
        worker = engine.worker()
        answers = [engine.ask(grouped) for _ in range(3)]
        with engine.send(ordered, encoding="arrow") as connection:
            *_, last = (frame for frame in streamed(connection) if frame[0] is not Kind.DATA)

        assert [answer.data for answer in answers] == [b'[{"n":3000000}]'] * 3
        assert last[0] is Kind.END, last
        assert engine.worker() == worker


@pytest.mark.exhaustive
def test_a_worker_that_keeps_too_much_memory_is_replaced(state_dir: Path) -> None:
    with running(state_dir, constants={"SLACK_BYTES": -MIB, "WORN_BYTES": -1024 * MIB}) as engine:
        worker = engine.worker()

        assert engine.ask("SELECT sum(i) AS n FROM range(50000000) t(i)").end is not None

        wait_until(lambda: worker not in engine.workers())
        still_works(engine)


def test_an_idle_worker_frees_its_cache_of_snapshots(state_dir: Path) -> None:
    Publisher(state_dir).publish(flights="SELECT i AS id, hash(i) AS h, md5(i::VARCHAR) AS s FROM range(500000) t(i)")
    read = "SELECT sum(id)::BIGINT AS n, max(h) > 0 AND max(s) > '' AS ok FROM flights"
    with running(state_dir, constants={"CACHE_S": 2.0}) as engine:
        worker = engine.worker()
        base = private_bytes(worker)

        for _ in range(2):
            assert engine.ask(read).data == b'[{"n":124999750000,"ok":true}]'
            assert private_bytes(worker) > base + 12 * MIB

            wait_until(lambda: private_bytes(worker) < base + 6 * MIB)
        assert engine.worker() == worker


def test_the_copies_for_keys_do_not_wear_a_worker_out(state_dir: Path) -> None:
    def ask(number: int) -> bytes:
        rule = DatasetRule(dataset="flights", row_filter=f"id <> {number}")
        scope = Scope(relations=frozenset({"flights"}), rules=(rule,))
        return engine.ask("SELECT count(*) AS n FROM flights", scope=scope).data

    with running(state_dir, constants={"SLACK_BYTES": -MIB, "WORN_BYTES": 4 * MIB}) as engine:
        worker = engine.worker()
        base = private_bytes(worker)

        assert {ask(number) for number in range(100)} == {b'[{"n":999}]'}

        assert private_bytes(worker) > base + 5 * MIB
        assert engine.worker() == worker


@pytest.mark.parametrize(
    ("constants", "rows", "kept_mib"),
    [
        pytest.param(
            *({"KEPT_BYTES": 1024 * MIB, "KEPT_PART": 1024}, 60_000, 32),
            id="when no statement follows",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param({"NEXT_S": 60.0}, 40_000, 24, id="beyond a small part of the memory limit"),
    ],
)
def test_memory_is_given_back(state_dir: Path, constants: dict[str, float], rows: int, kept_mib: int) -> None:
    with running(state_dir, constants=constants, memory_limit_bytes=LIMIT_MIB * MIB) as engine:
        worker = engine.worker()
        base = private_bytes(worker)

        with engine.send(f"SELECT list(repeat('x', 1000) || i) AS a FROM range({rows}) t(i)") as connection:
            assert receive(connection).end is not None

            wait_until(lambda: private_bytes(worker) < base + kept_mib * MIB)
        assert engine.worker() == worker
