"""
The state that a worker reports to its arbiter: its phase, its statement, and the deadline of that.

It is a fixed record at the start of the worker's heartbeat file, which gunicorn creates before it forks and both
processes hold open. Writing it is one system call, and reading it needs no cooperation of the worker.
"""

import os
import struct
from dataclasses import dataclass
from typing import Literal, get_args

Phase = Literal["booting", "idle", "busy", "unfit"]

_PHASES: tuple[Phase, ...] = get_args(Phase)
_RECORD = struct.Struct("!Bd32s")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """
    An "unfit" worker accepts statements like an idle one, but it has no engine and can only refuse them.

    `deadline` is the `time.monotonic()` at which its own alarm kills a busy worker; 0.0 for any other.

    `query_id` is truncated to 32 ASCII characters.
    """

    phase: Phase = "booting"
    deadline: float = 0.0
    query_id: str = ""

    def runs(self, query_id: str) -> bool:
        """Whether the worker is busy with the statement *query_id*, which need not be truncated."""
        return self.phase == "busy" and self.query_id == query_id[:32]


def write_state(descriptor: int, state: WorkerState) -> None:
    """
    Write *state* to the heartbeat file *descriptor*.

    Raises:
        OSError: The file cannot be written.
    """
    query_id = state.query_id.encode("ascii", "replace")[:32]
    os.pwrite(descriptor, _RECORD.pack(_PHASES.index(state.phase), state.deadline, query_id), 0)


def read_state(descriptor: int) -> WorkerState:
    """Return the state last written to *descriptor*; "booting" if there is none or it cannot be read."""
    try:
        phase, deadline, query_id = _RECORD.unpack(os.pread(descriptor, _RECORD.size, 0))
        return WorkerState(phase=_PHASES[phase], deadline=deadline, query_id=query_id.rstrip(b"\0").decode("ascii"))
    except (OSError, struct.error, IndexError, UnicodeDecodeError):
        return WorkerState()
