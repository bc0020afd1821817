"""Every statement that was answered is in the history once, whatever is killed."""

import json
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight
import pytest

from tests.clients.runtime import FlightServer, flight_table
from tests.system.harness import K1, KEYED, NO_ROOTS, PATIENCE_S, wait_for
from tests.system.processes import engine_workers, family

logger = logging.getLogger(__name__)

STATEMENTS = 2000
HTTP_CALLERS, FLIGHT_CALLERS = 6, 3
#: Seconds between two kills of workers of engine and web, at random up to this. After each `PART_EVERY` answers, all of
#: web or all of the engine is killed: the supervisor waits longer before each start of what dies too often.
KILL_S = 2.0
PART_EVERY = 400

#: Of each kind, with a number that tells it from all others: small, of several chunks, slow, wrong.
KINDS = (
    "SELECT {} AS id",
    "SELECT {} AS id, range, md5(range::VARCHAR) AS text FROM range(20000)",
    "SELECT {} AS id, count(*) AS n FROM range(3000000) WHERE hash(range) % 3 = 0",
    "SELECT {} AS id, error('wrong')",
)


@dataclass
class Answers:
    """The verdict of each statement that was answered to its end, by its number."""

    verdicts: dict[int, str] = field(default_factory=dict)
    broken: int = 0  # ended without an answer, or in the middle of one
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> tuple[int, str]:
        with self.lock:
            self.asked += 1
            return self.asked, random.choices(KINDS, (12, 4, 2, 1))[0].format(self.asked)

    def add(self, number: int, verdict: str | None) -> None:
        with self.lock:
            if verdict is None:
                self.broken += 1
            else:
                self.verdicts[number] = verdict


def ask_http(server: FlightServer, answers: Answers, is_over: Callable[[], bool]) -> None:
    with httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as client:
        while not is_over():
            number, sql = answers.next()
            try:
                answer = client.post("/v1/sql", content=sql, headers=KEYED)
            except httpx.TransportError:
                answers.add(number, None)
                time.sleep(0.05)
            else:
                answers.add(number, "ok" if answer.status_code == 200 else answer.json()["code"])


def ask_flight(server: FlightServer, answers: Answers, is_over: Callable[[], bool]) -> None:
    with pa.flight.FlightClient(server.uri) as client:
        while not is_over():
            number, sql = answers.next()
            try:
                flight_table(client, sql)
            except (pa.ArrowException, pa.flight.FlightError) as error:
                # Its code is in the details; the history is compared with what HTTP callers are told.
                answers.add(number, "an error" if "wrong" in str(error) else None)
                time.sleep(0.05)
            else:
                answers.add(number, "ok")


def workers(server: FlightServer) -> list[int]:
    """Return the workers of the engine and of web."""
    engine = engine_workers(server.process.pid)
    return engine + [pid for pid in part(server, "runweb")[1:] if pid not in engine]


def part(server: FlightServer, command: str) -> list[int]:
    """Return the processes of a part, the one that the supervisor started first."""
    return [pid for pid, text in family(server.process.pid).items() if command in text]


def kill(*pids: int) -> int:
    """Kill processes, and return how many there were."""
    killed = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


@pytest.mark.exhaustive
def test_every_answered_statement_is_in_the_history_once_whatever_is_killed(tmp_path: Path) -> None:
    changes = {"runtime": {"history": {"sql": True, "file": "history.jsonl", "max_entries": 100_000}}}
    answers, kills, parts = Answers(), 0, 0
    with FlightServer(tmp_path, changes=changes) as server:
        callers = [
            threading.Thread(target=ask, args=(server, answers, lambda: len(answers.verdicts) >= STATEMENTS))
            for ask in [ask_http] * HTTP_CALLERS + [ask_flight] * FLIGHT_CALLERS
        ]
        for caller in callers:
            caller.start()
        while any(caller.is_alive() for caller in callers):
            time.sleep(random.random() * KILL_S)
            if len(answers.verdicts) > PART_EVERY * (parts + 1):
                kills += kill(*part(server, ("runweb", "runengine")[parts % 2]))
                parts += 1
                wait_for(server.answers, "the next life")
            elif found := workers(server):
                kills += kill(random.choice(found))
        for caller in callers:
            caller.join()
        server.wait_until_up()

        lines = wait_for(lambda: whole(tmp_path / "history.jsonl", answers), "the last statement")
        verdicts = Counter(line["outcome"] for line in lines)
        newest = server.listed("/v1/sql/history?limit=1000", K1)

    logger.info("%d answered, %d broken off, %d killed: %s", len(answers.verdicts), answers.broken, kills, verdicts)
    assert parts >= STATEMENTS // PART_EVERY - 1
    assert kills >= 10
    assert set(Counter(line["id"] for line in lines).values()) == {1}
    told = {number_of(line): line["outcome"] for line in lines}
    assert len(told) == len(lines)
    wrong = {
        number: (verdict, told.get(number))
        for number, verdict in answers.verdicts.items()
        if told.get(number) != verdict and (verdict != "an error" or told.get(number) in {None, "ok"})
    }
    assert wrong == {}
    # Each process tells in order; between them, a moment may pass.
    ids = [line["id"] for line in lines]
    assert {row["id"] for row in newest} <= set(ids[-1100:])
    assert len(newest) == 1000


def number_of(line: dict[str, Any]) -> int:
    return int(line["sql"].split()[1])


def whole(path: Path, answers: Answers) -> list[dict[str, Any]] | None:
    """Return the lines of the file as soon as there is one for each answer."""
    written, _, _ = path.read_text().rpartition("\n")  # The last line may be half there.
    lines = [json.loads(line) for line in written.splitlines()]
    return lines if {number_of(line) for line in lines} >= answers.verdicts.keys() else None
