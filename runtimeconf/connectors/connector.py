"""How a connector is declared."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtimeconf.fields import ScalarShape


@dataclass(frozen=True, slots=True)
class Package:
    """
    A library that a connector needs: the *module* it is imported by, and the *requirement* that pip installs.

    It is needed for locations that begin with *only_for*; all do, where that is empty.
    """

    module: str
    requirement: str
    only_for: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported, without importing it."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def install_command(self) -> str:
        """How to install it."""
        return f"python -m pip install {self.requirement!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """
    One of `datasets[].params`.

    A secret one should be a reference, is never shown, and does not tell one version of the data from another. A path
    is made absolute: a relative one begins beside the YAML.
    """

    name: str
    shape: ScalarShape[str]
    is_required: bool = False
    is_secret: bool = False
    is_path: bool = False


def nothing_more(_location: str, _params: Mapping[str, str]) -> str | None:
    """Find no fault with the parameters together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """
    A kind of source.

    Args:
        name: The text before the colon of `from:`.
        expected: What is to follow it, as a noun phrase for faults and documents.
        locate: Makes the absolute location of what follows, given the directory of the YAML; raises `UnfitError`.
        params: What `params` may hold.
        check: Says what is wrong with the location and the parameters together, such as one that needs another; None
            when nothing is.
        packages: What must be installed.
    """

    name: str
    expected: str
    locate: Callable[[str, Path], str]
    params: tuple[Param, ...] = ()
    check: Callable[[str, Mapping[str, str]], str | None] = nothing_more
    packages: tuple[Package, ...] = ()
