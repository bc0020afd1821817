"""Programs of tests, run in processes of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def printed(code: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Return what a program printed that ended well."""
    finished = run(code, *arguments, environment=environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
