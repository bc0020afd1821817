"""
The parts of the runtime as processes: what each is given when it is executed, and how it takes it.

A part gets the checked configuration through an anonymous file (`runtimeconf.handover`) and an environment of its
own. So it neither reads the YAML again nor knows more than it needs: their digests go to web and flight only, and what
leads to the sources of data to refresh only. The keys themselves are nowhere: the process that reads them becomes the
supervisor, or a part, by executing that anew.
"""

from __future__ import annotations

import importlib.abc
import logging.config
import os
import re
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from django.conf import settings

import runtimeconf.state
from authkeys import access
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from runtimeconf.source_environment import variables_for
from system.parent_death import die_with_parent

PartName = Literal["refresh", "engine", "web", "flight"]
PARTS: tuple[PartName, ...] = get_args(PartName)

#: What is executed with a handover: each part, and their supervisor, which hands on what it was handed.
Program = PartName | Literal["serve"]

#: What authenticates callers gets the digests of the keys; the parameters of datasets are for what reads sources.
_GET_DIGESTS = frozenset({"web", "flight", "serve"})
_GET_SOURCES = frozenset({"refresh", "serve"})

#: Names the descriptor of the handover in the environment of a part.
HANDOVER_VARIABLE = "RUNTIME_HANDOVER_FD"

#: The exit code of a part that another try would not help (EX_CONFIG of sysexits.h).
CANNOT_START = 78

#: What a new program is to get when it can answer.
_ENDING = (signal.SIGTERM, signal.SIGINT)

#: Packages that pyarrow and DuckDB load where they find them: 40 MB and half a second for nothing a part does.
_UNUSED = ("numpy", "pandas")

_MANAGE = Path(__file__).resolve().parents[1] / "manage.py"

#: What every part may have of the environment, by name. Everything else may be a secret of somebody.
_ENVIRONMENT = re.compile(
    "PATH|HOME|USER|LOGNAME|TZ|TZDIR|TMPDIR|LANG|LANGUAGE|LC_[A-Z]+|LOG_FORMAT|VIRTUAL_ENV|DJANGO_SETTINGS_MODULE"
    "|PYTHON[A-Z0-9]+|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_[A-Z_]+|COV_[A-Z_]+|COVERAGE_[A-Z_]+"
)

#: What libraries are told. gRPC's own log has another form, and whoever connects could fill it; its older listener
#: hands a call from thread to thread a third less often, and a version that has no other one left ignores this.
#: pyarrow's own allocator takes 4 MB when it is loaded, and no part that computes something uses it
#: (`process_limits.confine`).
_FOR_LIBRARIES = {
    "GRPC_VERBOSITY": "NONE",
    "GRPC_EXPERIMENTS": "-event_engine_listener",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def command(name: PartName) -> list[str]:
    """Return the command line of a part."""
    return [sys.executable, str(_MANAGE), f"run{name}"]


def environment(name: Program, config: RuntimeConfig, environ: Mapping[str, str], descriptor: int) -> dict[str, str]:
    """Return what of *environ* a program gets, and the variable that leads it to its handover in *descriptor*."""
    # Proxies and credentials of the machine are for what reads sources.
    allowed = [_ENVIRONMENT, *([variables_for(config.datasets)] if name in _GET_SOURCES else [])]
    kept = {
        variable: value for variable, value in environ.items() if any(names.fullmatch(variable) for names in allowed)
    }
    return {**kept, **_FOR_LIBRARIES, HANDOVER_VARIABLE: str(descriptor)}


def hand_over(name: Program, config: RuntimeConfig, who: access.Access, **extra: Any) -> int:
    """
    Write the handover of a program.

    Args:
        name: The program.
        config: The checked configuration, without keys.
        who: Who may call.
        extra: More for this program, fit for JSON.

    Returns:
        The descriptor of the handover.

    Raises:
        OSError: The system has no room for it.
    """
    extra["several_keys"] = who.key_set is not None and len(who.key_set) > 1
    if name in _GET_DIGESTS:
        extra["access"] = access.handover(who)
    return handover.write(config if name in _GET_SOURCES else handover.without_sources(config), extra)


def receive() -> None:
    """
    Take the handover, if this process was given one; `manage.py` calls it before anything asks for a configuration.

    A part of a supervisor ends with it from now on, at once and however it ends.
    """
    descriptor = os.environ.pop(HANDOVER_VARIABLE, "")
    if not descriptor:
        return
    config, extra = handover.receive(int(descriptor))
    os.close(int(descriptor))
    if "supervisor" in extra:
        die_with_parent(extra["supervisor"])
    # The supervisor takes its signals one by one, and `execute` keeps what comes for the new program.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    leave_no_core()
    # Not by None in `sys.modules`: what Cython compiled takes that for the module itself.
    sys.meta_path.insert(0, _Absent())
    runtimeconf.state.set_config(config)


class _Absent(importlib.abc.MetaPathFinder):
    """Finds that what a part has no use for is not installed."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Raise ModuleNotFoundError for the packages of `_UNUSED`; leave all others to those after this."""
        if fullname in _UNUSED:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def run_without_apps(argv: list[str]) -> None:
    """
    Run the command of *argv* as `manage.py` runs any other, in a process without Django's apps.

    The logs are as with them. With REST framework, the apps take 16 MB and 0.2 s of a processor.
    """
    if settings.LOGGING:  # Settings of somebody's own may have none.
        logging.config.dictConfig(settings.LOGGING)
    module = importlib.import_module(f"runtime_site.management.commands.{argv[1]}")
    module.Command().run_from_argv(argv)


def leave_no_core() -> None:
    """Have neither this process nor those it starts leave their memory, keys of callers in it, on the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def execute(name: Program, config: RuntimeConfig, who: access.Access, **extra: Any) -> NoReturn:
    """
    Become the program *name*, anew: in an environment without secrets, with nothing but its handover.

    The process stays, and what was in its memory goes: the YAML, the keys, the engine that judged the views. What is
    *extra* is for this program, fit for JSON.

    Raises:
        OSError: The program cannot be executed.
    """
    descriptor = hand_over(name, config, who, **extra)
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, str(_MANAGE), *sys.argv[1:]] if name == "serve" else command(name)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    os.execve(arguments[0], arguments, environment(name, config, os.environ, descriptor))  # noqa: S606 (no shell is wanted)
