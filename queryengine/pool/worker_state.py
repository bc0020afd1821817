"""
What a worker tells its arbiter: whether it is busy, with which statement, and until when it may be.

It is a fixed record at the start of the worker's heartbeat file, which gunicorn makes before it forks and both sides
hold open. Writing it is one system call, and reading it needs nothing from the worker.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Literal

Phase = Literal["booting", "idle", "busy", "unfit"]

_PHASES: tuple[Phase, ...] = ("booting", "idle", "busy", "unfit")
_RECORD = struct.Struct("!Bd32s")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """
    An "unfit" worker waits for a statement like an idle one, but has no engine to run it: it can only say so.

    `deadline` is the `time.monotonic()` at which a busy worker is killed by its own alarm, 0.0 for one that is not.

    `query_id` is cut to 32 ASCII characters.
    """

    phase: Phase = "booting"
    deadline: float = 0.0
    query_id: str = ""

    def runs(self, query_id: str) -> bool:
        """Whether the worker is busy with the statement of this id, which may be longer than the record has room."""
        return self.phase == "busy" and self.query_id == query_id[:32]


def write_state(descriptor: int, state: WorkerState) -> None:
    """
    Write *state* to the heartbeat file *descriptor*.

    Raises:
        OSError: It cannot be written.
    """
    query_id = state.query_id.encode("ascii", "replace")[:32]
    os.pwrite(descriptor, _RECORD.pack(_PHASES.index(state.phase), state.deadline, query_id), 0)


def read_state(descriptor: int) -> WorkerState:
    """Read what was written last to *descriptor*; "booting" when nothing was, or it cannot be read."""
    try:
        phase, deadline, query_id = _RECORD.unpack(os.pread(descriptor, _RECORD.size, 0))
        return WorkerState(phase=_PHASES[phase], deadline=deadline, query_id=query_id.rstrip(b"\0").decode("ascii"))
    except (OSError, struct.error, IndexError, UnicodeDecodeError):
        return WorkerState()
