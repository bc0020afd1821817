"""The version of this project, its extras, and the commands to install them."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PROJECT = "querykeep"
_ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"[\w.-]+")
_OF_EXTRA = re.compile(r"(?P<requirement>[^;]+?)\s*;.*\bextra == (?P<quote>['\"])(?P<extra>[\w-]+)(?P=quote)")


def version() -> str:
    """Return the version of this package; empty if unknown."""
    found = _distribution()
    return found.version if found is not None else _declared().get("version", "")


#: The marker files of environments created by a tool, each with the tool's command to install a program.
_TOOLS = {"uv-receipt.toml": "uv tool install", "pipx_metadata.json": "pipx install --force"}


def install_command(extra: str) -> str:
    """
    Return the command that installs the requirements of *extra*.

    In a clone it names only these requirements, because an index may have another package with our name.
    """
    found = _distribution()
    if found is None:
        return " ".join(["python -m pip install", *map(shlex.quote, requirements_of(extra))])
    ours = f"{PROJECT}[{extra}]"
    for marker, command in _TOOLS.items():
        if Path(sys.prefix, marker).exists():
            # These tools resolve everything again, so packages not installed from an index must come from the same
            # place.
            origin = _origin(found)
            return f"{command} {shlex.quote(f'{ours} @ {origin}' if origin else f'{ours}=={found.version}')}"
    return f"python -m pip install {shlex.quote(f'{ours}=={found.version}')}"


def is_installed(extra: str) -> bool:
    """Return whether all requirements of *extra* are installed, in any version."""
    names = ((_NAME.match(requirement) or [requirement])[0] for requirement in requirements_of(extra))
    return all(_find(name) is not None for name in names)


def requirements_of(extra: str) -> list[str]:
    """Return the requirements of *extra*, from the installed distribution or else from the clone."""
    found = _distribution()
    if found is None:
        requirements: list[str] = _declared().get("optional-dependencies", {}).get(extra, [])
        return requirements
    matches = map(_OF_EXTRA.fullmatch, found.requires or ())
    return [match["requirement"] for match in matches if match is not None and match["extra"] == extra]


def _distribution() -> "Distribution | None":
    """Return the distribution that this module was installed from. Another one may have the same name."""
    if (found := _find(PROJECT)) is None:
        return None
    own = Path(str(found.locate_file(f"{PROJECT}/runtimeclient/distribution.py")))
    return found if own.exists() and own.samefile(__file__) else None


def _find(name: str) -> "Distribution | None":
    from importlib import metadata  # noqa: PLC0415 (slow to import)

    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _origin(found: "Distribution") -> str | None:
    """Return the URL that *found* was installed from (PEP 610), in pip's format; None for an index."""
    direct = json.loads(found.read_text("direct_url.json") or "{}")
    vcs = direct.get("vcs_info")
    return f"{vcs['vcs']}+{direct['url']}@{vcs['commit_id']}" if vcs else direct.get("url")


def _declared() -> Mapping[str, Any]:
    """Return the project table of a clone; empty outside a clone."""
    import tomllib  # noqa: PLC0415 (slow to import, and only a clone needs it)

    try:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return project if project.get("name") == PROJECT else {}
