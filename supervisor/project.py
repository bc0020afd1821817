"""The version of this project, and what it requires: of the installed wheel, or of the clone that runs."""

import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

PROJECT = "querykeep"

#: The extras whose requirements are given: what a server needs, and the libraries of connectors.
EXTRAS = ("server", "sources")

_ROOT = Path(__file__).resolve().parents[1]


def project() -> tuple[str, list[str]]:
    """Return the version of this project and its requirements; "" and none if unknown."""
    with suppress(metadata.PackageNotFoundError, OSError):
        found = metadata.distribution(PROJECT)
        if Path(str(found.locate_file(f"{PROJECT}/manage.py"))).samefile(_ROOT / "manage.py"):
            return found.version, found.requires or []
    with suppress(OSError, ValueError, KeyError):
        declared = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = declared["optional-dependencies"]
        required = [f"{item}; extra == '{extra}'" for extra in EXTRAS for item in extras[extra]]
        return declared["version"], [*declared["dependencies"], *required]
    return "", []
