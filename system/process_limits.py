"""
The limits that a process sets for itself before serving, and the return of memory to the system.

All servers end with their parent and have file descriptor limits. The other limits are for engine workers and loaders.

Linux only. A statement that reaches a limit gets an error from DuckDB or the encoders, or ends the process. The parent
process continues.

The memory limit is on private writable memory (RLIMIT_DATA) and not on address space, because DuckDB, pyarrow and the C
library reserve far more addresses than they use. To keep that count near the memory in use, DuckDB's allocator must
return addresses (`queryengine/__init__.py`), and pyarrow must use the C library's allocator because its own allocator
reserves 1 GiB.
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
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

logger = logging.getLogger(__name__)

#: The environment variables that a worker keeps. Libraries read them, and none of them is a secret.
HARMLESS_VARIABLES = frozenset(
    {
        *("DJANGO_SETTINGS_MODULE", "GRPC_EXPERIMENTS", "GRPC_VERBOSITY", "HOME", "LANG", "LANGUAGE", "LC_ALL"),
        *("LC_CTYPE", "LOG_FORMAT", "PATH", "TMPDIR", "TZ"),
    }
)

#: The niceness of a worker, so that the processes that serve health checks take precedence.
NICENESS = 5

#: Options of prctl(2).
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

#: The maximum number of simultaneous connections of one process, if the system permits that many.
MAX_CONNECTIONS = 10_000
_MIN_CONNECTIONS = 4
#: Descriptors not used for clients: listener, log, heartbeat file, event loop, sockets of the other processes.
_BASE_DESCRIPTORS = 32

#: Allocations of up to `_REUSED_BYTES` (the intermediate results of pyarrow's kernels) reuse freed memory, and up to
#: `_KEPT_BYTES` of it stay with the process. Otherwise the kernel would have to clear each new page.
_MIB = 1024 * 1024
_REUSED_BYTES = 4 * _MIB
_KEPT_BYTES = 32 * _MIB

#: The stack of a thread that runs statements: the C library's default under the usual limit.
STACK_BYTES = 8 * _MIB

#: Parameters of the C library's `mallopt` (malloc.h).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: The size of a `pthread_attr_t`, with room to spare: it has 56 bytes with glibc and musl on 64 bits.
_PTHREAD_ATTR_BYTES = 128

#: The garbage collector's threshold of new objects. A request creates about a hundred, hardly any of them in a cycle.
_COLLECT_AFTER = 10_000

#: The name of jemalloc's control that purges all arenas (4096 means all).
_PURGE = b"arena.4096.purge"


def die_with_parent(parent: int) -> None:
    """
    Tell the kernel to kill this process when its *parent* ends. If *parent* has already ended, kill it now.

    Raises:
        OSError: The kernel refuses the request.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def connection_limit(statements: int) -> int:
    """
    Return the number of clients that a process may accept, of which *statements* need a second socket each.

    The number is derived from the hard limit of descriptors (`ulimit -Hn`).
    """
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, hard_limit() - _BASE_DESCRIPTORS - statements))


def descriptors_for(datasets: int) -> int:
    """
    Return the number of descriptors that a process with an engine may need.

    Each snapshot may be open three times: for the running statement, for the next statements, and for a newer session.
    """
    return 3 * datasets + _BASE_DESCRIPTORS


