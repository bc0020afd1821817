"""How a part of the runtime runs in its process, whether it is started by `serve` or by hand."""

import importlib.abc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import authkeys.state
import runtimeconf.state
from authkeys.access import Access
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor import parts, preparation, startup
from system.heartbeat import Heartbeat
from system.process_limits import die_with_parent
from system.state_directory import prepare_state_dir

#: Signals that stay pending until the new program can handle them.
_ENDING = (signal.SIGTERM, signal.SIGINT)

#: Packages that pyarrow and DuckDB import if installed. They cost 40 MB and half a second, and no part needs them.
_UNUSED = ("numpy", "pandas")

Serve = Callable[[RuntimeConfig, dict[str, Any]], None]


class StopSignal:
    """
    The first SIGTERM or SIGINT from now on, for the main thread.

    The interpreter writes the signal number to a pipe as soon as the signal arrives. A handler would run only between
    two steps of the main thread, which is too late for a wait that has just begun. It might also run in the middle of a
    wait, while the lock of the event that the handler sets is held.
    """

    def __init__(self) -> None:
        self._arrivals, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._number = 0
        signal.set_wakeup_fd(write_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # The interpreter reports only signals that have a handler.

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait at most *timeout_s* seconds for the signal. Return its number, or 0 if it has not arrived."""
        if not self._number and select.select([self._arrivals], [], [], timeout_s)[0]:
            self._number = os.read(self._arrivals, 1)[0]
        return self._number


class _UnusedPackages(importlib.abc.MetaPathFinder):
    """Hides the packages in `_UNUSED`."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Raise ModuleNotFoundError for packages in `_UNUSED`; leave all others to the next finder."""
        if fullname in _UNUSED:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def heartbeat(extra: Mapping[str, Any]) -> Callable[[], None]:
    """
    Return the function that a working part must call every few seconds, from the content of its handover.

    The function does nothing if no supervisor started the part.
    """
    return Heartbeat(extra["heartbeat"]).beat if "heartbeat" in extra else lambda: None


def receive() -> None:
    """
    Receive the inherited configuration, if any. `manage.py` calls this before anything needs the configuration.

    From now on, the part is killed as soon as its supervisor ends for any reason.
    """
    # Setting None in `sys.modules` would not work because Cython code mistakes None for the module.
    sys.meta_path.insert(0, _UnusedPackages())
    preparation.receive()
    descriptor = os.environ.pop(parts.HANDOVER_VARIABLE, "")
    if not descriptor:
        return
    config, extra = handover.receive(int(descriptor))
    if "reports" not in extra:
        handover.stop_following()
    if "supervisor" in extra:
        die_with_parent(extra["supervisor"])
    # The supervisor and `execute` block signals, and a new process inherits the signal mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    parts.leave_no_core()
    runtimeconf.state.set_config(config)


def run(program: parts.Program, serve: Serve, handed: Callable[[], Mapping[str, Any]]) -> None:
    """
    Serve with the handover.

    Without one, check the configuration file and execute the program again with only what it needs.

    Args:
        program: The program.
        serve: Serves until SIGTERM. It raises StartError if it cannot start, and a restart would not help.
        handed: Returns the JSON values that *serve* needs in addition to those in `parts.content`.

    Raises:
        StartError: The program cannot start.
    """
    received = handover.received()
    if received is not None:
        prepare_state_dir(received[0].state_dir)  # The file may have been removed or changed since the runtime started.
        serve(*received)
    elif (asked := preparation.current()) is not None:
        preparation.prepare(asked)
    else:
        began = time.monotonic()
        config = startup.checked_config()
        if program != "serve":  # The new program logs the warnings once it can start.
            startup.log_warnings(config)
        _execute(program, config, authkeys.state.get_access(), began=began, **handed())


def _execute(program: parts.Program, config: RuntimeConfig, who: Access, **extra: Any) -> NoReturn:
    """
    Replace this process with *program*, passing only its handover and an environment without secrets.

    The process keeps its id but loses its memory: the configuration file, the keys, and the engine that checked the
    views.

    Raises:
        OSError: The program cannot be executed.
    """
    descriptor = handover.write(*parts.content(program, config, who, **extra))
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, str(parts.MANAGE), *sys.argv[1:]] if program == "serve" else parts.command(program)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    environ = {**parts.environment(program, config, os.environ), parts.HANDOVER_VARIABLE: str(descriptor)}
    os.execve(arguments[0], arguments, environ)  # noqa: S606 (no shell is wanted)
