"""Fork the process of the tests, in which libraries run threads of their own."""

import gc
import os


def fork() -> int:
    """
    Fork as `os.fork` does, but without garbage collection in the child.

    The child has a copy of what the tests left behind, and of no thread but this one. A collection would finalise, for
    example, an Arrow Flight client, which waits there for ever for a thread that does not exist.
    """
    gc.disable()
    pid = os.fork()
    if pid:
        gc.enable()
    return pid
