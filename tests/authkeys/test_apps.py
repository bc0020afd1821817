"""The app config and the state it fills: what a process that starts Django has, and what it never makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps

from authkeys import access, state
from authkeys.errors import AccessNotBuiltError
from authkeys.salt import SALT_NAME
from runtimeconf.state import set_config

REPOSITORY = Path(__file__).resolve().parents[2]
KEY = "k1-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE"
YAML = f"runtime:\n  auth:\n    api-key:\n      enabled: true\n      keys: ['{KEY}']\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the runtime YAML that this process is told to use."""
    monkeypatch.setenv("RUNTIME_CONFIG", str(tmp_path / "runtime.yaml"))
    set_config(None)
    yield tmp_path
    set_config(None)


def start_django() -> None:
    set_config(None)
    apps.get_app_config("authkeys").ready()


def write(directory: Path, text: str) -> None:
    (directory / "runtime.yaml").write_text(text)
    (directory / "runtime.yaml").chmod(0o600)


def test_nobody_may_call_before_it_is_built() -> None:
    with pytest.raises(AccessNotBuiltError):
        state.get_access()


@pytest.mark.parametrize("text", [None, "", "runtime: 1", YAML.replace("true", "ture"), YAML.replace(KEY, "")])
def test_an_unusable_yaml_leaves_it_unbuilt_and_stops_nothing(directory: Path, text: str | None) -> None:
    if text is not None:
        write(directory, text)

    start_django()

    with pytest.raises(AccessNotBuiltError):
        state.get_access()


def test_a_first_start_makes_nothing_until_a_server_asks(directory: Path) -> None:
    write(directory, YAML)

    start_django()

    assert [path.name for path in directory.iterdir()] == ["runtime.yaml"]
    with pytest.raises(AccessNotBuiltError):
        state.get_access()


def test_the_key_set_is_built_when_django_starts(directory: Path) -> None:
    write(directory, YAML)
    from runtimeconf.state import get_config  # noqa: PLC0415 (after the environment is set)

    access.build(get_config())

    start_django()

    key_set = state.get_access().key_set
    assert key_set is not None
    assert key_set.find(KEY) is not None


def test_a_damaged_salt_leaves_it_unbuilt(directory: Path) -> None:
    write(directory, YAML)
    (directory / ".runtime").mkdir(mode=0o700)
    (directory / ".runtime" / SALT_NAME).write_bytes(b"short")

    start_django()

    with pytest.raises(AccessNotBuiltError):
        state.get_access()


def test_c32_an_edited_yaml_changes_nothing_until_the_next_start(directory: Path) -> None:
    write(directory, "runtime: {}\n")
    start_django()
    assert state.get_access().key_set is None

    write(directory, YAML)

    assert state.get_access().key_set is None


def test_a_server_builds_from_the_yaml_it_is_told_to_use(directory: Path) -> None:
    write(directory, "runtime: {}\n")
    start_django()
    (directory / "other").mkdir()
    write(directory / "other", YAML)
    from runtimeconf.loader import load  # noqa: PLC0415 (beside its use)

    built = state.ensure_built(load(directory / "other" / "runtime.yaml", {}))

    assert state.get_access() is built
    assert built.key_set is not None


@pytest.mark.parametrize("command", ["check", "help"])
def test_a_command_makes_no_state_directory(directory: Path, command: str) -> None:
    write(directory, YAML)

    finished = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=REPOSITORY,
        env={**os.environ, "RUNTIME_CONFIG": str(directory / "runtime.yaml")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    assert [path.name for path in directory.iterdir()] == ["runtime.yaml"]
    assert KEY not in finished.stdout + finished.stderr
