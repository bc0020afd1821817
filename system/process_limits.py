"""
The limits that a process sets for itself before it serves, and how it returns memory.

All servers end with their parent and have limits of file descriptors. The other limits are for engine workers and
loaders.

Linux only. A statement that meets a limit gets an error from DuckDB or the encoders, or ends the process; the process
that started this one continues.

The memory limit is on private writable memory (RLIMIT_DATA) and not on address space, because DuckDB, pyarrow and the C
library reserve far more addresses than they use. To keep that count near the memory in use, DuckDB's allocator must
return addresses (`queryengine/__init__.py`), and pyarrow must use the C library's allocator: its own reserves 1 GiB.
"""

import atexit
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: The environment variables that a worker keeps. Libraries read them, and none is a secret.
HARMLESS_VARIABLES = frozenset(
    {
        *("DJANGO_SETTINGS_MODULE", "GRPC_EXPERIMENTS", "GRPC_VERBOSITY", "HOME", "LANG", "LANGUAGE", "LC_ALL"),
        *("LC_CTYPE", "LOG_FORMAT", "PATH", "TMPDIR", "TZ"),
    }
)

#: The niceness of a worker, so that the processes that answer health checks take precedence.
NICENESS = 5

#: Options of prctl(2).
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

#: The largest number of simultaneous connections of one process, if the system permits that many.
MAX_CONNECTIONS = 10_000
_MIN_CONNECTIONS = 4
#: Descriptors for anything but clients: listener, log, heartbeat file, event loop, sockets of the other processes.
_BASE_DESCRIPTORS = 32

#: Allocations of up to `_REUSED_BYTES` reuse freed memory, and up to `_KEPT_BYTES` of that stay with the process: the
#: intermediate results of pyarrow's kernels. The kernel would have to clear each new page.
_MIB = 1024 * 1024
_REUSED_BYTES = 4 * _MIB
_KEPT_BYTES = 32 * _MIB

#: The stack of a thread that runs statements: the C library's default under the usual limit.
STACK_BYTES = 8 * _MIB

#: Parameters of the C library's `mallopt` (malloc.h).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: The size of a `pthread_attr_t`: 56 bytes with glibc and musl on 64 bits, and room to spare.
_PTHREAD_ATTR_BYTES = 128

#: The garbage collector's threshold of new objects. A request makes about a hundred, hardly any of them in a cycle.
_COLLECT_AFTER = 10_000

#: The name of jemalloc's control that purges all arenas (4096 means all).
_PURGE = b"arena.4096.purge"


def die_with_parent(parent: int) -> None:
    """
    Have the kernel kill this process when *parent*, which forked it, ends; kill it now if *parent* has ended.

    Raises:
        OSError: The kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def connection_limit(statements: int) -> int:
    """
    Return the number of clients that a process may accept, given that *statements* of them need another socket each.

    It is derived from the hard limit of descriptors (`ulimit -Hn`).
    """
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, hard_limit() - _BASE_DESCRIPTORS - statements))


def descriptors_for(datasets: int) -> int:
    """
    Return the number of descriptors that a process with an engine may need.

    Each snapshot may be open three times: for the running statement, for the next ones, and for a newer session.
    """
    return 3 * datasets + _BASE_DESCRIPTORS


def hard_limit(kind: int = resource.RLIMIT_NOFILE) -> int:
    """Return the hard limit of *kind*, by default that of descriptors; `sys.maxsize` if there is none."""
    _, hard = resource.getrlimit(kind)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_soft_limit() -> None:
    """Raise the soft limit of descriptors to what this process may need, as far as the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * MAX_CONNECTIONS, hard_limit())
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def forget_environment() -> None:
    """Remove every variable that is not in `HARMLESS_VARIABLES` from the environment of this process."""
    for name in set(os.environ) - HARMLESS_VARIABLES:
        del os.environ[name]


