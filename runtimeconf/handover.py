"""
Passes a configuration to child processes across exec, as JSON in an inherited anonymous file.

The file has no name and disappears with the last process that has it open. A `Secret` is refused, so API keys cannot be
passed. Dataset parameters can contain secrets, so use `without_sources` for every process that does not load data.

`write` creates a file that never changes. A `Handover` can change while the children run: its writer *offers* another
configuration, for which the children prepare, and then *enacts* it, which all of them see at once.
"""

import fcntl
import json
import mmap
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from runtimeconf.model import RuntimeConfig

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

#: The file header: the current and the offered configuration, then the offset and length of two texts. A
#: configuration is encoded as twice its number plus the index of its text; 0 means none.
_HEADER = struct.Struct("=6Q")
_MARK = struct.Struct("=Q")
_FIRST = 1

_received: tuple[RuntimeConfig, dict[str, Any]] | None = None
_live: "Handover | None" = None


def write(config: RuntimeConfig, extra: Mapping[str, Any], descriptor: int | None = None) -> int:
    """
    Write *config* and *extra* (JSON types) to the anonymous file *descriptor*, or to a new one.

    Returns:
        The file descriptor, which exec closes unless the caller passes it on.

    Raises:
        TypeError: *config* contains a secret, or *extra* contains a value that JSON cannot represent.
        OSError: The file cannot be created or written.
    """
    descriptor = _written(config, extra, descriptor)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def new_file() -> int:
    """Return the descriptor of a new anonymous file."""
    return os.memfd_create("querykeep-handover", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def read(descriptor: int) -> tuple[RuntimeConfig, dict[str, Any]]:
    """
    Return the current configuration and its extra values. Any process can read *descriptor* any number of times.

    Raises:
        OSError: It cannot be read.
    """
    return Handover(descriptor).current()


class Handover:
    """The file *descriptor*. Its configurations are numbered from 1."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of(cls, config: RuntimeConfig, extra: Mapping[str, Any]) -> Self:
        """Write *config* and *extra* to a new file. Raises the same errors as `write`."""
        return cls(_written(config, extra))

    def for_readers(self) -> int:
        """Return a read-only descriptor of the file."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    @property
    def in_force(self) -> int:
        """The number of the current configuration. It is in memory, so it can be read on every request."""
        mark: int = _MARK.unpack_from(self._memory)[0]
        return mark >> 1

    def numbers(self) -> tuple[int, int]:
        """Return the numbers of the current and the offered configuration. The second is 0 if none is offered."""
        in_force, offered, *_ = self._header()
        return in_force >> 1, offered >> 1

    def offer(self, number: int, config: RuntimeConfig, extra: Mapping[str, Any]) -> None:
        """
        Offer *config* and *extra*, which replace any earlier offer. Raises the same errors as `write`.

        *number* must be greater than all earlier numbers.
        """
        text = _text(config, extra)
        self.withdraw()
        in_force, _, *places = self._header()
        kept, length = places[in_force % 2 * 2 :][:2]
        index = 1 - in_force % 2
        # Use the space before the current text if it is large enough, otherwise the space after it.
        places[index * 2] = _HEADER.size if _HEADER.size + len(text) <= kept else kept + length
        places[index * 2 + 1] = len(text)
        _write(self.descriptor, text, places[index * 2])
        os.pwrite(self.descriptor, _HEADER.pack(in_force, 0, *places), 0)
        os.pwrite(self.descriptor, _MARK.pack(number << 1 | index), _MARK.size)

    def enact(self) -> None:
        """Put the offered configuration into force."""
        _, offered, *_ = self._header()
        os.pwrite(self.descriptor, _MARK.pack(offered), 0)
        self.withdraw()

    def withdraw(self) -> None:
        """Withdraw the offered configuration."""
        os.pwrite(self.descriptor, _MARK.pack(0), _MARK.size)

    def read(self, number: int) -> tuple[RuntimeConfig, dict[str, Any]]:
        """
        Return the configuration *number* and its extra values.

        Raises:
            LookupError: The configuration is neither the current nor the offered one.
            OSError: It cannot be read.
        """
        # Use pread because all processes that inherited the file share its position.
        *marks, offset, length, other_offset, other_length = self._header()
        if number << 1 | 1 in marks:
            offset, length = other_offset, other_length
        text = os.pread(self.descriptor, length, offset)
        if number not in self.numbers():  # checked after reading, because the text may have been replaced meanwhile
            raise LookupError(f"Configuration {number} has been replaced.")
        fields = json.loads(text)
        return rebuilt(RuntimeConfig, fields["config"]), fields["extra"]

    def current(self) -> tuple[RuntimeConfig, dict[str, Any]]:
        """Return the current configuration and its extra values. Raises OSError if they cannot be read."""
        while True:
            with suppress(LookupError):  # Another configuration has come into force.
                return self.read(self.numbers()[0])

    @cached_property
    def _memory(self) -> mmap.mmap:
        return mmap.mmap(self.descriptor, _HEADER.size, prot=mmap.PROT_READ)

    def _header(self) -> tuple[int, ...]:
        return _HEADER.unpack(os.pread(self.descriptor, _HEADER.size, 0))


def _text(config: RuntimeConfig, extra: Mapping[str, Any]) -> bytes:
    return json.dumps({"config": plain(config), "extra": dict(extra)}, separators=(",", ":")).encode("ascii")


def _written(config: RuntimeConfig, extra: Mapping[str, Any], descriptor: int | None = None) -> int:
    text = _text(config, extra)
    target = new_file() if descriptor is None else descriptor
    try:
        _write(target, _HEADER.pack(_FIRST << 1, 0, _HEADER.size, len(text), _HEADER.size, 0) + text, 0)
    except BaseException:
        os.close(target)
        raise
    return target


def _write(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def receive(descriptor: int) -> tuple[RuntimeConfig, dict[str, Any]]:
    """Read the handover that this process was started with. From now on, `received` and `live` return it."""
    global _received, _live  # noqa: PLW0603 (a process receives one handover)
    _live = Handover(descriptor)
    _received = _live.current()
    return _received


def received() -> tuple[RuntimeConfig, dict[str, Any]] | None:
    """Return the configuration with which this process started, and its extra values; None without a supervisor."""
    return _received


def stop_following() -> None:
    """Close the handover file. From now on, `live` returns None."""
    global _live  # noqa: PLW0603 (as above)
    if _live is not None:
        _live.close()
        _live = None


def live() -> Handover | None:
    """Return this process's handover, which its supervisor can change; None if no supervisor started the process."""
    return _live


def without_sources(config: RuntimeConfig) -> RuntimeConfig:
    """
    Return *config* without keys, source locations and parameters, for a process that does not load data.

    Datasets that a cluster reads in place keep their locations and parameters, which contain no secrets.
    """
    datasets = tuple(
        dataset if dataset.is_in_place else replace(dataset, from_="", location="", params={})
        for dataset in config.datasets
    )
    snapshots = None if config.snapshots is None else replace(config.snapshots, params={})
    auth = replace(config.auth, keys=(), named_keys=(), rules=())
    return replace(config, datasets=datasets, snapshots=snapshots, auth=auth)


def without_headers(config: RuntimeConfig) -> RuntimeConfig:
    """Return *config* without the trace collector's headers, for a process that does not export traces."""
    return config if config.traces is None else replace(config, traces=replace(config.traces, headers={}))


def without_engine_params(config: RuntimeConfig) -> RuntimeConfig:
    """Return *config* without the parameters of `runtime.engine`, for a process that does not run statements."""
    return config if config.engine is None else replace(config, engine=replace(config.engine, params={}))


def plain(value: Any) -> Any:
    """
    Convert *value*, a part of the configuration or a similar record, to JSON types.

    Raises:
        TypeError: *value* contains a secret, or an object that JSON cannot represent.
    """
    return msgspec.to_builtins(value, enc_hook=_to_builtin)


def rebuilt(hint: Any, value: Any) -> Any:
    """
    Convert *value*, a result of `plain`, back to the type *hint*.

    Raises:
        ValueError: *value* is not a result of `plain` for this type.
    """
    return msgspec.convert(value, hint, dec_hook=_from_builtin)


def _to_builtin(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"An object of type {type(value).__name__} cannot be handed over.")


def _from_builtin(hint: Any, value: Any) -> Any:
    if hint is Path:
        return Path(value)
    raise NotImplementedError
