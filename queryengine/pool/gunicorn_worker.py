"""
Engine workers under gunicorn's arbiter: the settings, and a worker class that uses frames instead of HTTP.

gunicorn forks the workers, which inherit the listening socket and a heartbeat file. The class uses only `SyncWorker`
names without a leading underscore. `test_gunicorn_worker` fails if an upgrade moves one of them.
"""

import gc
import logging
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
from queryengine.pool.worker import StatementServer, WorkerState, write_state
from runtimeconf.model import RuntimeConfig
from system import process_limits, sandbox
from system.scratch import scratch_parent

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats of an idle worker.
HEARTBEAT_S = 1.0
#: Seconds to pause after a failed accept, for example if the process has no free descriptors.
ACCEPT_RETRY_S = 0.1

#: Only this user can read the engine's files.
PRIVATE_UMASK = 0o077

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - gunicorn creates the file safely and unlinks it

#: Signals to the process group that are meant for the arbiter, or that have no meaning here.
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
#: Signals that end the process even if it is busy, because the kernel handles them instead of Python.
_FATAL = (signal.SIGABRT, signal.SIGALRM, signal.SIGQUIT, signal.SIGXCPU)


def options(config: RuntimeConfig) -> dict[str, Any]:
    """Return gunicorn's settings for the engine of *config*, which must also be set in `runtimeconf.state`."""
    return {
        "bind": [f"unix:{config.engine_dir / ENGINE_SOCKET}"],
        "umask": 0o177,  # for the socket: only this user's processes may connect
        "worker_class": "queryengine.pool.gunicorn_worker.EngineWorker",
        "workers": config.query.workers,
        "timeout": 0,  # `EngineArbiter` decides when a worker is stuck
        "graceful_timeout": max(1, round(config.shutdown_timeout_s)),
        "logger_class": "system.gunicorn_log.ServerLogger",
        "proc_name": "engine",
        "control_socket_disable": True,
        # On a disk, a heartbeat could block while the disk is busy.
        "worker_tmp_dir": str(_SHARED_MEMORY) if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None,
    }


class EngineWorker(SyncWorker):
    """A process that runs one statement at a time and may be killed at any moment."""

    def init_process(self) -> None:
        """Confine this process, then serve. A failure exits with 1, because 3 would end a plain gunicorn arbiter."""
        try:
            self._confine()
            super().init_process()
        except Exception:
            logger.exception("engine worker ends")
            sys.exit(1)

    def load_wsgi(self) -> None:
        """Do nothing, because there is no WSGI application."""

    def init_signals(self) -> None:
        """Make SIGTERM end the process after its statement, and make fatal signals end it immediately."""
        super().init_signals()
        for ignored in _IGNORED:
            signal.signal(ignored, signal.SIG_IGN)
        for fatal in _FATAL:
            signal.signal(fatal, signal.SIG_DFL)

    def run(self) -> None:
        """Serve connections until the process is told to end or is worn out. Does not return."""
        self._poll = select.epoll()
        # A connection wakes one idle worker, not all of them.
        self._poll.register(self.sockets[0], select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._poll.register(self.PIPE[0], select.EPOLLIN)
        self._server = StatementServer(runtimeconf.state.get_config(), self._report, lambda: not self.alive)
        self._server.warm_up()
        # These objects are permanent. A garbage collection that traverses them would delay a statement by about 20 ms.
        gc.freeze()
        self._server.be_idle()
        super().run()
        self._server.close()
        # Skip the interpreter's shutdown, which is slow and unsafe with the threads of DuckDB and pyarrow.
        os._exit(0)

    def wait(self, timeout: float) -> None:
        """Wait for a connection, a signal or the time of the next heartbeat."""
        self._server.be_idle()
        for descriptor, _ in self._poll.poll(HEARTBEAT_S):
            if descriptor == self.PIPE[0]:
                os.read(self.PIPE[0], 4096)
        if self._server.worn_out:
            self.alive = False

    def accept(self, listener: socket.socket) -> None:
        """Serve the next connection, if any."""
        try:
            super().accept(listener)
        except BlockingIOError:
            raise
        except OSError as exc:
            logger.warning("engine worker cannot accept", extra={"fields": {"error": exc.strerror}})
            time.sleep(ACCEPT_RETRY_S)

    def handle(self, listener: socket.socket, client: socket.socket, addr: Any) -> None:
        """Serve the statements of *client*."""
        if self._has_stack:
            self._server.serve(client)
        else:  # A deeply nested statement would overflow the stack of this thread.
            serving = threading.Thread(target=self._server.serve, args=[client], name="engine-statements")
            serving.start()
            serving.join()
        if self._server.worn_out:
            self.alive = False

    def _report(self, state: WorkerState) -> None:
        write_state(self.tmp.fileno(), state)
        self.notify()  # The write set the file's time from a different clock than gunicorn's.

    def _confine(self) -> None:
        process_limits.die_with_parent(self.ppid)
        os.umask(PRIVATE_UMASK)
        process_limits.close_descriptors([*(listener.fileno() for listener in self.sockets), self.tmp.fileno()])
        process_limits.forget_environment()
        process_limits.raise_soft_limit()  # Replacing a session opens each snapshot twice.
        config = runtimeconf.state.get_config()
        process_limits.confine(file_bytes=config.query.temp_directory_limit_bytes)
        process_limits.reuse_memory()
        self._has_stack = process_limits.set_stack_size()
        sandbox.enter(writable(config), port=None if config.engine is None else config.engine.address.port)


def writable(config: RuntimeConfig) -> list[Path]:
    """Return the directories to which a worker may write."""
    directories = []
    with suppress(OSError):  # In this case the engine will not start, and another worker tries later.
        directories.append(scratch_parent(config.state_dir))
    return directories
