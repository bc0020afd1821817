"""The version of this package, and the requirements of its extras."""

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PROJECT = "querykeep"
_OF_EXTRA = re.compile(r"(?P<requirement>[^;]+?)\s*;.*\bextra == (?P<quote>['\"])(?P<extra>[\w-]+)(?P=quote)")


def version() -> str:
    """Return the version of this package; empty if unknown."""
    found = _distribution()
    return found.version if found is not None else _declared().get("version", "")


def install_command(extra: str) -> str:
    """
    Return the command that installs the requirements of *extra*.

    It never names this package: an index may have another package of that name.
    """
    return " ".join(["python -m pip install", *map(repr, requirements_of(extra))])


def requirements_of(extra: str) -> list[str]:
    """Return the requirements of *extra*: those of the installed distribution, else those of the clone."""
    found = _distribution()
    if found is None:
        requirements: list[str] = _declared().get("optional-dependencies", {}).get(extra, [])
        return requirements
    matches = map(_OF_EXTRA.fullmatch, found.requires or ())
    return [match["requirement"] for match in matches if match is not None and match["extra"] == extra]


def _distribution() -> metadata.Distribution | None:
    """Return the distribution that this module was installed from; another one may have the same name."""
    try:
        found = metadata.distribution(PROJECT)
    except metadata.PackageNotFoundError:
        return None
    own = Path(str(found.locate_file("runtimeclient/distribution.py")))
    return found if own.exists() and own.samefile(__file__) else None


def _declared() -> Mapping[str, Any]:
    """Return the project table of a clone; empty outside a clone."""
    import tomllib  # noqa: PLC0415 (slow to import, and only a clone needs it)

    try:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return project if project.get("name") == PROJECT else {}
