"""A server that means harm: one line, an exit status, bounded memory, and the key goes nowhere else."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtimeclient.answers import ARROW
from tests.runtimeclient.conftest import ROOT, clean_environment
from tests.runtimeclient.remote import API_KEY, VND, Remote

_MEGABYTE = b"x" * (1 << 20)
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


@contextmanager
def speaking(head: bytes, again: bytes = b"") -> Iterator[str]:
    """Answer /health as a runtime does, and anything else by *head*, then *again* until the client has gone."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                while request := lines.readline():
                    while lines.readline() not in {b"\r\n", b""}:
                        pass
                    if request.startswith(b"GET /health"):
                        connection.sendall(
                            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"
                        )
                        continue
                    connection.sendall(head)
                    while again:
                        connection.sendall(again)
                    return
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        # Closing alone does not wake who waits in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def answer(content_type: str, rest: bytes = _CHUNKED, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n".encode() + rest


SQL = ("sql", "SELECT 1")
FILE = ("sql", "SELECT 1", "--output", "a.parquet")
_BOMB = chunk(gzip.compress(_MEGABYTE * 50)) + b"0\r\n\r\n"
_HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"
ROWS = b'{"schema":{"fields":[]},"data":['


@pytest.mark.parametrize(
    ("arguments", "head", "again", "said"),
    [
        pytest.param(
            SQL,
            answer(VND) + chunk(ROWS + b'{"a":"'),
            chunk(_MEGABYTE),
            "A row of the answer is longer than 64 MiB",
            id="a row without an end",
        ),
        pytest.param(
            ("status",), answer("application/json"), chunk(b"[" * 65536), "not as a runtime does", id="status"
        ),
        pytest.param(
            SQL,
            answer("application/problem+json", status="400 Bad Request"),
            chunk(_MEGABYTE),
            "not as a runtime does",
            id="an error without an end",
        ),
        pytest.param(
            SQL, b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 65536 + b"\r\n", "without a whole answer", id="headers"
        ),
        pytest.param(SQL, b"SSH-2.0-x\r\n", b"", "without a whole answer", id="no HTTP"),
        pytest.param(
            SQL,
            answer(VND, b"Content-Encoding: gzip\r\n" + _CHUNKED) + _BOMB,
            b"",
            "not as a runtime does",
            id="a gzip bomb",
        ),
        pytest.param(
            SQL,
            answer(VND) + chunk(ROWS + b'{"a":1},{"a":},{"a":1},{"a":1}]}') + b"0\r\n\r\n",
            b"",
            "not valid JSON",
            id="JSON",
        ),
        pytest.param(SQL, answer(VND) + chunk(ROWS + b"[" * 100_000), b"", "not valid JSON", id="JSON that is nested"),
        pytest.param(FILE, answer(ARROW), chunk(b"\xff" * 65536), "not a valid Arrow stream", id="Arrow"),
        pytest.param(FILE, answer(VND) + b"0\r\n\r\n", b"", "not as a runtime does", id="no Arrow"),
    ],
)
def test_harm_is_an_error_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], head: bytes, again: bytes, said: str
) -> None:
    program = (
        "import pathlib, sys; sys.path.insert(0, sys.argv.pop(1));"
        "from runtimeclient.main import run; status = run('querykeep', sys.argv[1:]);"
        "peak = pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0];"
        "print(status, peak, file=sys.stderr)"
    )
    with speaking(head, again) as url:
        done = subprocess.run(
            [sys.executable, "-c", program, str(ROOT), *arguments],
            cwd=tmp_path,
            env=clean_environment(RUNTIME_HTTP_ENDPOINT=url, RUNTIME_API_KEY=API_KEY),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    error, told = done.stderr.splitlines()
    status, peak_kib = map(int, told.split())
    assert status == 3
    assert error.startswith("Error: ")
    assert said in error
    assert API_KEY not in done.stdout + done.stderr
    # A row of 64 MiB is held once, and while it grows twice.
    assert peak_kib < 260_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("location", ["{url}/v1/sql", "//{host}/", "{url}"])
def test_the_key_does_not_follow_a_redirect(remote: Remote, tmp_path: Path, location: str) -> None:
    target = location.format(url=remote.url, host=remote.url.removeprefix("http://"))
    head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
    with speaking(head) as url:
        done = subprocess.run(
            [sys.executable, "-m", "runtimeclient", *SQL],
            cwd=ROOT,
            env=clean_environment(RUNTIME_HTTP_ENDPOINT=url, RUNTIME_API_KEY=API_KEY),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "answers with a redirect (307 Temporary Redirect), which is not followed" in done.stderr
    assert remote.requests == []
