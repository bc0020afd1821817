"""The process that manages the session on a cluster. It is a child of the engine; see `cluster.keeper`."""

import logging
import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path

from cluster.config import ClusterConfig
from cluster.identity import engine_id
from queryengine.pool.gunicorn_worker import writable
from runtimeconf.model import RuntimeConfig
from system import process_limits, sandbox

logger = logging.getLogger(__name__)

#: The file with an engine's id in its directory.
ENGINE_ID_FILE = "cluster-engine"
#: The minimum interval between two starts.
_RESTART_S = 2.0


class KeeperProcess:
    """The engine's interface to the keeper of *cluster*. It does not load gRPC, which does not survive a fork."""

    def __init__(self, config: RuntimeConfig, cluster: ClusterConfig) -> None:
        self._config = config
        self._cluster = cluster
        self._engine = engine_id()  # before any fork
        self._predecessor = ""
        self._pid: int | None = None
        self._lost: int | None = None
        self._due = 0.0

    def take_over(self, directory: Path) -> None:
        """Store our id in *directory*, and read the id of the dead engine that used the directory before."""
        file = directory / ENGINE_ID_FILE
        with suppress(OSError, ValueError):
            self._predecessor = str(uuid.UUID(file.read_text("ascii")).hex)
        with suppress(OSError):
            file.write_text(self._engine, "ascii")

    def ensure(self, now: float) -> None:
        """Start the process if it is not running, at most every `_RESTART_S`."""
        if self._pid is not None or now < self._due:
            return
        self._due = now + _RESTART_S
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            logger.warning("the cluster session manager cannot start", extra={"fields": {"error": error.strerror}})
            return
        os.set_blocking(writer, False)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            logger.warning("the cluster session manager cannot start", extra={"fields": {"error": error.strerror}})
            os.close(reader)
            os.close(writer)
            return
        if pid == 0:
            self._serve(parent, reader)
        os.close(reader)
        self._pid, self._lost = pid, writer

    def has_ended(self, pid: int) -> bool:
        """Return whether the ended process *pid* was the keeper."""
        if pid != self._pid:
            return False
        self._pid = None
        self.close_inherited()
        return True

    def lost(self, query_id: str) -> None:
        """Tell the keeper to end the operation of a statement whose worker died."""
        if self._lost is not None:
            with suppress(OSError):
                os.write(self._lost, f"{query_id}\n".encode("ascii", "replace"))

    def leave(self) -> None:
        """Make the process leave the session and end. Does not wait."""
        self.close_inherited()

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._pid is not None

    def kill(self) -> None:
        """Kill the process immediately."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def close_inherited(self) -> None:
        """Close this process's end of the pipe."""
        writer, self._lost = self._lost, None
        if writer is not None:
            os.close(writer)

    def _serve(self, parent: int, reader: int) -> None:
        """Run the keeper in this newly forked process. Does not return."""
        code = 1
        try:
            process_limits.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
                # The engine decides when to stop: it closes the pipe when its workers have ended.
                signal.signal(number, signal.SIG_IGN if number is not signal.SIGCHLD else signal.SIG_DFL)
            process_limits.close_descriptors([reader])
            process_limits.forget_environment()
            process_limits.confine(file_bytes=None)
            sandbox.enter(writable(self._config), port=self._cluster.address.port)
            from cluster import keeper  # noqa: PLC0415 - gRPC must not be loaded before the fork

            keeper.run(keeper.Keeper(self._config, self._cluster, self._engine, self._predecessor), reader)
            code = 0
        except Exception:
            logger.exception("the cluster session manager ends")
        finally:
            os._exit(code)
