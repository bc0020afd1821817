"""PgBouncer in front of the PostgreSQL server of the tests: on Debian the package pgbouncer."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_postgresql.dbapi
import pytest

from tests.connectors.postgres.postgres_server import PASSWORD, PORT, USER, PostgresServer
from tests.system.harness import free_port, wait_for

#: PgBouncer does not run as root; this is the user nobody on Linux.
_NOBODY = 65534

#: Server connections take turns, so what needs one connection without asking for it fails at once.
_CONFIGURATION = """
[databases]
test = host={host} port={host_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {directory}/users
pool_mode = {mode}
default_pool_size = 2
server_round_robin = 1
"""


def _program() -> str:
    """Return the path of the program; without it the test is skipped, but fails where CI is set."""
    path = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        assert "CI" not in os.environ, "pgbouncer is missing: .ci/run installs it"
        pytest.skip("needs pgbouncer: apt-get install --no-install-recommends pgbouncer")
    return path


@contextmanager
def pgbouncer(server: PostgresServer, mode: str) -> Iterator[dict[str, str]]:
    """Run it with up to two connections to *server*; give the `params` of a dataset that is read through it."""
    program, port = _program(), free_port()
    directory = server.directory / f"pgbouncer-{mode}"
    directory.mkdir()
    (directory / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
    (directory / "configuration").write_text(
        _CONFIGURATION.format(host=server.directory, host_port=PORT, port=port, directory=directory, mode=mode)
    )
    options: dict[str, Any] = {"cwd": directory}
    if os.geteuid() == 0:
        options |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}

    def is_pooled() -> bool:
        assert process.poll() is None, (directory / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", port)):
                return True
        except OSError:
            return False

    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "configuration"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
        )
    try:
        wait_for(is_pooled, "PgBouncer")
        yield {**server.params, "pg_host": "127.0.0.1", "pg_port": str(port), "pg_sslmode": "disable"}
    finally:
        process.kill()
        process.wait(60)
        shutil.rmtree(directory)


def fill(params: dict[str, str]) -> None:
    """Make both connections of the pool: each of two transactions at a time needs one, and leaves it there."""
    password = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    options = f"host={params['pg_host']} port={params['pg_port']} dbname=test user={USER} password='{password}'"
    with adbc_driver_postgresql.dbapi.connect(options) as one, adbc_driver_postgresql.dbapi.connect(options) as other:
        for connection in (one, other):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
        for connection in (one, other):
            connection.commit()
            connection.adbc_connection.set_autocommit(True)
