"""What a worker can still do when somebody has broken out of DuckDB in it, tried from inside."""

import errno
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queryengine.engine import Query
from queryengine.pool.client import EngineClient
from system import sandbox
from system.scratch import SCRATCH_DIRECTORY
from tests.operating_system.programs import ROOT, printed
from tests.queryengine.bare_engine import running
from tests.queryengine.engine_process import LONG_S, config_of
from tests.queryengine.publishing import wait_until

#: Earlier kernels refuse less: Linux 6.7 began with sockets, 6.12 with signals.
LANDLOCK = sandbox._landlock()
ALONE = {"signal the parent": "EPERM" if LANDLOCK >= 6 else "ok"}

#: What a worker needs, and gets.
NEEDED = dict.fromkeys(
    (
        *("make a directory inside", "write inside", "move inside", "remove a file inside"),
        *("remove a directory inside", "read", "signal itself"),
    ),
    "ok",
)
#: What Landlock refuses.
FILES = dict.fromkeys(
    ("make a file", "append", "truncate", "make a directory", "make a link", "take a file", "remove a file"), "EACCES"
)
#: What the filter of system calls refuses.
CALLS = dict.fromkeys(
    (
        *("connect", "make a Unix socket", "execute", "trace", "read another process", "make a ring"),
        "call as x32",
    ),
    "EPERM",
)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The arguments of the attempts."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("as it was")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {
            "outside": str(outside),
            "inside": str(tmp_path / "state" / SCRATCH_DIRECTORY),
            "port": server.getsockname()[1],
        }
    assert (outside / "victim").read_text() == "as it was"
    assert [path.name for path in outside.iterdir()] == ["victim"]


def test_a_worker_is_confined_to_its_directory(tmp_path: Path, asked: dict[str, Any]) -> None:
    assert sandbox.missing() == [], "this kernel is too old for what is tested here"
    (tmp_path / "state").mkdir()
    with running(tmp_path / "state", program="tests.queryengine.breakout") as engine, engine.connect() as connection:
        connection.sendall(json.dumps(asked).encode())
        outcomes = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))
        modes = {
            line
            for status in Path(f"/proc/{engine.worker()}/task").glob("*/status")
            for line in status.read_text().splitlines()
            if line.startswith("Seccomp:")
        }

    assert outcomes == FILES | CALLS | NEEDED | ALONE
    assert modes == {"Seccomp:\t2"}  # of every thread


def test_landlock_holds_without_seccomp(tmp_path: Path, asked: dict[str, Any]) -> None:
    Path(asked["inside"]).mkdir(parents=True)
    code = """
        import json, sys
        from pathlib import Path
        from system import process_limits
        from system import sandbox
        from tests.queryengine.breakout import attempts
        process_limits.confine(file_bytes=None)
        asked = json.loads(sys.argv[1])
        sandbox._restrict(sandbox._landlock(), [Path(asked["inside"]), Path("/is/not/there")], None)
        print(json.dumps(attempts(**asked)))
        """

    outcomes = json.loads(printed(code, json.dumps(asked)))

    expected = FILES | NEEDED | ALONE | {"execute": "EACCES", "connect": "EACCES" if LANDLOCK >= 4 else "ok"}
    assert {name: outcomes[name] for name in expected} == expected


def test_a_port_that_is_given_is_the_only_one_that_can_be_reached() -> None:
    code = """
        import socket, sys
        from system import process_limits
        from system import sandbox
        process_limits.confine(file_bytes=None)
        ports = [int(argument) for argument in sys.argv[1:]]
        sandbox.enter([], port=ports[0])
        for port in ports:
            with socket.socket() as connection:
                print(connection.connect_ex(("127.0.0.1", port)))
        """
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(server.getsockname()[1]) for server in (allowed, other)]
        outcomes = printed(code, *ports).split()

    assert outcomes == ["0", str(errno.EACCES) if LANDLOCK >= 4 else "0"]


#: A program that starts another one under a kernel that does not know Landlock, as far as that can see.
OLDER = """
    import os, platform, sys
    from system import process_limits
    from system import sandbox
    process_limits._prctl(process_limits._PR_SET_NO_NEW_PRIVS, 1)
    machine, seccomp, _ = sandbox._REFUSED[platform.machine()]
    sandbox._refuse_calls(machine, seccomp, (sandbox._CREATE_RULESET,))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    """


def test_an_older_kernel_is_logged_once_and_statements_run(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    log = tmp_path / "engine.log"
    command = ["-m", "tests.queryengine.engine_process", str(tmp_path), "{}"]
    with log.open("wb") as stderr:
        engine = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OLDER), *command],
            cwd=ROOT,
            env=os.environ | {"STATE_DIR": str(tmp_path)},
            stderr=stderr,
        )
    client = EngineClient(config)
    try:
        wait_until(client.is_alive, within_s=LONG_S)
        answer = b"".join(client.run(Query(sql="SELECT 1 AS a")))
    finally:
        client.close()
        engine.terminate()
        engine.wait(LONG_S)

    assert answer == b'[{"a":1}]'
    assert log.read_text().count("the system cannot confine engine workers as it should") == 1
