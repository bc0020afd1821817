"""`manage.py check` shows the faults and warnings of the YAML; nothing else reads it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core import checks

from runtimeconf.apps import check_configuration
from runtimeconf.state import set_config
from tests.runtimeconf.configurations import KEY, with_keys

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("named")


def test_faults_are_errors_and_warnings_are_warnings(yaml_file: Path) -> None:
    (missing,) = check_configuration()
    set_config(None)
    yaml_file.write_text("name: [x]\nmodels: []\n")

    messages = check_configuration()
    set_config(None)
    yaml_file.write_text(with_keys(f"- {KEY}"))
    yaml_file.chmod(0o644)
    (warning,) = check_configuration()

    assert (warning.id, warning.level) == ("runtimeconf.W001", checks.WARNING)
    assert KEY not in str(warning)
    assert [(message.id, message.level) for message in messages] == [("runtimeconf.E001", checks.ERROR)] * 2
    assert [re.split("[;,]", message.msg)[0] for message in messages] == [
        f"{yaml_file}:1: name: must be a name",
        (
            f"{yaml_file}:2: models: is not available here: Remove it and call the model from your application: "
            "models are not supported."
        ),
    ]
    assert missing.msg.startswith(f"{yaml_file}: no such file")
    assert missing.level == checks.ERROR


def test_a_yaml_that_nobody_names_and_that_is_not_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNTIME_CONFIG")
    monkeypatch.chdir(tmp_path)
    set_config(None)

    (warning,) = check_configuration()

    assert (warning.id, warning.level) == ("runtimeconf.W002", checks.WARNING)


@pytest.mark.parametrize(
    ("file", "faults"),
    [("tests/data/check.yaml", []), ("{directory}/runtime.yaml", ["1: name: must be a name", "2: models: is not"])],
)
def test_manage_py_check_shows_every_fault_and_no_traceback(
    yaml_file: Path, tmp_path: Path, file: str, faults: list[str]
) -> None:
    yaml_file.write_text("name: [x]\nmodels: []\n")
    path = ROOT / file.format(directory=tmp_path)
    environ = {**os.environ, "RUNTIME_CONFIG": str(path)}
    environ.pop("DJANGO_SETTINGS_MODULE", None)

    done = subprocess.run(
        [sys.executable, ROOT / "manage.py", "check", "--fail-level", "WARNING"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == (1 if faults else 0), done.stderr
    assert all(f"(runtimeconf.E001) {path}:{fault}" in done.stderr for fault in faults)
    assert "Traceback" not in done.stderr
