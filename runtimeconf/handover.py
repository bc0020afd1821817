"""
Passes a configuration to a child process across exec: as JSON in an anonymous file that the child inherits.

The file has no name, is sealed once written, and disappears with the last process that holds it. A `Secret` is refused,
so API keys cannot be passed. Parameters of datasets can hold secrets: pass `without_sources` to every process that does
not load data.
"""

import dataclasses
import fcntl
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.secret import Secret

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

_received: tuple[RuntimeConfig, dict[str, Any]] | None = None


def write(config: RuntimeConfig, extra: Mapping[str, Any]) -> int:
    """
    Write *config* and *extra*, in JSON types, to an anonymous file.

    Returns:
        Its descriptor, which exec closes unless the caller passes it on.

    Raises:
        TypeError: *config* holds a secret, or *extra* a value that JSON cannot hold.
        OSError: The file cannot be created or written.
    """
    text = json.dumps({"config": plain(config), "extra": dict(extra)}, separators=(",", ":"))
    descriptor = os.memfd_create("querykeep-handover", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "w", encoding="ascii", closefd=False) as file:
            file.write(text)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int) -> tuple[RuntimeConfig, dict[str, Any]]:
    """
    Return what `write` wrote to *descriptor*. It can be read any number of times, in any process.

    Raises:
        OSError: It cannot be read.
    """
    # pread: every process that inherited the file shares its position.
    fields = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    return rebuilt(RuntimeConfig, fields["config"]), fields["extra"]


def receive(descriptor: int) -> tuple[RuntimeConfig, dict[str, Any]]:
    """Read the handover that this process was started with, and let `received` return it."""
    global _received  # noqa: PLW0603 (a process receives one handover)
    _received = read(descriptor)
    return _received


def received() -> tuple[RuntimeConfig, dict[str, Any]] | None:
    """Return the handover of this process; None if no supervisor started it."""
    return _received


def without_sources(config: RuntimeConfig) -> RuntimeConfig:
    """Return *config* without keys, locations and parameters, for a process that does not load data."""
    datasets = tuple(replace(dataset, from_="", location="", params={}) for dataset in config.datasets)
    return replace(config, datasets=datasets, auth=AuthConfig(enabled=config.auth.enabled))


def plain(value: Any) -> Any:
    """
    Return *value*, a part of the configuration or a similar dataclass, in JSON types.

    Raises:
        TypeError: *value* holds a secret.
    """
    if isinstance(value, Secret):
        raise TypeError("A secret cannot be handed over.")
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def rebuilt(hint: Any, value: Any) -> Any:
    """
    Return the value of type *hint* from which `plain` made *value*.

    Raises:
        TypeError: The configuration does not use types such as *hint*.
    """
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: rebuilt(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        (hint,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else rebuilt(hint, value)
    if origin is tuple:
        return tuple(rebuilt(arguments[0], item) for item in value)
    if hint is Path:
        return Path(value)
    if origin in {Literal, Mapping, None}:  # texts, and mappings of text to text
        return value
    raise TypeError(f"A field of type {hint} cannot be handed over.")
