"""
The parts of the runtime as processes: how each is executed, and how it receives its configuration.

A part gets the checked configuration through an anonymous file (`runtimeconf.handover`) and an environment of its own.
It neither reads the YAML again nor receives more than it needs: only web and flight get the key digests, and only
refresh gets the access to data sources. No process keeps the keys themselves: the one that reads them becomes the
supervisor, or a part, by executing a new program.
"""

import importlib.abc
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import runtimeconf.state
from authkeys.access import Access
from runtime_site.supervisor import PartCommand
from runtime_site.uncaught import begin_logging
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from system.process_limits import die_with_parent

PartName = Literal["watch", "refresh", "engine", "web", "flight"]
PARTS: tuple[PartName, ...] = get_args(PartName)

#: With the parts that run only if they are configured.
OptionalPartName = PartName | Literal["traces"]

#: The programs executed with a handover: each part, and their supervisor, which passes its own on.
Program = OptionalPartName | Literal["serve"]

#: Programs that authenticate callers get the key digests; programs that read sources get the dataset parameters; the
#: program that exports traces gets the headers of the collector; the program that runs statements gets the token of the
#: cluster.
_GET_DIGESTS = frozenset({"web", "flight", "serve"})
_GET_SOURCES = frozenset({"refresh", "serve"})
_GET_HEADERS = frozenset({"traces", "serve"})
_GET_TOKEN = frozenset({"engine", "serve"})

#: The environment variable with the file descriptor of the handover.
HANDOVER_VARIABLE = "RUNTIME_HANDOVER_FD"

#: The environment variable with the descriptors of a process that prepares a reload.
PREPARATION_VARIABLE = "RUNTIME_PREPARATION_FDS"

#: The exit code of a part that should not be restarted (EX_CONFIG of sysexits.h).
CANNOT_START = 78

#: Signals that stay pending until the new program can handle them.
_ENDING = (signal.SIGTERM, signal.SIGINT)

#: Packages that pyarrow and DuckDB import if installed: 40 MB and half a second that no part needs.
_UNUSED = ("numpy", "pandas")

_MANAGE = Path(__file__).resolve().parents[1] / "manage.py"

#: A word of a command line that names a part: `runweb`, `datasources.refresh.loader_process`.
_PART = re.compile(r"(?:run|.*\.)?(serve|web|engine|flight|refresh|watch|traces|loader)(?:r|_process)?")

#: The environment variables that every part may get. Any other may be a secret. PYTHONSAFEPATH would hide our packages
#: from the parts, which find them beside `manage.py`.
_ENVIRONMENT = re.compile(
    "PATH|HOME|USER|LOGNAME|TZ|TZDIR|TMPDIR|LANG|LANGUAGE|LC_[A-Z]+|LOG_FORMAT|VIRTUAL_ENV|DJANGO_SETTINGS_MODULE"
    "|PYTHON(?!SAFEPATH)[A-Z0-9]+|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_[A-Z_]+"
)

#: What programs that read sources may get too: proxies, also in lower case, trusted certificate authorities, and the
#: credentials of the machine.
_CONNECTIONS = "(?i:(?:HTTP|HTTPS|ALL|NO)_PROXY)|SSL_CERT_FILE"
_AUTHORITIES = re.compile("SSL_CERT_FILE")
_MACHINE = "AWS_[A-Z0-9_]+"

