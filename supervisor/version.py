"""The version of this project, from the installed wheel or the running clone."""

from contextlib import suppress
from pathlib import Path

_PROJECT = "querykeep"
_ROOT = Path(__file__).resolve().parents[1]


def version() -> str:
    """Return the version of this project; "" if unknown."""
    import tomllib  # noqa: PLC0415 (slow to import)
    from importlib import metadata  # noqa: PLC0415 (slow to import)

    with suppress(metadata.PackageNotFoundError, OSError):
        found = metadata.distribution(_PROJECT)
        if Path(str(found.locate_file(f"{_PROJECT}/manage.py"))).samefile(_ROOT / "manage.py"):
            return found.version
    with suppress(OSError, ValueError, KeyError):
        return str(tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    return ""