def close_descriptors(keep: Iterable[int]) -> None:
    """
    Close every descriptor except *keep* and standard error, which is the log.

    The null device takes their numbers: inherited objects may close their descriptors later, and must not close one
    that this process has opened.
    """
    kept = set(keep)
    if sys.__stderr__ is not None:  # otherwise its number may belong to a file that was opened later
        kept.add(sys.__stderr__.fileno())
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - kept - {null}:
        try:
            os.fstat(descriptor)
        except OSError:  # the descriptor by which the directory was read
            continue
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def confine(*, file_bytes: int | None, niceness: int = NICENESS) -> None:
    """
    Restrict this process, apart from memory and CPU.

    It gains no privileges, leaves no core file, writes no file larger than *file_bytes* (None: no limit), and raises
    its niceness by *niceness*. If it uses pyarrow, import that first.

    Raises:
        OSError: A limit cannot be set.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if file_bytes is not None:
        file_bytes = min(file_bytes, hard_limit(resource.RLIMIT_FSIZE))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    os.nice(niceness)
    if (pa := sys.modules.get("pyarrow")) is not None:  # A process without it must not pay for the import.
        pa.set_memory_pool(pa.system_memory_pool())


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """In bytes: `resident` private memory in use, `data` private writable memory, as RLIMIT_DATA counts it."""

    resident: int
    data: int


class Memory:
    """The memory use of this process. It holds a descriptor, so `use` works when there is none left."""

    def __init__(self) -> None:
        """Raise OSError when there is no descriptor left."""
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def use(self) -> MemoryUse:
        """Return the memory in use now."""
        _, resident, shared, _, _, data, _ = map(int, os.pread(self._statm, 128, 0).split())
        page = resource.getpagesize()
        return MemoryUse(resident=(resident - shared) * page, data=data * page)

    def limit(self, more_bytes: int) -> None:
        """Allow *more_bytes* beyond the memory in use now."""
        _set_soft(resource.RLIMIT_DATA, self.use().data + more_bytes)


def reuse_memory() -> None:
    """
    Keep freed memory for the next allocations, until `give_memory_back`. Call this before any thread starts.

    All threads share one arena, because the C library trims only its first one.
    """
    libc = ctypes.CDLL(None)
    for parameter, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _REUSED_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES)):
        libc.mallopt(parameter, value)


def set_stack_size() -> bool:
    """
    Give each new thread a stack of `STACK_BYTES`, regardless of the limit of this process.

    The main thread gets as much if the limit can be raised; otherwise this returns False.
    """
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(_PTHREAD_ATTR_BYTES)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
    libc.pthread_setattr_default_np(attributes)
    libc.pthread_attr_destroy(attributes)
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < STACK_BYTES:
        _set_soft(resource.RLIMIT_STACK, STACK_BYTES)
    return hard_limit(resource.RLIMIT_STACK) >= STACK_BYTES


def give_memory_back() -> None:
    """Return to the system the memory that allocators keep. It takes some milliseconds after a large statement."""
    if (engine := sys.modules.get("_duckdb")) is not None and (purge := _duckdb_control(str(engine.__file__))):
        purge(_PURGE, None, None, None, 0)
    if (pa := sys.modules.get("pyarrow")) is not None:
        pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


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


def limit_cpu(more_s: float) -> None:
    """Have the kernel end this process once its threads together have used another *more_s* seconds of CPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_soft(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + more_s) + 1)


def lift_cpu_limit() -> None:
    """Undo `limit_cpu`."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


@contextmanager
def limited_files(file_bytes: int) -> Iterator[None]:
    """Limit files to *file_bytes* within the block. A larger write fails with EFBIG: Python ignores SIGXFSZ."""
    _set_soft(resource.RLIMIT_FSIZE, file_bytes)
    try:
        yield
    finally:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def _set_soft(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@cache
def _duckdb_control(library: str) -> Any:
    """
    Return the control function of DuckDB's allocator, or None if this build of DuckDB has another allocator.

    DuckDB has no SQL or API that returns freed memory to the system, so this calls the exported function of its
    bundled jemalloc. Without it a worker keeps more memory after a large statement, and is replaced sooner.
    """
    try:
        control = ctypes.CDLL(library).duckdb_je_mallctl
    except (OSError, AttributeError):
        logger.warning("DuckDB's allocator cannot be told to return memory")
        return None
    control.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return control
