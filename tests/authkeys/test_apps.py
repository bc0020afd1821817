"""The app config and its state: what starting Django builds, and what it never creates."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps

from authkeys import state
from authkeys.errors import AccessNotBuiltError, SaltError
from authkeys.keys import KeySet
from authkeys.salt import SALT_NAME
from runtimeconf import handover
from runtimeconf.errors import ConfigError
from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.secret import Secret
from runtimeconf.state import get_config, set_config
from tests.system.harness import K1, REPOSITORY

YAML = f"runtime:\n  auth:\n    api-key:\n      enabled: true\n      keys: ['{K1}']\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the YAML that this process uses."""
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


def test_nobody_may_call_before_the_key_set_is_built() -> None:
    with pytest.raises(AccessNotBuiltError):
        state.get_access()


@pytest.mark.parametrize("text", [None, "", "runtime: 1", YAML.replace("true", "ture"), YAML.replace(K1, "")])
def test_an_invalid_yaml_stops_no_command_but_admits_nobody(directory: Path, text: str | None) -> None:
    if text is not None:
        write(directory, text)

    start_django()

    for _ in range(2):
        with pytest.raises(ConfigError):
            state.get_access()


def test_the_key_set_is_built_on_first_use_and_the_keys_are_dropped(directory: Path) -> None:
    key = f"{K1}-of-nobody-else"
    write(directory, YAML.replace(K1, key))

    start_django()

    assert [path.name for path in directory.iterdir()] == ["runtime.yaml"]
    access = state.get_access()
    assert access.key_set is not None
    assert access.key_set.find(key) is not None
    assert (directory / ".runtime" / SALT_NAME).exists()
    assert get_config().auth == AuthConfig(enabled=True)
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Secret and held.reveal() == key]
    start_django()
    assert state.get_access() is access


def test_a_damaged_salt_admits_nobody(directory: Path) -> None:
    write(directory, YAML)
    (directory / ".runtime").mkdir(mode=0o700)
    (directory / ".runtime" / SALT_NAME).write_bytes(b"short")

    start_django()

    with pytest.raises(SaltError):
        state.get_access()


def test_c32_an_edited_yaml_changes_nothing_until_the_next_start(directory: Path) -> None:
    write(directory, "runtime: {}\n")
    start_django()
    assert state.get_access().key_set is None

    write(directory, YAML)

    assert state.get_access().key_set is None


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        pytest.param({"access": KeySet([Secret(K1)], b"salt").handover()}, "built True", id="it answers callers"),
        pytest.param({}, "AccessNotBuiltError", id="it answers none"),
    ],
)
def test_a_child_process_uses_the_handover(directory: Path, extra: dict[str, Any], said: str) -> None:
    """The child builds the key set at once, without a YAML, so its forks share it."""
    config = RuntimeConfig(file=directory / "absent.yaml", state_dir=directory / "state", auth=AuthConfig(enabled=True))
    descriptor = handover.write(config, extra)
    program = (
        "import sys\n"
        "from runtimeconf import handover\n"
        "handover.receive(int(sys.argv[1]))\n"
        "import django\n"
        "django.setup()\n"
        "from authkeys import state\n"
        "print('built', state._access.value.key_set.find(sys.argv[2]) is not None)\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(descriptor), K1],
            cwd=REPOSITORY,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "runtime_site.settings"},
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(descriptor)

    assert said in done.stdout + done.stderr
    assert not (directory / "state").exists()
