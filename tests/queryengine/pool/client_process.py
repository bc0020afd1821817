"""Client processes of an engine in a process of its own, for tests of the arbiter."""

import json
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from queryengine.engine import Query
from queryengine.pool.client import EngineClient
from tests.queryengine.engine_process import EngineProcess
from tests.queryengine.publishing import Publisher


def ask(client: EngineClient, sql: str = "SELECT count(*) AS n FROM flights", **query: Any) -> bytes:
    with closing(client.run(Query(sql=sql, **query))) as result:
        return b"".join(result)


RIGHT = b'[{"n":1000}]'


_RUNNER = """
import json, os, sys, threading
from pathlib import Path
from queryengine.pool.client import EngineClient
from queryengine.engine import Query
from tests.queryengine.engine_process import config_of

client = EngineClient(config_of(Path(sys.argv[1]), **json.loads(sys.argv[2])))
def run(sql, query_id, key):
    try:
        answer = b"".join(client.run(Query(sql=sql, query_id=query_id, fingerprint=key))).decode()
    except Exception as error:
        answer = type(error).__name__
    os.write(1, (json.dumps([query_id, answer]) + "\\n").encode())  # whole lines, from any thread
for line in sys.stdin:
    threading.Thread(target=run, args=json.loads(line), daemon=True).start()
"""


class Runner:
    """Another client process."""

    def __init__(self, engine: EngineProcess) -> None:
        arguments = [str(engine.state_dir), json.dumps(engine._settings)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, sql: str, query_id: str, key: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([sql, query_id, key]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[str]:
        """Wait for the next answer; return its id and its text or the name of the error."""
        assert self._process.stdout is not None
        answer: list[str] = json.loads(self._process.stdout.readline())
        return answer

    def kill(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Runtime:
    """A state directory with data, engines over it, and client processes; all are stopped at the end."""

    def __init__(self, stack: ExitStack, state_dir: Path) -> None:
        self._stack = stack
        self.state_dir = state_dir
        Publisher(self.state_dir).publish(flights="SELECT range AS id FROM range(1000)")

    def engine(self, **settings: Any) -> EngineProcess:
        engine = EngineProcess(self.state_dir, **settings)
        self._stack.callback(engine.close)
        return engine

    def client(self, engine: EngineProcess) -> EngineClient:
        client = engine.client()
        self._stack.callback(client.close)
        return client

    def runner(self, engine: EngineProcess) -> Runner:
        runner = Runner(engine)
        self._stack.callback(runner.kill)
        return runner
