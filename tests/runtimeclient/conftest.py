"""A fake runtime, and the commands as processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtimeclient.calling import Called
from tests.runtimeclient.remote import Remote, serve

ROOT = Path(__file__).parents[2]
MANAGE = [sys.executable, str(ROOT / "manage.py")]


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's environment without settings of the client."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RUNTIME_", "DJANGO_", "PYTHON", "QUERYKEEP_", "XDG_"))
        and not name.lower().endswith("_proxy")
    }
    # No profiles, unless a test creates some.
    return kept | {"XDG_CONFIG_HOME": "/nonexistent"} | variables


def run_python(program: str, *arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program that must succeed, with our packages and these settings."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env=clean_environment(PYTHONPATH=str(ROOT)) | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def run_measured(*arguments: str, cwd: Path = ROOT, **variables: str) -> tuple[Called, int]:
    """Run `querykeep` as a process; also return its peak memory in KiB (wait4() would include ours)."""
    program = (
        "import pathlib, sys; from runtimeclient.main import run; status = run('querykeep', sys.argv[1:]);"
        "print(status, file=sys.stderr);"
        "print(pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0], file=sys.stderr)"
    )
    done = run_python(program, *arguments, cwd=cwd, **variables)
    *messages, status, peak_kib = done.stderr.splitlines(keepends=True)
    return Called(int(status), done.stdout, "".join(messages)), int(peak_kib)


@pytest.fixture(autouse=True)
def _clean_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(clean_environment()):
        if name.startswith("RUNTIME_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


@pytest.fixture
def remote() -> Iterator[Remote]:
    with serve(Remote()) as running:
        yield running
