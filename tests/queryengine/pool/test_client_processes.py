"""Several client processes of one engine, also under gevent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queryengine.engine import Query
from queryengine.errors import EngineWorkerDiedError, QueryCancelledError
from queryengine.pool.client import EngineClient
from tests.queryengine.engine_process import LONG_S, EngineProcess
from tests.queryengine.pool.client_process import RIGHT, Asking, Runner, Runtime, ask
from tests.queryengine.publishing import ENDLESS, ENDLESS_AFTER_ROWS, wait_until


@pytest.mark.exhaustive
def test_a_statement_is_listed_and_cancelled_from_another_process(
    process: EngineProcess, client: EngineClient, runner: Runner
) -> None:
    runner.run(ENDLESS, "far", "k")
    wait_until(lambda: [one.state for one in client.active("k")] == ["running"], within_s=LONG_S)

    assert client.active("k")[0].query_id == "far"
    assert client.cancel("far", "k")

    assert runner.answer() == ["far", "QueryCancelledError"]
    wait_until(lambda: client.active("k") == (), within_s=LONG_S)
    assert ask(client) == RIGHT


def test_a_killed_client_process_frees_its_slots(process: EngineProcess, client: EngineClient, runner: Runner) -> None:
    for number, key in enumerate("abab"):
        runner.run(ENDLESS, f"lost{number}", key)
    wait_until(lambda: len(client.active("a")) + len(client.active("b")) == 4, within_s=LONG_S)
    waiting = [Asking(client, "SELECT 1 AS n", fingerprint=key) for key in "ab"]

    runner.kill()

    for asking in waiting:
        assert asking.ended()
        assert asking.answer == b'[{"n":1}]'
    assert client.active("a") == client.active("b") == ()


def test_processes_share_one_queue_fairly(runtime: Runtime) -> None:
    process = runtime.engine(max_queued=6)
    client = runtime.client(process)
    flood = runtime.runner(process)
    for number in range(20):
        flood.run(ENDLESS, f"flood{number}", "flood")
    refused = [flood.answer()[1] for _ in range(13)]
    assert set(refused) == {"EngineBusyError"}
    assert [one.state for one in client.active("flood")] == ["running"] + ["queued"] * 6

    for _ in range(10):
        assert ask(client, fingerprint="other") == RIGHT

    holder = Asking(client, ENDLESS, query_id="holder", fingerprint="third")
    process.worker_of("holder")
    waiting = Asking(client, "SELECT 1 AS n", fingerprint="other")
    assert flood.answer()[1] == "EngineBusyError", "the newest of the flood makes room"
    assert client.cancel("holder", "third")
    assert holder.ended()
    assert waiting.ended()
    assert waiting.answer == b'[{"n":1}]'


def test_a_client_survives_the_death_of_the_engine(process: EngineProcess, client: EngineClient) -> None:
    asking = Asking(client, ENDLESS, query_id="q")
    workers = process.workers()
    process.worker_of("q")

    process.send(signal.SIGKILL)

    assert process.ended() == -signal.SIGKILL
    assert asking.ended()
    assert isinstance(asking.error, EngineWorkerDiedError)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), within_s=LONG_S)
    assert not client.is_alive()
    process.start()
    process.wait_until_whole(client)
    assert ask(client) == RIGHT
    result = client.run(Query(sql=ENDLESS_AFTER_ROWS))
    result.cancel()
    with pytest.raises(QueryCancelledError):
        next(result)


_GEVENT = """
from gevent import monkey
monkey.patch_all()
import json, sys, time, gevent
from pathlib import Path
from queryengine.cancellation import CancelSource
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from queryengine.errors import QueryCancelledError
from tests.queryengine.publishing import ENDLESS
from tests.queryengine.engine_process import config_of

client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
while client.status().workers_alive < 2:
    gevent.sleep(0.01)
ticks, running = 0, True
def tick():
    global ticks
    while running:
        gevent.sleep(0.005)
        ticks += 1
def ask(number):
    if number % 10 == 0:
        cancel = CancelSource()
        gevent.spawn_later(0.2, cancel.cancel)
        try:
            client.run(Query(sql=ENDLESS, fingerprint=str(number)), cancel)
        except QueryCancelledError:
            return -1
    sql = f"SELECT {number} AS n, max(hash(i)) AS h FROM range(3000000) t(i)"
    result = client.run(Query(sql=sql, fingerprint=str(number % 7)))
    try:
        return json.loads(b"".join(result))[0]["n"]
    finally:
        result.close()
def killed():
    client.run(Query(sql=ENDLESS, fingerprint="x"))
ticker = gevent.spawn(tick)
began = time.monotonic()
jobs = [gevent.spawn(ask, number) for number in range(50)]
gevent.joinall(jobs)
victim = gevent.spawn(killed)
while len(client.active("x")) == 0:
    gevent.sleep(0.01)
victim.kill()
while len(client.active("x")) > 0:
    gevent.sleep(0.01)
passed_s = time.monotonic() - began
running = False
ticker.join()
client.close()
print(json.dumps({"answers": [job.value for job in jobs], "ticks": ticks, "passed_s": passed_s}))
"""


@pytest.mark.exhaustive
def test_under_gevent_nothing_blocks_the_other_greenlets(process: EngineProcess, client: EngineClient) -> None:
    arguments = [str(process.state_dir), json.dumps(process._settings)]

    run = subprocess.run(
        [sys.executable, "-c", _GEVENT, *arguments], stdout=subprocess.PIPE, check=True, timeout=LONG_S, text=True
    )

    outcome = json.loads(run.stdout)
    assert outcome["answers"] == [-1 if number % 10 == 0 else number for number in range(50)]
    # All of it takes seconds; a statement that blocked the others would do so for its whole length.
    assert outcome["ticks"] >= outcome["passed_s"] / 0.1
    assert ask(client) == RIGHT


_GEVENT_STOPPED = """
from gevent import monkey
monkey.patch_all()
import collections, json, os, signal, sys, time, gevent
from pathlib import Path
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from queryengine.errors import QueryError
from tests.queryengine.engine_process import config_of

arbiter = int(sys.argv[3])
client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
while client.status().workers_alive < 2:
    gevent.sleep(0.01)
def ask(number):
    try:
        return b"".join(client.run(Query(sql="SELECT 1 AS n" + " " * 900, fingerprint=str(number % 7), timeout_s=1.0)))
    except QueryError as error:
        return type(error).__name__
os.kill(arbiter, signal.SIGSTOP)
try:
    jobs = [gevent.spawn(ask, number) for number in range(500)]
    gevent.joinall(jobs)
    backed_up = len(client._pool.link._connection._unsent)
finally:
    os.kill(arbiter, signal.SIGCONT)
while not client.is_alive():
    gevent.sleep(0.01)
answer = b"".join(client.run(Query(sql="SELECT 1 AS n"))).decode()
client.close()
print(json.dumps({"outcomes": sorted({job.value for job in jobs}), "backed_up": backed_up, "answer": answer}))
"""


def test_under_gevent_a_stopped_arbiter_blocks_no_greenlet(process: EngineProcess, client: EngineClient) -> None:
    arguments = [str(process.state_dir), json.dumps(process._settings), str(process.pid)]

    run = subprocess.run(
        [sys.executable, "-c", _GEVENT_STOPPED, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        timeout=LONG_S,
        text=True,
    )

    outcome = json.loads(run.stdout)
    assert set(outcome["outcomes"]) <= {"QueryTimeoutError", "EngineUnavailableError"}
    assert outcome["backed_up"] > 0
    assert outcome["answer"] == '[{"n":1}]'
    assert ask(client) == RIGHT
