"""`manage.py help` lists what can be run here, ours first, and what it lists runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_site.management.command_line import CommandLine, listed_commands
from runtimeclient import CLIENT_COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def manage(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder where no YAML is."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("RUNTIME_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_our_commands_come_first_and_none_needs_a_database() -> None:
    listed = listed_commands()

    assert list(listed) == ["server", "client", "django"]
    assert {"serve", "check", "runserver", "runrefresh", "runengine", "runweb", "runflight"} <= set(listed["server"])
    assert listed["client"] == sorted(CLIENT_COMMANDS)
    assert listed["django"] == ["diffsettings", "shell", "test"]
    names = CommandLine(["manage.py"]).main_help_text(commands_only=True).split()
    assert names == [name for heading in listed.values() for name in heading]


def test_help_shows_the_list(tmp_path: Path) -> None:
    done = manage("help", directory=tmp_path)

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[server]", "[client]", "[django]"]
    assert "dbshell" not in done.stdout
    assert manage("--help", directory=tmp_path).stdout == manage(directory=tmp_path).stdout == done.stdout


TEST = """
from django.test import SimpleTestCase


class Test(SimpleTestCase):
    def test_everybody_may_call_while_authentication_is_off(self):
        answer = self.client.post("/v1/sql", "SELECT 1 AS a", content_type="text/plain")
        self.assertEqual((answer.status_code, answer.content), (200, b'[{"a":1}]'))
        self.assertEqual(self.client.get("/v1/ready").content, b"ready")
        refused = self.client.post("/v1/sql", "SELECT 1", content_type="text/plain", HTTP_HOST="evil.test")
        self.assertEqual(refused.json()["code"], "invalid_host")
"""


@pytest.mark.parametrize("command", ["diffsettings", "shell", "test"])
def test_what_is_listed_of_django_runs(tmp_path: Path, command: str) -> None:
    (tmp_path / "runtime.yaml").write_text("{}\n")
    (tmp_path / "test_own.py").write_text(TEST)

    done = manage(command, directory=tmp_path)

    assert done.returncode == 0, done.stderr
    assert command != "test" or "Ran 1 test" in done.stderr


def test_django_runs_the_client_commands_and_reads_no_yaml(tmp_path: Path) -> None:
    """They are found and run as any management command is, and load neither the YAML's parser nor an engine."""
    (tmp_path / "runtime.yaml").write_text("not: [a runtime\n")
    program = (
        "import sys, runpy\n"
        f"sys.argv = [{str(ROOT / 'manage.py')!r}, 'sql', '--http-endpoint', 'http://127.0.0.1:1', 'SELECT 1']\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 3, end.code\n"
        "from django.apps import apps\n"
        "assert apps.ready\n"
        "heavy = {'yaml', 'duckdb', '_duckdb', 'pyarrow', 'gunicorn', 'rest_framework.views', 'grpc'}\n"
        "print(*heavy & set(sys.modules))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runtime.yaml"]
