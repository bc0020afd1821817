"""A full disk, for this process alone."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """
    Have every file of this process end at *size* bytes, as on a full disk.

    Python would cut off the bytecode of what is imported meanwhile, and no process could import that module again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = former
