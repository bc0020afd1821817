"""
The parts (services) of the runtime as processes, and what each one receives.

A part gets the checked configuration through an anonymous file (`runtimeconf.handover`), and its own environment. It
does not read the configuration file again and receives only what it needs. Only web and flight get the key digests, and
only refresh gets access to data sources. No process keeps the keys themselves, because the process that reads them
becomes the supervisor or a part by executing a new program.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from runtimeconf import handover
from runtimeconf.model import RuntimeConfig

if TYPE_CHECKING:
    from authkeys.access import Access

PartName = Literal["watch", "refresh", "engine", "web", "flight"]
PARTS: tuple[PartName, ...] = get_args(PartName)

#: All parts, including those that run only if they are configured.
OptionalPartName = PartName | Literal["traces"]

#: The programs executed with a handover: the parts, and the supervisor, which passes its handover on.
Program = OptionalPartName | Literal["serve"]

#: Programs that authenticate callers get the key digests; programs that read sources get the dataset parameters; the
#: program that exports traces gets the collector's headers; the program that runs statements gets the cluster's token.
_GET_DIGESTS = frozenset({"web", "flight", "serve"})
_GET_SOURCES = frozenset({"refresh", "serve"})
_GET_HEADERS = frozenset({"traces", "serve"})
_GET_TOKEN = frozenset({"engine", "serve"})

#: The environment variable with the file descriptor of the handover.
HANDOVER_VARIABLE = "RUNTIME_HANDOVER_FD"

#: The exit code of a part that should not be restarted (EX_CONFIG of sysexits.h).
CANNOT_START = 78

#: The program that runs each part.
MANAGE = Path(__file__).resolve().parents[1] / "manage.py"

#: A command-line argument that names a part: `runweb`, `datasources.refresh.loader_process`.
_PART = re.compile(r"(?:run|.*\.)?(serve|web|engine|flight|refresh|watch|traces|loader)(?:r|_process)?")

#: The environment variables that every part may get. Any other may be a secret. PYTHONSAFEPATH would hide our packages
#: from the parts, which find them in the directory of `manage.py`.
_ENVIRONMENT = re.compile(
    "PATH|HOME|USER|LOGNAME|TZ|TZDIR|TMPDIR|LANG|LANGUAGE|LC_[A-Z]+|LOG_FORMAT|VIRTUAL_ENV|DJANGO_SETTINGS_MODULE"
    "|PYTHON(?!SAFEPATH)[A-Z0-9]+|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_[A-Z_]+"
)

#: Variables that only programs that read sources may get: proxies (including lower-case names), trusted certificate
#: authorities, and the machine's credentials.
_CONNECTIONS = "(?i:(?:HTTP|HTTPS|ALL|NO)_PROXY)|SSL_CERT_FILE"
_AUTHORITIES = re.compile("SSL_CERT_FILE")
_MACHINE = "AWS_[A-Z0-9_]+"

#: Settings for libraries. gRPC's own log has a different format, and any peer could flood it. gRPC's older listener
#: passes a call between threads a third less often, and versions without that listener ignore the setting. pyarrow's
#: own allocator takes 4 MB at import, and no part that computes uses it (`process_limits.confine`).
_FOR_LIBRARIES = {
    "GRPC_VERBOSITY": "NONE",
    "GRPC_EXPERIMENTS": "-event_engine_listener",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def command(name: OptionalPartName) -> list[str]:
    """Return the command line of a part."""
    return [sys.executable, str(MANAGE), f"run{name}"]


def part_of(arguments: Iterable[str], default: str) -> str:
    """Return the name of the part with this command line; *default* if it is not a part."""
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
    Return a pattern that matches the variables that connections with these parameters may use.

    The pattern includes the machine's credentials only if a connection uses them.
    """
    uses_machine = any(one.get("s3_auth") == "iam_role" for one in params)
    return re.compile(f"{_CONNECTIONS}|{_MACHINE}" if uses_machine else _CONNECTIONS)


def content(name: Program, config: RuntimeConfig, who: "Access", **extra: Any) -> tuple[RuntimeConfig, dict[str, Any]]:
    """
    Return the values that a program receives in its handover.

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
        config = handover.without_engine_params(config)
    return (config if name in _GET_HEADERS else handover.without_headers(config)), extra
