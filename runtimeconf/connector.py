"""The declarations of plug-ins that the YAML names: connectors, by `from:` of datasets, and snapshot stores."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, dataclass_transform, get_type_hints

from runtimeconf.fields import Field, Section
from runtimeconf.handover import rebuilt
from runtimeconf.model import EngineConfig


@dataclass(frozen=True, slots=True)
class Package:
    """
    A library that a connector needs: the *module* to import and the *requirement* for pip.

    Of the location and the values of the parameters, *is_needed* tells those that need it.
    """

    module: str
    requirement: str
    is_needed: Callable[[str, Mapping[str, Any]], bool] = lambda _location, _values: True

    @property
    def is_installed(self) -> bool:
        """Whether the module exists. It is not imported, but for the packages that contain it."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"python -m pip install {self.requirement!r}"


@dataclass(frozen=True, slots=True)
class Param:
    """
    How one of `datasets[].params` is written: its field, and what is special about its value.

    A secret parameter should be a reference, is never shown, and is not part of the version of the data. A hidden one
    is not shown because an invalid value may hold a secret, such as a URL with a password. A path is made absolute,
    relative to the directory of the YAML. Code is in another language, whose braces are no secret references. *kinds*
    are the kinds of files that it applies to; none means all. `Params` sets *name* and *is_required*.
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
    The parameters of a connector. A subclass is a frozen dataclass with an annotated attribute for each.

    `pg_port: Annotated[int, Param(PORT)] = 5432` has the name of the parameter, the type of its value, how it is
    written, and its default; without a default it is required. Subclasses have the parameters of their bases. Their
    values may be secrets, so there is no `repr`.
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
        """Return the parameters that `DatasetConfig.params` holds. Every required one must be there."""
        made: Self = rebuilt(cls, values)
        return made

    def problem(self, location: str) -> str | None:
        """Return what is wrong with the combination of parameters and *location*; None if nothing is."""
        return None


class NoParams(Params):
    """For a connector without parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """
    A kind of source.

    Args:
        expected: What must follow its name and a colon in `from:`, as a noun phrase for faults and the documentation.
        locate: Makes an absolute location of that text, given the name and the directory of the YAML; raises
            `InvalidValueError`.
        params: The class of its parameters.
        source: The class that reads it, a `datasources.sources.source.Source`, as `module:name`. It is imported by
            processes that load data only, and takes the dataset and the parameters.
        packages: The libraries that it needs.
        is_local: Whether it reads files of this machine. The others use the network, and may be down.
        formats_in_place: The formats that a cluster can read where they are, by its own names.
    """

    expected: str
    locate: Callable[[str, str, Path], str]
    params: type[Params] = NoParams
    source: str
    packages: tuple[Package, ...] = ()
    is_local: bool = False
    formats_in_place: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStore:
    """
    A kind of storage through which several nodes share snapshots.

    Args:
        locate: Makes the value of `runtime.snapshots.location`; raises `InvalidValueError`, whose message shows nothing
            of an invalid location.
        params: The class of its parameters.
        node: The class of a node, a `datasources.refresh.manager.DatasetManager`, as `module:name`. It is imported by
            the process that refreshes only, and takes the configuration, its `snapshots` and the builders.
        packages: The libraries that it needs.
    """

    locate: Callable[[str], str]
    params: type[Params]
    node: str
    packages: tuple[Package, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """
    What can run statements in place of DuckDB.

    Args:
        section: How `runtime.engine` is written whose `from` begins with its name.
        plugin: What runs the statements, a `queryengine.backends.EnginePlugin`, as `module:name`. It is imported by
            processes that judge or run statements only.
        packages: The libraries that it needs.
    """

    section: Section[EngineConfig]
    plugin: str
    packages: tuple[Package, ...] = ()


def text_of(value: Any) -> str:
    """Return the value of a parameter as one text."""
    if isinstance(value, bool):
        return str(value).lower()
    return "\n".join(map(text_of, value)) if isinstance(value, tuple | list) else str(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts that the value of a parameter consists of."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from texts_in(item)
    else:
        yield text_of(value)
