"""
Handing a configuration to a process that is executed anew: as JSON in an anonymous file that it inherits.

The file has no name, is sealed once written, and ends with the last process that holds it. A `Secret` is refused, so
the keys cannot travel this way; parameters of datasets can, so give each part `without_sources` unless it loads data.
"""

from __future__ import annotations

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
_BLOCK_BYTES = 1024 * 1024

_received: tuple[RuntimeConfig, dict[str, Any]] | None = None


def write(config: RuntimeConfig, extra: Mapping[str, Any]) -> int:
    """
    Put *config* and *extra*, whatever JSON can hold, into an anonymous file.

    Returns:
        Its descriptor, which is closed on exec unless the caller has it inherited.

    Raises:
        TypeError: *config* holds a secret, or *extra* what JSON cannot hold.
        OSError: The system has no room for it.
    """
    text = json.dumps({"config": plain(config), "extra": dict(extra)}, separators=(",", ":"))
    descriptor = os.memfd_create("querykeep-handover", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(text.encode("ascii"))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int) -> tuple[RuntimeConfig, dict[str, Any]]:
    """
    Return what `write` put into *descriptor*, as often as it is asked for, in any process.

    Raises:
        OSError: It cannot be read.
    """
    # The position in the file is shared with every process that inherited it.
    text = b""
    while block := os.pread(descriptor, _BLOCK_BYTES, len(text)):
        text += block
    fields = json.loads(text)
    return rebuilt(RuntimeConfig, fields["config"]), fields["extra"]


def receive(descriptor: int) -> tuple[RuntimeConfig, dict[str, Any]]:
    """As `read`, for the process that was started with *descriptor*; `received` knows it from then on."""
    global _received  # noqa: PLW0603 (a process is given one handover)
    _received = read(descriptor)
    return _received


def received() -> tuple[RuntimeConfig, dict[str, Any]] | None:
    """Return what this process was handed; None when it was started by hand."""
    return _received


def without_sources(config: RuntimeConfig) -> RuntimeConfig:
    """Return *config* as a part that loads no data may know it: without keys, and without where data comes from."""
    datasets = tuple(replace(dataset, from_="", location="", params={}) for dataset in config.datasets)
    return replace(config, datasets=datasets, auth=AuthConfig(enabled=config.auth.enabled))


def plain(value: Any) -> Any:
    """
    Return *value*, of the configuration or a dataclass like those there, in the types of JSON.

    Raises:
        TypeError: It holds a secret.
    """
    if isinstance(value, Secret):
        raise TypeError("A secret is not handed over.")
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def rebuilt(hint: Any, value: Any) -> Any:
    """
    Return the value of type *hint* that `plain` made *value* of.

    Raises:
        TypeError: *hint* is of a kind that the configuration does not use.
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
