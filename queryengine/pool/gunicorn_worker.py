"""
Engine workers under gunicorn's arbiter: its settings, and a worker class that speaks frames instead of HTTP.

gunicorn forks the workers, hands them the listening socket and a heartbeat file, and forks anew when one ends.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gunicorn.workers.sync import SyncWorker

import runtimeconf.state
from queryengine.pool.slots import ENGINE_SOCKET
from queryengine.pool.worker import GRACE_S, StatementServer
from queryengine.pool.worker_state import WorkerState, write_state
from runtimeconf.model import RuntimeConfig
from system import process_limits, sandbox
from system.descriptors import raise_soft_limit
from system.parent_death import die_with_parent
from system.scratch import scratch_parent

logger = logging.getLogger(__name__)

#: How often an idle worker shows that it lives.
HEARTBEAT_S = 1.0
#: An arbiter that knows nothing of deadlines waits so much longer than a statement may take.
HEARTBEAT_MARGIN_S = 5.0
#: How long a worker waits that cannot accept a connection, for want of descriptors for example.
REFUSED_ACCEPT_S = 0.1

#: What the engine writes is for this user alone.
PRIVATE_UMASK = 0o077

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - gunicorn makes the file there safely, and unlinks it

#: Signals that a process group or an operator may send, and that are for the arbiter or mean nothing here.
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
#: Signals that end the process whatever it is busy with, without any Python.
_FATAL = (signal.SIGABRT, signal.SIGALRM, signal.SIGQUIT, signal.SIGXCPU)


def options(config: RuntimeConfig) -> dict[str, Any]:
    """Return gunicorn's settings for the engine of *config*, which `runtimeconf.state` must hold as well."""
    return {
        "bind": [f"unix:{config.state_dir / ENGINE_SOCKET}"],
        "umask": 0o177,  # of the socket: this user's processes alone may connect
        "worker_class": "queryengine.pool.gunicorn_worker.EngineWorker",
        "workers": config.query.workers,
        "timeout": math.ceil(config.query.timeout_s + GRACE_S + HEARTBEAT_MARGIN_S),
        "graceful_timeout": max(1, round(config.shutdown_timeout_s)),
        "logger_class": "httpserver.gunicorn_server.ServerLogger",
        "proc_name": "engine",
        "control_socket_disable": True,
        # On a disk, writing a heartbeat can take as long as the disk is busy.
        "worker_tmp_dir": str(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None,
    }


class EngineWorker(SyncWorker):
    """A process that runs one statement at a time, and may be killed at any moment."""

    def init_process(self) -> None:
        """Confine this process, then serve. What goes wrong never ends the arbiter: it does for exit code 3."""
        try:
            self._confine()
            super().init_process()
        except Exception:
            logger.exception("engine worker ends")
            sys.exit(1)

    def load_wsgi(self) -> None:
        """Load nothing: there is no WSGI application."""

    def init_signals(self) -> None:
        """SIGTERM ends the process after its statement; what is to end it at once must not need Python."""
        super().init_signals()
        for ignored in _IGNORED:
            signal.signal(ignored, signal.SIG_IGN)
        for fatal in _FATAL:
            signal.signal(fatal, signal.SIG_DFL)

    def run(self) -> None:
        """Serve connections until told to end, or worn out. Does not return."""
        self._poll = select.epoll()
        # One connection wakes one worker, not all that are idle.
        self._poll.register(self.sockets[0], select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._poll.register(self.PIPE[0], select.EPOLLIN)
        self._server = StatementServer(runtimeconf.state.get_config(), self._report, lambda: not self.alive)
        self._server.warm_up()
        # What is there now stays: a collector that looked through it would hold up a statement for some 20 ms.
        gc.freeze()
        self._server.be_idle()
        super().run()
        self._server.close()
        # Not the interpreter's own end, which is slow and not made for what DuckDB and pyarrow leave to it.
        os._exit(0)

    def wait(self, timeout: float) -> None:
        """Wait for a connection or a signal, and show at least every `HEARTBEAT_S` seconds that this process lives."""
        self._server.be_idle()
        for descriptor, _ in self._poll.poll(min(timeout, HEARTBEAT_S)):
            if descriptor == self.PIPE[0]:
                os.read(self.PIPE[0], 4096)
        if self._server.worn_out:
            self.alive = False

    def accept(self, listener: socket.socket) -> None:
        """Serve the next connection, if there is one."""
        try:
            super().accept(listener)
        except BlockingIOError:
            raise
        except OSError as exc:
            logger.warning("engine worker cannot accept", extra={"fields": {"error": exc.strerror}})
            time.sleep(REFUSED_ACCEPT_S)

    def handle(self, listener: socket.socket, client: socket.socket, addr: Any) -> None:
        """Answer the statements of *client*."""
        if self._has_stack:
            self._server.serve(client)
        else:  # A nested statement would end the process in this thread.
            serving = threading.Thread(target=self._server.serve, args=[client], name="engine-statements")
            serving.start()
            serving.join()
        if self._server.worn_out:
            self.alive = False

    def _report(self, state: WorkerState) -> None:
        write_state(self.tmp.fileno(), state)
        self.notify()  # writing has set the file's time to that of another clock

    def _confine(self) -> None:
        die_with_parent(self.ppid)
        os.umask(PRIVATE_UMASK)
        process_limits.close_descriptors([*(listener.fileno() for listener in self.sockets), self.tmp.fileno()])
        process_limits.forget_environment()
        raise_soft_limit()  # It opens each snapshot, more than once while a session takes another one's place.
        config = runtimeconf.state.get_config()
        process_limits.confine(file_bytes=config.query.temp_directory_limit_bytes)
        process_limits.reuse_memory()
        self._has_stack = process_limits.set_stack_size()
        sandbox.enter(_writable(config))


def _writable(config: RuntimeConfig) -> list[Path]:
    """Return the directories that a worker may write to."""
    directories = []
    with suppress(OSError):  # There will be no engine then, and later another worker.
        directories.append(scratch_parent(config.state_dir))
    # Under tests that measure coverage, this process saves what it has run.
    if (coverage := sys.modules.get("coverage")) and (measuring := coverage.Coverage.current()):
        directories.append(Path(measuring.config.data_file).absolute().parent)
    return directories
