"""How a part of the runtime runs in its process, whether it is started by `serve` or by hand."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import runtimeconf.state
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor import parts
from supervisor.errors import StartError
from system.heartbeat import Heartbeat
from system.process_limits import die_with_parent
from system.state_directory import prepare_state_dir
from system.teardown import exit_with

if TYPE_CHECKING:
    from authkeys.access import Access

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


class _HiddenPackages:
    """Hides packages."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Raise ModuleNotFoundError for the hidden packages; leave all others to the next finder."""
        if fullname in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def hide_packages(names: Collection[str]) -> None:
    """Make imports of the packages *names* fail in this process, as if they were not installed."""
    # Setting None in `sys.modules` would not work because Cython code mistakes None for the module.
    sys.meta_path.insert(0, _HiddenPackages(names))


def heartbeat(extra: Mapping[str, Any]) -> Callable[[], None]:
    """
    Return the function that a working part must call every few seconds, from the content of its handover.

    The function does nothing if no supervisor started the part.
    """
    return Heartbeat(extra["heartbeat"]).beat if "heartbeat" in extra else lambda: None


def receive() -> bool:
    """
    Receive the inherited configuration, if any. `manage.py` calls this before anything needs the configuration.

    From now on, the part is killed as soon as its supervisor ends for any reason.

    Returns:
        Whether there is one, so that `serve_received` can run the part.
    """
    hide_packages(_UNUSED)
    descriptor = os.environ.pop(parts.HANDOVER_VARIABLE, "")
    if not descriptor:
        from supervisor import preparation  # noqa: PLC0415 (the parts do not need it)

        preparation.receive()
        return False
    config, extra = handover.receive(int(descriptor))
    if "reports" not in extra:
        handover.stop_following()
    if "supervisor" in extra:
        die_with_parent(extra["supervisor"])
    # The supervisor and `execute` block signals, and a new process inherits the signal mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    runtimeconf.state.set_config(config)
    return True


def serve_received(program: str) -> None:
    """Run *program* with the handover until SIGTERM. Print the error and exit if it cannot start."""
    config, extra = handover.received() or (None, {})
    if config is None:
        raise RuntimeError("This process has received no handover.")
    try:
        prepare_state_dir(config.state_dir)  # The file may have been removed or changed since the runtime started.
        serve: Serve = import_module(f"supervisor.{program}").serve
        serve(config, extra)
        exit_with(0)
    except SystemExit as end:
        exit_with(end.code)
        raise
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1 if program == "serve" else parts.CANNOT_START)


def run(program: parts.Program, handed: Callable[[], Mapping[str, Any]]) -> None:
    """
    Check the configuration file, and execute *program* again with only what it needs.

    Args:
        program: The program.
        handed: Returns the JSON values that it needs in addition to those in `parts.content`.

    Raises:
        StartError: The program cannot start.
    """
    # Imported here, because a process with a handover does not need them: they take 5 MB.
    import authkeys.state  # noqa: PLC0415
    from supervisor import preparation, startup  # noqa: PLC0415

    if (asked := preparation.current()) is not None:
        preparation.prepare(asked)
    else:
        began = time.monotonic()
        config = startup.checked_config()
        if program != "serve":  # The new program logs the warnings once it can start.
            startup.log_warnings(config)
        _execute(program, config, authkeys.state.get_access(), began=began, **handed())


def _execute(program: parts.Program, config: RuntimeConfig, who: "Access", **extra: Any) -> NoReturn:
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
