"""The declaration of a connector."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimeconf.fields import Field


@dataclass(frozen=True, slots=True)
class Package:
    """
    A library that a connector needs: the *module* to import and the *requirement* for pip.

    Of the locations and parameters, *is_needed* tells those that need it.
    """

    module: str
    requirement: str
    is_needed: Callable[[str, Mapping[str, str]], bool] = lambda _location, _params: True

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
    One of `datasets[].params`. Its value is kept as text.

    A secret parameter should be a reference, is never shown, and is not part of the version of the data. A hidden one
    is not shown because an invalid value may hold a secret, such as a URL with a password. A path is made absolute,
    relative to the directory of the YAML. Code is in another language, whose braces are no secret references. *kinds*
    are the kinds of files that it applies to; none stands for all.
    """

    name: str
    field: Field[Any]
    is_required: bool = False
    is_hidden: bool = False
    is_secret: bool = False
    is_path: bool = False
    is_code: bool = False
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """
    A kind of source.

    Args:
        name: The text before the colon of `from:`.
        expected: What must follow the colon, as a noun phrase for faults and the documentation.
        locate: Makes an absolute location of that text, given the directory of the YAML; raises `InvalidValueError`.
        params: The valid `params`.
        check: Returns what is wrong with the combination of location and parameters, such as a parameter that needs
            another; None if nothing is.
        packages: The libraries that it needs.
    """

    name: str
    expected: str
    locate: Callable[[str, Path], str]
    params: tuple[Param, ...] = ()
    check: Callable[[str, Mapping[str, str]], str | None] = lambda _location, _params: None
    packages: tuple[Package, ...] = ()
