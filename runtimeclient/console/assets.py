"""The files of the page. A wheel contains them, and a clone builds them on first use."""

import hashlib
import json
import mimetypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtimeclient.errors import ClientError, UsageError
from runtimeclient.files import removing

_HERE = Path(__file__).parent
#: The output of esbuild, and the licences of the libraries. The wheel contains it, but the repository does not.
BUILT = _HERE / "assets"
#: The sources of the page. The repository contains them, but the wheel does not.
SOURCES = _HERE / "page"
_STAMP = "sources.sha256"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".txt": "text/plain"}
_NPM_CI = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=5")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    content: bytes
    content_type: str


def load(tell: Callable[[str], None]) -> Mapping[str, Asset]:
    """
    Return the files of the page by path. In a clone, build them first unless they are up to date.

    Args:
        tell: Called with a line that explains why the command waits.

    Raises:
        UsageError: Node.js or the files are missing.
        ClientError: The build failed.
    """
    ensure_built(tell)
    files = sorted(file for file in BUILT.glob("*") if file.name != _STAMP) if BUILT.is_dir() else []
    assets = {f"/{file.name}": Asset(file.read_bytes(), _content_type(file)) for file in files}
    if "/index.html" not in assets:
        raise UsageError("The files of the console are missing from this installation: install Querykeep from a wheel.")
    return assets


def ensure_built(tell: Callable[[str], None]) -> None:
    """In a clone, build the page unless it is up to date. Raises the same errors as `build`."""
    if SOURCES.is_dir() and _stamp(BUILT) != digest_of(SOURCES):
        tell("Building the console page. This takes up to a minute ...")
        build(SOURCES, BUILT)


def build(sources: Path, built: Path) -> None:
    """
    Build the page: fetch the pinned libraries, bundle them with the sources, and collect their licences.

    Raises:
        UsageError: Node.js is missing.
        ClientError: The build failed.
    """
    if shutil.which("npm", path=_path()) is None:
        raise UsageError("Building the console page requires Node.js 20 or later with npm. Wheels include the page.")
    temporary = Path(tempfile.mkdtemp(prefix="querykeep-console-"))
    with removing(temporary):
        work = temporary / "page"
        shutil.copytree(sources, work, ignore=shutil.ignore_patterns("node_modules"))
        _run(work, *_NPM_CI)
        _run(work, "node", "build.mjs", str(work / "out"))
        (work / "out" / _STAMP).write_text(digest_of(sources))
        part = built.with_name(f"{built.name}.{os.getpid()}.part")
        shutil.copytree(work / "out", part)
        shutil.rmtree(built, ignore_errors=True)
        part.rename(built)


def digest_of(sources: Path) -> str:
    """Return a digest of the sources, including the lock file."""
    files = sorted(file for file in sources.rglob("*") if file.is_file() and "node_modules" not in file.parts)
    listed = [(str(file.relative_to(sources)), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _stamp(built: Path) -> str | None:
    try:
        return (built / _STAMP).read_text()
    except FileNotFoundError:
        return None


def _content_type(file: Path) -> str:
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _path() -> str:
    """Return the search path for programs, because Node.js can be a package in this environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _run(directory: Path, *command: str) -> None:
    environ = {**os.environ, "PATH": _path()}
    program = shutil.which(command[0], path=environ["PATH"]) or command[0]
    done = subprocess.run(  # noqa: S603 (our own commands)
        [program, *command[1:]], cwd=directory, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise ClientError(f"Building the console page failed. Output of {command[0]}: {' '.join(lines)}")
