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
from tests.system.harness import K1, REPOSITORY, run_program

YAML = f"runtime:\n  auth:\n    api-key:\n      enabled: true\n      keys: ['{K1}']\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the YAML that this process uses."""
    monkeypatch.setenv("RUNTIME_CONFIG", str(tmp_path / "runtime.yaml"))
    set_config(None)
    yield tmp_path
    set_config(None)


def start_django(*command: str, program: str = "manage.py") -> None:
    """Set Django up as a process with these arguments does; without any, as pytest does."""
    set_config(None)
    with pytest.MonkeyPatch.context() as process:
        process.setattr(sys, "argv", [program, *command] if command else ["/usr/bin/pytest", "tests"])
        apps.get_app_config("authkeys").ready()


def write(directory: Path, text: str) -> None:
    (directory / "runtime.yaml").write_text(text)
    (directory / "runtime.yaml").chmod(0o600)


BAD = [None, "", "runtime: 1", YAML.replace("true", "ture"), YAML.replace(K1, "")]


def test_nobody_may_call_before_the_key_set_is_built() -> None:
    with pytest.raises(AccessNotBuiltError):
        state.get_access()


@pytest.mark.parametrize("text", BAD)
def test_an_invalid_yaml_stops_what_may_answer_requests(
    directory: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A YAML that is named and not there is one."""
    if text is not None:
        write(directory, text)

    with pytest.raises(ConfigError):  # pytest, or the `wsgi.py` of somebody's own project
        start_django()
    for command, code in (("runserver", 1), ("test", 1), ("runserver_plus", 1), ("runweb", os.EX_CONFIG)):
        with pytest.raises(SystemExit) as end:
            start_django(command)
        assert end.value.code == code
        assert str(directory / "runtime.yaml") in capsys.readouterr().err


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize(
    "command",
    [("sql", "SELECT 1"), ("check",), ("reload",), ("help", "runserver"), ("runserver", "--help"), ("",)],
    ids=" ".join,
)
def test_an_invalid_yaml_stops_no_client_command_and_admits_nobody(
    directory: Path, text: str | None, command: tuple[str, ...]
) -> None:
    if text is not None:
        write(directory, text)

    start_django(*command)

    for _ in range(2):
        with pytest.raises(ConfigError):
            state.get_access()
    assert not (directory / ".runtime").exists()


@pytest.mark.parametrize("program", ["/srv/shop/manage.py", "/usr/bin/django-admin", "/lib/django/__main__.py"])
def test_an_invalid_yaml_stops_no_upkeep_and_admits_nobody(directory: Path, program: str) -> None:
    """`shell`, `collectstatic` and the like answer no requests, and images are built where there are no secrets."""
    write(directory, "runtime: 1")

    start_django("shell", program=program)

    write(directory, YAML)
    for _ in range(2):
        with pytest.raises(ConfigError):
            state.get_access()


def test_without_any_yaml_django_starts_and_nobody_is_admitted(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project may have tests that send the runtime no request."""
    monkeypatch.delenv("RUNTIME_CONFIG")
    monkeypatch.chdir(tmp_path)

    start_django()

    with pytest.raises(ConfigError, match="no such file"):
        state.get_access()
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [(), ("runserver",), ("runserver", "--noreload", "8000"), ("test",), ("shell",), ("runserver_plus",)],
    ids=" ".join,
)
def test_the_key_set_is_built_when_django_is_set_up_and_the_keys_are_dropped(
    directory: Path, command: tuple[str, ...]
) -> None:
    key = f"{K1}-of-nobody-else"
    write(directory, YAML.replace(K1, key))

    start_django(*command)

    access = state._access.value
    assert access is not None
    assert access.key_set is not None
    assert access.key_set.find(key) is not None
    assert (directory / ".runtime" / SALT_NAME).exists()
    assert get_config().auth == AuthConfig(enabled=True)
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Secret and held.reveal() == key]
    start_django(*command)
    assert state.get_access() is access


@pytest.mark.parametrize("option", [("--config", "other.yaml"), ("--config=other.yaml",), ("--conf", "other.yaml")])
def test_a_server_uses_the_yaml_of_its_option(
    directory: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    write(directory, "runtime: 1")
    (directory / "other.yaml").write_text("runtime: {}\n")
    monkeypatch.chdir(directory)

    start_django("runserver", "0.0.0.0:8000", *option, "--noreload")

    assert state.get_access().key_set is None


def test_a_process_asks_for_its_key_set_right_after_django_is_set_up(tmp_path: Path) -> None:
    write(tmp_path, YAML)
    program = (
        "import django\n"
        "django.setup()\n"
        "from authkeys import state\n"
        f"print(state._access.value.key_set.find({K1!r}) is not None)\n"
    )

    done = run_program(
        "-c", program, DJANGO_SETTINGS_MODULE="runtime_site.settings", RUNTIME_CONFIG=str(tmp_path / "runtime.yaml")
    )

    assert done.stdout == "True\n", done.stderr


def test_a_damaged_salt_stops_the_start_and_admits_nobody(directory: Path) -> None:
    write(directory, YAML)
    (directory / ".runtime").mkdir(mode=0o700)
    (directory / ".runtime" / SALT_NAME).write_bytes(b"short")

    with pytest.raises(SaltError):
        start_django()

    start_django("shell")
    for _ in range(2):
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
