"""A client process under gevent."""

import json
import subprocess
import sys
from typing import Any

import pytest

from queryengine.pool.client import EngineClient
from tests.queryengine.engine_process import LONG_S, EngineProcess
from tests.queryengine.pool.conftest import RIGHT, ask

_CLIENT = """
from gevent import monkey
monkey.patch_all()
import json, os, signal, sys, time, gevent
from pathlib import Path
from queryengine.cancellation import CancelSource
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from queryengine.errors import QueryCancelledError, QueryError
from tests.queryengine.publishing import ENDLESS
from tests.queryengine.engine_process import config_of

arbiter = int(sys.argv[3])
client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
while client.status().workers_alive < 2:
    gevent.sleep(0.01)
"""


def under_gevent(program: str, process: EngineProcess) -> Any:
    """Run *program* in a process with a client of *process*; return the JSON that it prints."""
    arguments = [str(process.state_dir), json.dumps(process._settings), str(process.pid)]
    command = [sys.executable, "-c", _CLIENT + program, *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LONG_S, text=True).stdout)


_BUSY = """
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
    outcome = under_gevent(_BUSY, process)

    assert outcome["answers"] == [-1 if number % 10 == 0 else number for number in range(50)]
    # All of it takes seconds; a statement that blocked the others would do so for its whole length.
    assert outcome["ticks"] >= outcome["passed_s"] / 0.1
    assert ask(client) == RIGHT


_STOPPED = """
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
    outcome = under_gevent(_STOPPED, process)

    assert set(outcome["outcomes"]) <= {"QueryTimeoutError", "EngineUnavailableError"}
    assert outcome["backed_up"] > 0
    assert outcome["answer"] == '[{"n":1}]'
    assert ask(client) == RIGHT
