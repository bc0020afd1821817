"""
An engine whose workers do what somebody would try who broke out of DuckDB, instead of running statements.

`python -m tests.queryengine.breakout STATE_DIR QUERY CONSTANTS`, and `attempts` by itself.
"""

import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queryengine.pool import gunicorn_worker
from queryengine.pool.gunicorn_worker import EngineWorker
from tests.queryengine import bare_engine

_PTRACE_DETACH = 17
_IO_URING_SETUP = 425
_GETPID_OF_X32 = 0x4000_0000 + 39


def attempts(outside: str, inside: str, port: int) -> dict[str, str]:
    """
    Try what a worker must not do, and what it must be able to.

    Args:
        outside: A directory that is not the worker's, with a file `victim`.
        inside: The directory that it may write to.
        port: Where a TCP server listens on 127.0.0.1.

    Returns:
        For each attempt the name of its error; "ok" when there was none.
    """
    victim, own = Path(outside) / "victim", Path(inside) / "own"
    libc = ctypes.CDLL(None, use_errno=True)

    def called(function: Callable[..., int], *arguments: Any) -> None:
        if function(*arguments) < 0:
            raise OSError(ctypes.get_errno(), "")

    tries: dict[str, Callable[[], object]] = {
        "make a file": (Path(outside) / "new").touch,
        "append": lambda: victim.open("a").close(),
        "truncate": lambda: os.truncate(victim, 0),
        "make a directory": (Path(outside) / "directory").mkdir,
        "make a link": lambda: (Path(outside) / "link").symlink_to(victim),
        "take a file": lambda: victim.rename(own),
        "remove a file": victim.unlink,
        "connect": lambda: socket.create_connection(("127.0.0.1", port)).close(),
        "make a Unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "execute": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606 - not even so
        "signal the parent": lambda: os.kill(os.getppid(), 0),
        "trace": lambda: called(libc.ptrace, _PTRACE_DETACH, 0, None, None),
        "read another process": lambda: called(libc.process_vm_readv, os.getppid(), None, 0, None, 0, 0),
        "make a ring": lambda: called(libc.syscall, _IO_URING_SETUP, 1, ctypes.create_string_buffer(120)),
        "call as x32": lambda: called(libc.syscall, _GETPID_OF_X32),
        "make a directory inside": lambda: own.mkdir(exist_ok=True),
        "write inside": lambda: (own / "file").write_text("x"),
        "move inside": lambda: (own / "file").rename(Path(inside) / "moved"),
        "remove a file inside": (Path(inside) / "moved").unlink,
        "remove a directory inside": own.rmdir,
        "read": victim.read_bytes,
        "signal itself": lambda: os.kill(os.getpid(), 0),
    }
    return {name: _outcome(attempt) for name, attempt in tries.items()}


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


class BreakoutWorker(EngineWorker):
    """A worker that answers each connection with what came of the attempts whose arguments it reads there."""

    def handle(self, listener: socket.socket, client: socket.socket, addr: Any) -> None:
        """Try it."""
        with client:
            client.setblocking(True)
            client.sendall(json.dumps(attempts(**json.loads(client.recv(4096)))).encode())


if __name__ == "__main__":
    options = gunicorn_worker.options
    gunicorn_worker.options = lambda config: {**options(config), "worker_class": BreakoutWorker}
    bare_engine.main(*sys.argv[1:])
