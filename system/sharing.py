"""Share memory between a process and the processes that it forks."""

from __future__ import annotations

import atexit
import gc

from system.process_limits import give_memory_back

#: The garbage collector's threshold of new objects. A request makes about a hundred, of which hardly any is in a cycle.
_COLLECT_AFTER = 10_000


def share_what_is_loaded() -> None:
    """
    Keep the memory of this process shared with the processes that it forks.

    The garbage collector writes to every object that it visits, which would unshare 7 MB per worker. So it skips the
    objects that exist now, and runs less often from now on.
    """
    gc.collect()
    give_memory_back()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    atexit.register(gc.unfreeze)  # DuckDB complains about objects that are not collected at exit.