#: Settings for libraries. gRPC's own log has a different format, and any peer could flood it; its older listener passes
#: a call between threads a third less often, and versions without that listener ignore the setting. pyarrow's own
#: allocator takes 4 MB at import, and no part that computes uses it (`process_limits.confine`).
_FOR_LIBRARIES = {
    "GRPC_VERBOSITY": "NONE",
    "GRPC_EXPERIMENTS": "-event_engine_listener",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def command(name: OptionalPartName) -> list[str]:
    """Return the command line of a part."""
    return [sys.executable, str(_MANAGE), f"run{name}"]


def part_of(arguments: Iterable[str], default: str) -> str:
    """Return the part that a process with this command line is; *default* if it is none."""
    return next((match[1] for word in arguments if (match := _PART.fullmatch(word))), default)


def environment(name: Program, config: RuntimeConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of *environ* that a program may get."""
    # Only programs that read sources get the proxies and credentials of the machine.
    allowed = [_ENVIRONMENT]
    if name in _GET_SOURCES:
        shared = () if config.snapshots is None else (config.snapshots.params,)
        allowed.append(variables_for([*(dataset.params for dataset in config.datasets), *shared]))
    if name == "traces":
        allowed.append(_AUTHORITIES)
    kept = {
        variable: value for variable, value in environ.items() if any(names.fullmatch(variable) for names in allowed)
    }
    return {**kept, **_FOR_LIBRARIES}


def variables_for(params: Iterable[Mapping[str, Any]]) -> re.Pattern[str]:
    """
    Return a pattern of the variables that connections with these parameters may use.

    It includes the credentials of the machine only if one of them uses those.
    """
    uses_machine = any(one.get("s3_auth") == "iam_role" for one in params)
    return re.compile(f"{_CONNECTIONS}|{_MACHINE}" if uses_machine else _CONNECTIONS)


def content(name: Program, config: RuntimeConfig, who: Access, **extra: Any) -> tuple[RuntimeConfig, dict[str, Any]]:
    """
    Return what a program gets by its handover.

    Args:
        name: The program.
        config: The checked configuration, without keys.
        who: The callers to accept.
        extra: Further JSON values for this program.
    """
    extra["several_keys"] = who.key_set is not None and len(who.key_set) > 1
    if name == "watch":
        named = who.key_set.principals() if who.key_set is not None else ()
        extra["keys"] = [[caller.name, caller.expires_at] for caller in named if caller.name]
    if name in _GET_DIGESTS:
        extra["access"] = None if who.key_set is None else who.key_set.handover()
    if name not in _GET_SOURCES:
        config = handover.without_sources(config)
    if name not in _GET_TOKEN:
        config = handover.without_token(config)
    return (config if name in _GET_HEADERS else handover.without_headers(config)), extra


def receive() -> None:
    """
    Receive the handover, if there is one. `manage.py` calls this before anything asks for a configuration.

    From now on a part dies with its supervisor, at once and however that ends.
    """
    if PREPARATION_VARIABLE in os.environ:
        _receive_preparation(os.environ.pop(PREPARATION_VARIABLE))
    descriptor = os.environ.pop(HANDOVER_VARIABLE, "")
    if not descriptor:
        return
    config, extra = handover.receive(int(descriptor))
    if "reports" not in extra:
        handover.stop_following()
    if "supervisor" in extra:
        die_with_parent(extra["supervisor"])
    # The supervisor and `execute` block signals, and a new process inherits that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    leave_no_core()
    # None in `sys.modules` would not do: Cython code takes it for the module.
    sys.meta_path.insert(0, _UnusedPackages())
    runtimeconf.state.set_config(config)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a process that prepares a reload gets: the configuration in force, and the descriptor for its answer."""

    running: RuntimeConfig
    answer: int


_preparation: Preparation | None = None


def preparation() -> Preparation | None:
    """Return what this process is to prepare; None if it is no process that prepares a reload."""
    return _preparation


def keep_environment() -> int:
    """
    Write the environment of this process to an anonymous file, and return its descriptor.

    The supervisor keeps it for the processes that prepare a reload: the YAML may refer to secrets in it.
    """
    descriptor = os.memfd_create("querykeep-environment", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(
            json.dumps([[os.fsdecode(name), os.fsdecode(value)] for name, value in os.environb.items()]).encode()
        )
    return descriptor


def preparing(environ: Mapping[str, str], environment: int, running: int, answer: int) -> PartCommand:
    """Return how to start the process that prepares a reload. The descriptors are as in `Preparation`."""
    descriptors = (environment, running, answer)
    fields = ",".join(map(str, (os.getpid(), *descriptors)))
    return PartCommand(
        name="reload",
        arguments=[sys.executable, str(_MANAGE), *sys.argv[1:]],
        environ={**environ, PREPARATION_VARIABLE: fields},
        descriptors=descriptors,
    )


def answer(preparation: Preparation, config: RuntimeConfig, who: Access) -> None:
    """Answer with the checked configuration, and with the environment for the parts."""
    environ = environment("serve", config, os.environ)
    handover.write(*content("serve", config, who, environ=environ), preparation.answer)


def _receive_preparation(fields: str) -> None:
    global _preparation  # noqa: PLW0603 (a process prepares one reload)
    parent, environment, running, answer = map(int, fields.split(","))
    die_with_parent(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    leave_no_core()
    os.environ.clear()
    os.environ.update(json.loads(os.pread(environment, os.fstat(environment).st_size, 0)))
    _preparation = Preparation(handover.read(running)[0], answer)
    for descriptor in (environment, running):
        os.close(descriptor)


class _UnusedPackages(importlib.abc.MetaPathFinder):
    """Hides the packages in `_UNUSED`."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Raise ModuleNotFoundError for packages in `_UNUSED`; leave all others to the next finder."""
        if fullname in _UNUSED:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def run_without_apps(argv: list[str]) -> None:
    """
    Run the command in *argv* like `manage.py` does, but without Django's apps.

    Logging is set up as usual. The apps, with REST framework, would take 16 MB and 0.2 s of CPU.
    """
    begin_logging()
    module = importlib.import_module(f"runtime_site.management.commands.{argv[1]}")
    module.Command().run_from_argv(argv)


def leave_no_core() -> None:
    """Disable core dumps for this process and its children: their memory holds the keys of callers."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def execute(name: Program, config: RuntimeConfig, who: Access, **extra: Any) -> NoReturn:
    """
    Replace this process by the program *name*, with only its handover and an environment without secrets.

    The process keeps its id; its memory is gone: the YAML, the keys, the engine that checked the views. *extra* are
    further JSON values for the program.

    Raises:
        OSError: The program cannot be executed.
    """
    descriptor = handover.write(*content(name, config, who, **extra))
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, str(_MANAGE), *sys.argv[1:]] if name == "serve" else command(name)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    environ = {**environment(name, config, os.environ), HANDOVER_VARIABLE: str(descriptor)}
    os.execve(arguments[0], arguments, environ)  # noqa: S606 (no shell is wanted)
