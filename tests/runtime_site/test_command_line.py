"""`manage.py help` lists the available commands, ours first, and all of them work."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from django.db import connections

from runtime_site.management.command_line import CommandLine, listed_commands
from runtimeclient import CLIENT_COMMANDS
from supervisor.version import version
from tests.system.harness import PYTHON, REPOSITORY, clean_environ, run_program

MANAGE = str(REPOSITORY / "manage.py")


def test_our_commands_are_listed_first_and_none_needs_a_database() -> None:
    assert list(connections) == ["default"]  # This makes Django add its dummy engine to the settings.

    listed = listed_commands()

    assert list(listed)[:3] == ["server", "client", "django"]
    assert {"serve", "check", "runserver", "runrefresh", "runengine", "runweb", "runflight"} <= set(listed["server"])
    assert listed["client"] == sorted(CLIENT_COMMANDS)
    assert listed["django"] == ["diffsettings", "shell", "test"]
    names = CommandLine(["manage.py"]).main_help_text(commands_only=True).split()
    assert names == [name for heading in listed.values() for name in heading]


@pytest.mark.exhaustive
def test_help_shows_the_list(tmp_path: Path) -> None:
    done = run_program(MANAGE, "help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    headings = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert headings[:3] == ["[server]", "[client]", "[django]"]
    assert "dbshell" not in done.stdout
    assert run_program(MANAGE, "--help", cwd=tmp_path).stdout == run_program(MANAGE, cwd=tmp_path).stdout == done.stdout


def test_an_unknown_command_is_wrong_usage(tmp_path: Path) -> None:
    done = run_program(MANAGE, "chek", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: Unknown command: 'chek'. Did you mean check? See manage.py help.\n"


@pytest.mark.parametrize("arguments", [("serve", "--version"), ("check", "--version"), ("--version",)])
def test_the_version_is_not_that_of_django(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert run_program(MANAGE, *arguments, cwd=tmp_path).stdout == f"querykeep {version()}\n"


def test_a_reader_that_closes_the_pipe_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)

    with open(write_end, "wb") as pipe:  # noqa: PTH123 (a descriptor)
        command = [PYTHON, MANAGE, "help"]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_environ(), stdout=pipe, stderr=subprocess.PIPE, check=False
        )

    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


TEST = """
from django.test import SimpleTestCase


class Test(SimpleTestCase):
    def test_anyone_may_call_while_authentication_is_off(self):
        answer = self.client.post("/v1/sql", "SELECT 1 AS a", content_type="text/plain")
        self.assertEqual((answer.status_code, answer.content), (200, b'[{"a":1}]'))
        self.assertEqual(self.client.get("/v1/ready").content, b"ready")
        refused = self.client.post("/v1/sql", "SELECT 1", content_type="text/plain", HTTP_HOST="evil.test")
        self.assertEqual(refused.json()["code"], "invalid_host")
"""


@pytest.mark.parametrize("command", ["diffsettings", "shell", "test"])
def test_the_listed_commands_of_django_work(tmp_path: Path, command: str) -> None:
    (tmp_path / "runtime.yaml").write_text("{}\n")
    (tmp_path / "test_own.py").write_text(TEST)

    done = run_program(MANAGE, command, cwd=tmp_path, stdin="")

    assert done.returncode == 0, done.stderr
    assert command != "test" or "Ran 1 test" in done.stderr


@pytest.mark.parametrize("has_own_settings", [False, True])
def test_client_commands_read_no_yaml_and_need_no_django(tmp_path: Path, *, has_own_settings: bool) -> None:
    """With a user's own settings they run through Django, but import neither the parser of the YAML nor an engine."""
    (tmp_path / "runtime.yaml").write_text("not: [a runtime\n")
    (tmp_path / "own_settings.py").write_text("from runtime_site.settings import *\n")
    program = (
        "import sys, runpy\n"
        f"sys.argv = [{MANAGE!r}, 'sql', '--http-endpoint', 'http://127.0.0.1:1', 'SELECT 1']\n"
        f"sys.path[:0] = [{str(REPOSITORY)!r}, {str(tmp_path)!r}]\n"
        "sys.dont_write_bytecode = True\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 3, end.code\n"
        "heavy = {'django', 'yaml', 'duckdb', '_duckdb', 'pyarrow', 'gunicorn', 'rest_framework.views', 'grpc'}\n"
        "print(*heavy & set(sys.modules))\n"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "own_settings"} if has_own_settings else {}

    done = run_program("-c", program, cwd=tmp_path, **environment)

    assert (done.returncode, done.stdout) == (0, "django\n" if has_own_settings else "\n"), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"runtime.yaml", "own_settings.py"}
