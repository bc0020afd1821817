"""A fake runtime, and the commands as processes."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
