"""Memory that forked processes share with the process they come from."""

from __future__ import annotations

import atexit
import gc

from system.process_limits import give_memory_back

#: After so many new objects the garbage collector looks at these. A request makes about a hundred, and leaves hardly
#: any of them in a cycle.
_COLLECT_AFTER = 10_000


def share_what_is_loaded() -> None:
    """
    Have the processes that are forked from this one share its memory, for as long as nobody writes to it.

    A garbage collector would, in every object that it looks at: 7 MB a worker. It also looks less often from now on.
    """
    gc.collect()
    give_memory_back()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    atexit.register(gc.unfreeze)  # DuckDB complains at the end of whatever was not collected then.
