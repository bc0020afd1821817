"""
What an engine worker, or a loader, takes from itself before it serves anybody, and how it gives memory back.

Linux only. Limits that a statement runs into end in an error of DuckDB or of the encoders, or in the end of the
process; the process that started it goes on.

Memory is bounded by the kernel's count of private writable memory (RLIMIT_DATA), not of address space: DuckDB, pyarrow
and the C library reserve far more addresses than they use. For that count to be near what is in use, DuckDB's
allocator must give addresses back (`queryengine/__init__.py`), and pyarrow must use the C library's allocator: its own
reserves a gibibyte.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: What a worker keeps of the environment: nothing in it is a secret, and nothing in it is needed but by libraries.
HARMLESS_VARIABLES = frozenset(
    {"DJANGO_SETTINGS_MODULE", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOG_FORMAT", "PATH", "TMPDIR", "TZ"}
)

#: How much less of the CPU a worker gets than the processes that answer health checks.
NICENESS = 5

_PR_SET_NO_NEW_PRIVS = 38

#: Memory of up to so many bytes is taken from what was freed before, of which so much is kept at its end: what kernels
#: of pyarrow make on the way of a few pieces. Pages that are new are cleared first, one by one.
_MIB = 1024 * 1024
_REUSED_BYTES = 4 * _MIB
_KEPT_BYTES = 32 * _MIB

#: What a thread that runs statements has of stack: the C library's default where the limit is the usual one.
STACK_BYTES = 8 * _MIB

#: Parameters of the C library's `mallopt` (malloc.h).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: The size of a `pthread_attr_t`: 56 bytes with glibc and musl on 64 bits, and room to spare.
_PTHREAD_ATTR_BYTES = 128

#: jemalloc's "all arenas" in the names of its controls.
_PURGE = b"arena.4096.purge"


def forget_environment() -> None:
    """Remove every variable that is not in `HARMLESS_VARIABLES` from the environment of this process."""
    for name in set(os.environ) - HARMLESS_VARIABLES:
        del os.environ[name]


def close_descriptors(keep: Iterable[int]) -> None:
    """
    Let go of every descriptor but *keep* and standard error, where the log goes.

    Their numbers stay taken, by the null device: objects that were inherited with them may close them later, and must
    not close what this process opens.
    """
    kept = set(keep)
    if sys.__stderr__ is not None:  # else a file that was opened later has its number
        kept.add(sys.__stderr__.fileno())
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor != null and descriptor not in kept and _is_open(descriptor):
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def confine(*, file_bytes: int | None, niceness: int = NICENESS) -> None:
    """
    Limit what this process may do, but for memory and CPU.

    It gains no privileges, leaves no core file, writes no file of more than *file_bytes* (None: of any size), and is
    nicer than others by *niceness*. If it is to use pyarrow, that has to be imported before.

    Raises:
        OSError: A limit cannot be set.
    """
    _set_no_new_privileges()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if file_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        file_bytes = file_bytes if hard == resource.RLIM_INFINITY else min(file_bytes, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    os.nice(niceness)
    if (pa := _loaded("pyarrow")) is not None:
        pa.set_memory_pool(pa.system_memory_pool())


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """In bytes: `resident` private memory in use, `data` private writable memory, as RLIMIT_DATA counts it."""

    resident: int
    data: int


class Memory:
    """What this process uses of memory. It holds a descriptor to ask by, so that asking needs none."""

    def __init__(self) -> None:
        """Raise OSError when there is no descriptor to be had."""
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def use(self) -> MemoryUse:
        """Return what is in use now."""
        _, resident, shared, _, _, data, _ = map(int, os.pread(self._statm, 128, 0).split())
        page = resource.getpagesize()
        return MemoryUse(resident=(resident - shared) * page, data=data * page)

    def limit(self, more_bytes: int) -> None:
        """Allow *more_bytes* beyond what is in use now."""
        _set_soft(resource.RLIMIT_DATA, self.use().data + more_bytes)


def reuse_memory() -> None:
    """
    Keep what is freed for what is asked for next, until `give_memory_back`. Has to be called before there are threads.

    These share what is kept: the C library gives back the end of the first of its arenas only.
    """
    libc = ctypes.CDLL(None)
    for parameter, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _REUSED_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES)):
        libc.mallopt(parameter, value)


def set_stack_size() -> bool:
    """
    Give each thread that is made from now on `STACK_BYTES`, whatever the limit of this process is.

    The first thread gets as much if the limit can be raised; False when it cannot.
    """
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_PTHREAD_ATTR_BYTES)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
    libc.pthread_setattr_default_np(attributes)
    libc.pthread_attr_destroy(attributes)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= STACK_BYTES:
        return True
    _set_soft(resource.RLIMIT_STACK, STACK_BYTES)
    return hard == resource.RLIM_INFINITY or hard >= STACK_BYTES


def give_memory_back() -> None:
    """Return to the system what allocators keep for later. It takes some milliseconds after a large statement."""
    if (engine := _loaded("_duckdb")) is not None and (purge := _duckdb_control(engine.__file__)) is not None:
        purge(_PURGE, None, None, None, 0)
    if (pa := _loaded("pyarrow")) is not None:
        pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def limit_cpu(more_s: float) -> None:
    """Have the system end this process when it has used *more_s* seconds of CPU from now on, all threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_soft(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + more_s) + 1)


def lift_cpu_limit() -> None:
    """Take back what `limit_cpu` did."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


@contextmanager
def limited_files(file_bytes: int) -> Iterator[None]:
    """Write no file of more than *file_bytes* within the block: that fails with EFBIG, as Python ignores SIGXFSZ."""
    _set_soft(resource.RLIMIT_FSIZE, file_bytes)
    try:
        yield
    finally:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def _set_soft(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _loaded(library: str) -> Any:
    """Return the module *library*; None in a process that does without it, and would start later and larger by it."""
    return sys.modules.get(library)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:  # the one by which the directory was read
        return False
    return True


def _set_no_new_privileges() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@cache
def _duckdb_control(library: str) -> Any:
    """Find the control function of DuckDB's allocator; None when this build of DuckDB has another one."""
    try:
        control = ctypes.CDLL(library).duckdb_je_mallctl
    except (OSError, AttributeError):
        logger.warning("DuckDB's allocator cannot be told to give memory back")
        return None
    control.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return control
