"""Declarations of the plug-ins that a configuration can name: connectors, snapshot stores and engines."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, dataclass_transform, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from runtimeconf.fields import Field, Section
from runtimeconf.handover import rebuilt
from runtimeconf.model import EngineConfig


class Package(Struct, frozen=True):
    """
    A library that a connector needs: the *module* to import and the *requirement* for pip.

    *is_needed* receives the location and parameter values, and returns whether they need the library.
    """

    module: str
    requirement: str
    is_needed: Callable[[str, Mapping[str, Any]], bool] = lambda _location, _values: True

    @property
    def is_installed(self) -> bool:
        """Whether the module exists. Checking imports its parent packages but not the module itself."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    @property
    def install_command(self) -> str:
        """The command that installs the library."""
        return f"python -m pip install {self.requirement!r}"


class Param(Struct, frozen=True):
    """
    The syntax of one of `datasets[].params`: its field, and how its value is treated.

    A secret parameter should be a reference, is never shown, and is not part of the data version. A hidden parameter is
    not shown because an invalid value may contain a secret, such as a URL with a password. Paths are relative to the
    directory of the configuration file and are made absolute. Code is text in another language, whose braces are not
    secret references. *kinds* are the file kinds that the parameter applies to; none means all. `Params` sets *name*
    and *is_required*.
    """

    field: Field[Any]
    is_hidden: bool = False
    is_secret: bool = False
    is_path: bool = False
    is_code: bool = False
    kinds: tuple[str, ...] = ()
    name: str = ""
    is_required: bool = False


def _fields(made: Any) -> list[str]:
    return [field.name for field in fields(made)]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Params:
    """
    The parameters of a connector. A subclass is a frozen dataclass with one annotated attribute per parameter.

    For example, `pg_port: Annotated[int, Param(PORT)] = 5432` gives the parameter's name, value type, syntax and
    default. A parameter without a default is required. Subclasses inherit the parameters of their bases. Values may be
    secrets, so there is no `repr`.
    """

    #: By name.
    declared: ClassVar[Mapping[str, Param]] = {}

    def __init_subclass__(cls) -> None:
        made = dataclass(frozen=True, kw_only=True, repr=False)(cls)
        hints = get_type_hints(cls, include_extras=True)
        cls.declared = {
            name: replace(hints[name].__metadata__[0], name=name, is_required=not hasattr(made, name))
            for name in _fields(made)
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build the parameters from `DatasetConfig.params`, which must contain every required parameter."""
        made: Self = rebuilt(cls, values)
        return made

    def problem(self, location: str) -> str | None:
        """Return the problem with the combination of parameters and *location*, or None if it is valid."""
        return None


class NoParams(Params):
    """For a connector without parameters."""


class Connector(Struct, frozen=True, kw_only=True):
    """
    A kind of data source.

    Args:
        expected: What must follow `name:` in `from:`, as a noun phrase for error messages and the documentation.
        locate: Turns that text into an absolute location, given the name and the directory of the configuration file.
            Raises `InvalidValueError`.
        params: The class of its parameters.
        source: The class that reads the source, a `datasources.sources.source.Source`, as `module:name`. It takes the
            dataset and the parameters, and is imported only by processes that load data.
        packages: The libraries that it needs.
        is_local: Whether it reads local files. Other connectors use the network, which may be down.
        formats_in_place: The formats that a cluster can read in place, by the cluster's names.
    """

    expected: str
    locate: Callable[[str, str, Path], str]
    params: type[Params] = NoParams
    source: str
    packages: tuple[Package, ...] = ()
    is_local: bool = False
    formats_in_place: tuple[str, ...] = ()


class SnapshotStore(Struct, frozen=True, kw_only=True):
    """
    A kind of storage through which several nodes share snapshots.

    Args:
        locate: Parses `runtime.snapshots.location`. Raises `InvalidValueError`, whose message never shows the location.
        params: The class of its parameters.
        node: The class of a node, a `datasources.refresh.manager.DatasetManager`, as `module:name`. It takes the
            configuration, its `snapshots` and the builders, and is imported only by the refresh process.
        packages: The libraries that it needs.
    """

    locate: Callable[[str], str]
    params: type[Params]
    node: str
    packages: tuple[Package, ...] = ()


class Engine(Struct, frozen=True, kw_only=True):
    """
    An engine that can run statements instead of DuckDB.

    Args:
        section: The syntax of `runtime.engine` if `from` begins with the engine's name.
        plugin: The `queryengine.backends.EnginePlugin` that runs the statements, as `module:name`. It is imported only
            by processes that check or run statements.
        packages: The libraries that it needs.
    """

    section: Section[EngineConfig]
    plugin: str
    packages: tuple[Package, ...] = ()


def text_of(value: Any) -> str:
    """Return the value of a parameter as a single string."""
    if isinstance(value, bool):
        return str(value).lower()
    return "\n".join(map(text_of, value)) if isinstance(value, tuple | list) else str(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the strings in the value of a parameter."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from texts_in(item)
    else:
        yield text_of(value)
