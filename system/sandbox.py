"""
The sandbox of an engine worker: no programs, no network except one port, no other processes, no other file writes.

It uses two Linux features, each as far as the kernel supports it. Landlock (5.13, extended by each version of its
interface) denies writing, creating and removing files outside the given directories, executing programs, and signalling
processes outside the sandbox. A seccomp filter (x86_64 and aarch64) makes system calls that no worker needs fail with
EPERM. Reading is not restricted because a worker opens snapshots later, and libraries load their files themselves.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Landlock's system calls, which have the same numbers on every architecture, and arguments (linux/landlock.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1

#: Access rights on files: execute, write, remove (a directory, a file), make (seven kinds of file). Later versions add
#: moving to another directory, truncating, and controlling a device.
_EXECUTE, _WRITE_FILE, _REMOVE, _MAKE = 1 << 0, 1 << 1, 0b11 << 4, 0b111_1111 << 6
_REFER, _TRUNCATE, _CONTROL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _CONTROL_DEVICE}
#: The access rights below a writable directory. Only directories (bit 7) and regular files (bit 8) can be created.
_BELOW = _WRITE_FILE | _REMOVE | 1 << 7 | 1 << 8 | _REFER | _TRUNCATE
#: Bind and connect TCP sockets (since version 4); reach abstract sockets and signal processes outside (since 6).
_TCP, _TCP_SINCE = 0b11, 4
_CONNECT, _NET_PORT = 0b10, 2
_SCOPES, _SCOPES_SINCE = 0b11, 6
#: From this version on, files outside cannot be changed. In earlier versions they could be truncated.
_WHOLE_SINCE = 3

#: seccomp(2). Without the flag, kernels before 5.16 slow down the whole process.
_SET_FILTER, _ASK_ACTION, _ALLOW_SPECULATION = 1, 2, 4
_ERRNO, _ALLOW = 0x0005_0000, 0x7FFF_0000
#: For each machine: seccomp's architecture id, the number of seccomp(2), and the denied system calls. These are socket,
#: execve, execveat, ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, bpf, and io_uring_setup, which can make
#: some of the others.
_REFUSED = {
    "x86_64": (0xC000_003E, 317, (41, 59, 322, 101, 310, 311, 438, 321, 425)),
    "aarch64": (0xC000_00B7, 277, (198, 221, 281, 117, 270, 271, 438, 280, 425)),
}
#: The first number of the x32 system calls on x86_64, which nothing uses.
_OTHER_CALLS = 0x4000_0000

#: Filter instructions: load a word, jump if it is equal to (or at least) a number, return.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE = 0, 4  # the offsets of the words

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> list[str]:
    """Return the features of `enter` that this system lacks, for a log message."""
    version = _landlock()
    lacks = [] if version >= _WHOLE_SINCE else [f"Landlock {_WHOLE_SINCE} (it has {version or 'none'})"]
    return lacks if _can_filter() else [*lacks, "seccomp filters"]


def enter(writable: Iterable[Path], *, port: int | None = None) -> None:
    """
    Permanently restrict this thread and the threads that it starts from now on, as far as the system can.

    Files can be written, created and removed only below the directories *writable*. Missing directories are skipped.
    With *port*, sockets can be created, and TCP can connect to that port only (Landlock 4). The process must already be
    unable to gain privileges (`process_limits.confine`).

    Raises:
        OSError: The system refuses a feature that it reports as supported.
    """
    if version := _landlock():
        _restrict(version, writable, port)
    if _can_filter():
        machine, seccomp, numbers = _REFUSED[platform.machine()]
        _refuse_calls(machine, seccomp, numbers if port is None else numbers[1:])


def _landlock() -> int:
    """Return the version of Landlock's interface; 0 without Landlock."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)))


def _can_filter() -> bool:
    _, seccomp, numbers = _REFUSED.get(platform.machine(), (0, 0, ()))
    return bool(numbers) and _libc.syscall(seccomp, _ASK_ACTION, 0, struct.pack("=I", _ERRNO)) == 0


def _restrict(version: int, writable: Iterable[Path], port: int | None) -> None:
    handled = _EXECUTE | _WRITE_FILE | _REMOVE | _MAKE
    for since, access in _SINCE.items():
        handled |= access if version >= since else 0
    # An older kernel knows fewer fields, and accepts the others if they are 0.
    attributes = struct.pack(
        "=QQQ", handled, _TCP if version >= _TCP_SINCE else 0, _SCOPES if version >= _SCOPES_SINCE else 0
    )
    rules = _called(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for directory in writable:
            with suppress(FileNotFoundError, NotADirectoryError):
                below = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                _called(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", handled & _BELOW, below), 0)
                os.close(below)
        if port is not None and version >= _TCP_SINCE:
            _called(_ADD_RULE, rules, _NET_PORT, struct.pack("=QQ", _CONNECT, port), 0)
        _called(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _refuse_calls(machine: int, seccomp: int, numbers: tuple[int, ...]) -> None:
    """Deny the system calls *numbers*, and all system calls of architectures other than *machine*, with EPERM."""
    last = len(numbers) + 5  # the instruction that denies
    program = [(_LOAD, 0, 0, _MACHINE), (_IF_EQUAL, 0, last - 2, machine)]
    program += [(_LOAD, 0, 0, _NUMBER), (_IF_AT_LEAST, last - 4, 0, _OTHER_CALLS)]
    program += [(_IF_EQUAL, last - index - 1, 0, number) for index, number in enumerate(numbers, len(program))]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))  # a `struct sock_fprog`
    _called(seccomp, _SET_FILTER, _ALLOW_SPECULATION, filter_)


def _called(*arguments: Any) -> int:
    """Make a system call. Raises OSError."""
    result = int(_libc.syscall(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
