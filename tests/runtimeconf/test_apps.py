"""`manage.py check` shows the faults and warnings of the YAML; nothing else reads it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core import checks

from runtimeconf.apps import FAULT_ID, WARNING_ID, check_configuration
from runtimeconf.state import set_config
from tests.runtimeconf.configurations import KEY, with_keys

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def named(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RUNTIME_CONFIG", str(yaml_file))
    set_config(None)
    yield
    set_config(None)


def test_a_good_configuration_has_no_messages(yaml_file: Path) -> None:
    yaml_file.write_text("{}\n")

    assert check_configuration() == []


def test_faults_are_errors(yaml_file: Path) -> None:
    (missing,) = check_configuration()
    set_config(None)
    yaml_file.write_text("name: [x]\nmodels: []\n")

    messages = check_configuration()

    assert [(message.id, message.level) for message in messages] == [(FAULT_ID, checks.ERROR)] * 2
    assert messages[0].msg == f"{yaml_file}:1: name: must be a name; found a list"
    assert missing.msg.startswith(f"{yaml_file}: there is no such file")


def test_warnings_are_warnings(yaml_file: Path) -> None:
    yaml_file.write_text(with_keys(f"- {KEY}"))
    yaml_file.chmod(0o644)

    (message,) = check_configuration()

    assert (message.id, message.level) == (WARNING_ID, checks.WARNING)
    assert KEY not in str(message)


def manage(*arguments: str, yaml_file: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "RUNTIME_CONFIG": str(yaml_file)}
    environ.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_manage_py_check_shows_every_fault_and_no_traceback(yaml_file: Path, tmp_path: Path) -> None:
    yaml_file.write_text("name: [x]\nmodels: []\n")

    result = manage("check", yaml_file=yaml_file, cwd=tmp_path)

    assert result.returncode == 1
    assert f"(runtimeconf.E001) {yaml_file}:1: name: must be a name; found a list" in result.stderr
    assert f"(runtimeconf.E001) {yaml_file}:2: models: unknown field" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_configuration_of_make_check_has_neither_faults_nor_warnings(tmp_path: Path) -> None:
    result = manage("check", "--fail-level", "WARNING", yaml_file=ROOT / "tests" / "data" / "check.yaml", cwd=tmp_path)

    assert result.returncode == 0, result.stderr


def test_a_client_command_needs_no_yaml(yaml_file: Path, tmp_path: Path) -> None:
    result = manage("status", "--help", yaml_file=yaml_file, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