def hard_limit(kind: int = resource.RLIMIT_NOFILE) -> int:
    """Return the hard limit of *kind* (by default, of descriptors); `sys.maxsize` if there is none."""
    _, hard = resource.getrlimit(kind)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_soft_limit() -> None:
    """Raise the soft limit of descriptors to the number that this process may need, if the hard limit permits."""
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

    The closed numbers are reassigned to the null device. Inherited objects may close their descriptors later, and must
    not close one that this process has opened.
    """
    kept = set(keep)
    if sys.__stderr__ is not None:  # otherwise its number may belong to a file that was opened later
        kept.add(sys.__stderr__.fileno())
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - kept - {null}:
        try:
            os.fstat(descriptor)
        except OSError:  # the descriptor used to read the directory
            continue
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def confine(*, file_bytes: int | None, niceness: int = NICENESS) -> None:
    """
    Restrict this process, except for memory and CPU.

    The process cannot gain privileges, leave a core file or write a file larger than *file_bytes* (None: no limit), and
    its niceness is raised by *niceness*. If it uses pyarrow, import pyarrow first.

    Raises:
        OSError: A limit cannot be set.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if file_bytes is not None:
        file_bytes = min(file_bytes, hard_limit(resource.RLIMIT_FSIZE))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    os.nice(niceness)
    if (pa := sys.modules.get("pyarrow")) is not None:  # A process without pyarrow must not pay for the import.
        pa.set_memory_pool(pa.system_memory_pool())


class MemoryUse(Struct, frozen=True):
    """Memory in bytes: `resident` is private memory in use, `data` private writable memory as in RLIMIT_DATA."""

    resident: int
    data: int


class Memory:
    """The memory use of this process. This object has its own descriptor, so `use` works when no descriptor is left."""

    def __init__(self) -> None:
        """Open the descriptor. Raises OSError if none is left."""
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def use(self) -> MemoryUse:
        """Return the current memory use."""
        _, resident, shared, _, _, data, _ = map(int, os.pread(self._statm, 128, 0).split())
        page = resource.getpagesize()
        return MemoryUse(resident=(resident - shared) * page, data=data * page)

    def limit(self, more_bytes: int) -> None:
        """Allow *more_bytes* in addition to the current memory use."""
        _set_soft(resource.RLIMIT_DATA, self.use().data + more_bytes)


def reuse_memory() -> None:
    """
    Keep freed memory for the next allocations, until `give_memory_back`. Call this before any thread starts.

    All threads share one arena because the C library trims only its first one.
    """
    libc = ctypes.CDLL(None)
    for parameter, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _REUSED_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES)):
        libc.mallopt(parameter, value)


def set_stack_size() -> bool:
    """
    Give each new thread a stack of `STACK_BYTES`, regardless of the limit of this process.

    The main thread gets the same size if the limit can be raised. Otherwise this returns False.
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
    """Return the memory that allocators keep to the system. Takes a few milliseconds after a large statement."""
    if (engine := sys.modules.get("_duckdb")) is not None and (purge := _duckdb_control(str(engine.__file__))):
        purge(_PURGE, None, None, None, 0)
    if (pa := sys.modules.get("pyarrow")) is not None:
        pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def share_what_is_loaded() -> None:
    """
    Keep the memory of this process shared with its forks.

    The garbage collector writes to every object that it visits, which would unshare 7 MB per worker. This makes it skip
    the objects that exist now, and run less often.
    """
    gc.collect()
    give_memory_back()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    atexit.register(gc.unfreeze)  # DuckDB reports objects that are not collected at exit.


def limit_cpu(more_s: float) -> None:
    """Tell the kernel to end this process after its threads have used another *more_s* seconds of CPU in total."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_soft(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + more_s) + 1)


def lift_cpu_limit() -> None:
    """Undo `limit_cpu`."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


@contextmanager
def limited_files(file_bytes: int) -> Iterator[None]:
    """Limit files to *file_bytes* within the block. A larger write fails with EFBIG because Python ignores SIGXFSZ."""
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
    Return the control function of DuckDB's allocator; None if this build of DuckDB has another allocator.

    DuckDB has no SQL or API that returns freed memory to the system, so this uses the exported function of its bundled
    jemalloc. Without that function, a worker keeps more memory after a large statement and is replaced sooner.
    """
    try:
        control = ctypes.CDLL(library).duckdb_je_mallctl
    except (OSError, AttributeError):
        logger.warning("DuckDB's allocator cannot be told to return memory")
        return None
    control.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return control
