"""
Runs loads in a separate process that can be killed (`datasources.refresh.loader_process`).

A DuckDB call that ignores interrupts, or that uses memory that DuckDB does not count, could block its process
permanently. Nothing else depends on the loader process. The deadline normally ends a load inside the process. If that
fails, the process is killed, its unfinished files are deleted, and the next load starts another process.
"""

import json
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from datasources.deadline import Deadline
from datasources.errors import SnapshotError, error_from
from datasources.snapshots.snapshot import Order, SnapshotBuilder, remove, scratch_directory
from queryengine.manifest import SNAPSHOT_DIRECTORY, Snapshot
from runtimeconf import handover
from system.state_directory import remove_ours

logger = logging.getLogger(__name__)

#: Seconds after a load's deadline at which its process is killed.
GRACE_S = 1.0
#: Seconds between checks whether the runtime is stopping.
_POLL_S = 0.05
#: The maximum wait for the end of a process that was told to end or was killed, in seconds.
_END_S = 2.0
#: The maximum pause within a message to or from a process, in whole seconds. A process that stalls longer is killed.
_STALL_S = 10
#: The maximum length of a response. A process that reads untrusted files might announce an arbitrary length.
_MAX_ANSWER_BYTES = 256 * 1024 * 1024

_ROOT = Path(__file__).resolve().parents[2]


class LoaderFaultError(Exception):
    """A load failed unexpectedly. `str()` is the traceback from its process, for the log."""


class LoaderProcess:
    """
    A `Builder` that runs *builder* in a separate process. Not thread-safe.

    The process serves one load after another. If it died or was killed, the next load starts another process. It
    always ends with the thread that started it.
    """

    def __init__(self, builder: SnapshotBuilder) -> None:
        self._builder = builder
        self._child: _Child | None = None
        self.phases: Mapping[str, float] = {}

    def start(self) -> None:
        """Start the process so that the first load does not wait for it. If this fails, the load reports the error."""
        with suppress(SnapshotError):
            self._running()

    @property
    def is_started(self) -> bool:
        """See `Builder.is_started`."""
        return self._child is not None

    def close(self) -> None:
        """End the process; see `Builder.close`."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def build(self, order: Order, deadline: Deadline) -> Snapshot | None:
        """
        See `Builder.build`.

        Raises:
            SourceError: See `Builder.build`.
            SnapshotError: See `Builder.build`. Also raised if the process died or cannot be started.
            LoaderFaultError: The load failed for an unexpected reason.
        """
        self.phases = {}
        child = self._running()
        request = {
            "builder": handover.plain(self._builder),
            "order": handover.plain(order),
            "limit_s": deadline.limit_s,
            "left_s": deadline.left_s,
        }
        answer = child.ask(json.dumps(request).encode(), deadline)
        if answer is None or answer["worn_out"]:
            self._child = None
            reason = child.end(kill=answer is None)
        if answer is None:
            # Delete the files of a process that did not end by itself.
            remove(self._builder.state_dir / SNAPSHOT_DIRECTORY / order.file)
            scratch = scratch_directory(self._builder.state_dir, order.file)
            remove_ours(scratch.parent, re.compile(re.escape(scratch.name)))
            deadline.check()
            raise SnapshotError(
                f"The load of {order.dataset.name} failed because its process ended ({reason}): an engine fault, or "
                "not enough memory."
            )
        self.phases = answer["phases"]
        for level, message in answer["log"]:
            logger.log(level, "%s", message)
        if "snapshot" in answer:
            snapshot: Snapshot | None = handover.rebuilt(Snapshot | None, answer["snapshot"])
            return snapshot
        if "error" in answer:
            raise error_from(answer["error"])
        raise LoaderFaultError(answer["fault"])

    def _running(self) -> "_Child":
        if self._child is not None and not self._child.is_alive:
            self.close()
        if self._child is None:
            try:
                self._child = _Child()
            except OSError as exc:
                raise SnapshotError(f"The process that loads data cannot be started: {exc.strerror}.") from exc
        return self._child


class _Child:
    """
    The process, and the connection to it.

    Raises:
        OSError: The system lacks resources.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _STALL_S, 0))
        self._connection: Connection[dict[str, Any], bytes] = Connection(ours.detach())
        try:
            with theirs:
                program = [sys.executable, "-m", "datasources.refresh.loader_process"]
                self._process = subprocess.Popen(  # noqa: S603 (our own program)
                    [*program, str(theirs.fileno()), str(os.getpid())],
                    cwd=_ROOT,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def ask(self, request: bytes, deadline: Deadline) -> dict[str, Any] | None:
        """
        Send *request* and return the response.

        Return None if the process died or does not respond, if the runtime is stopping, or `GRACE_S` after the
        deadline.
        """
        try:
            self._connection.send_bytes(request)
            while not deadline.stopped and deadline.left_s > -GRACE_S:
                if self._connection.poll(_POLL_S):
                    answer = json.loads(self._connection.recv_bytes(_MAX_ANSWER_BYTES))
                    return answer if isinstance(answer, dict) else None
        except (OSError, EOFError, ValueError, RecursionError):
            pass
        return None

    def end(self, *, kill: bool = False) -> str:
        """Close the connection, which ends the process, or *kill* it. Return how it ended, for an error message."""
        self._connection.close()
        # If the process is ending by itself, wait for its exit code, which is more informative than our own signal.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL_S if kill else _END_S)
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return _reason(self._process.returncode)


def _reason(code: int | None) -> str:
    if code is None:
        # The process is blocked by a device or a file system that does not respond.
        return "it does not end"
    if code >= 0:
        return f"exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal {known.get(-code, -code)}"
