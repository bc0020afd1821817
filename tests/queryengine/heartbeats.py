"""What engine workers say of themselves, read as their arbiter does."""

import os
from contextlib import suppress
from pathlib import Path

from queryengine.pool.worker import WorkerState, read_state


def state_of(worker: int) -> WorkerState:
    """Read what process *worker* wrote last; "booting" when it has written nothing yet, or is gone."""
    found = []
    with suppress(OSError):  # it is gone
        for descriptor in Path(f"/proc/{worker}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                if "wgunicorn-" in str(descriptor.readlink()):
                    found.append(descriptor)
    with suppress(OSError, ValueError):
        (heartbeat,) = found  # A process that was just forked holds those of its siblings, too.
        opened = os.open(heartbeat, os.O_RDONLY)
        try:
            return read_state(opened)
        finally:
            os.close(opened)
    return WorkerState()


def ticks(process: int) -> int:
    """Return the CPU time of *process*, in units of SC_CLK_TCK."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
