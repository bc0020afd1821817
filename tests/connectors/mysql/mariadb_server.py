"""A MariaDB server of the tests, the one of the system: on Debian the package mariadb-server."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
import trustme

from tests.system.harness import free_port, wait_for

USER, PASSWORD = "owner", "pass'word of \\ the tést €"

#: MariaDB does not run as root; this is the user nobody on Linux.
_NOBODY = 65534

#: Where Debian puts servers, which is not on the path of every user.
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def _program(name: str) -> str:
    """Return the path of a program; without it the test is skipped, but fails where CI is set."""
    path = shutil.which(name, path=_PLACES)
    if path is None:
        assert "CI" not in os.environ, f"{name} is missing: .ci/run installs mariadb-server"
        pytest.skip(f"needs {name}: apt-get install --no-install-recommends mariadb-server")
    return path


class MariadbServer:
    """A server on 127.0.0.1 with a certificate for `localhost`, and a database `test` that is empty."""

    def __init__(self, directory: Path, authority: trustme.CA) -> None:
        self.directory = directory
        self._options: dict[str, Any] = {
            "cwd": directory,
            "env": {"PATH": _PLACES, "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        }
        certificate = authority.issue_cert("localhost")
        certificate.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
        for path in (directory, directory / "server.pem"):
            os.chown(path, *(2 * [_NOBODY if os.geteuid() == 0 else -1]))
        if os.geteuid() == 0:
            self._options |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        self.port = str(free_port())
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(
            [
                *(_program("mariadb-install-db"), "--no-defaults", f"--datadir={directory}/data", "--skip-test-db"),
                *("--auth-root-authentication-method=normal", "--skip-name-resolve", "--innodb-log-file-size=4M"),
            ],
            check=True,
            capture_output=True,
            **self._options,
        )
        self.start()
        with closing(self._connection(user="root", password="", unix_socket=f"{directory}/socket")) as root:
            cursor = root.cursor()
            cursor.execute("CREATE DATABASE test")
            cursor.execute(f"CREATE USER {USER} IDENTIFIED BY %s", (PASSWORD,))
            cursor.execute(f"GRANT ALL ON *.* TO {USER} WITH GRANT OPTION")

    @property
    def params(self) -> dict[str, str]:
        """The `params` of a dataset on this server, without TLS."""
        return {
            "mysql_host": "127.0.0.1",
            "mysql_tcp_port": self.port,
            "mysql_db": "test",
            "mysql_user": USER,
            "mysql_pass": PASSWORD,
            "mysql_sslmode": "disabled",
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        here, pem = self.directory, self.directory / "server.pem"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_program("mariadbd"), "--no-defaults", f"--datadir={here}/data", f"--tmpdir={here}"),
                    *(f"--socket={here}/socket", f"--pid-file={here}/pid", f"--port={self.port}"),
                    *("--bind-address=127.0.0.1", "--skip-name-resolve"),
                    *(f"--ssl-cert={pem}", f"--ssl-key={pem}", "--innodb-log-file-size=4M"),
                    *("--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"),
                    # What the source has to set itself.
                    *("--sql-mode=ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH", "--default-time-zone=+09:00"),
                    *("--character-set-server=latin1", "--transaction-isolation=READ-COMMITTED"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._options,
            )
        wait_for(self._is_up, "MariaDB")

    def stop(self) -> None:
        """Kill it, whatever it is doing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None
            (self.directory / "log").unlink()

    def run(self, *statements: str) -> None:
        """Run each of *statements* as the owner."""
        with closing(self._connection()) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def value(self, query: str) -> Any:
        """Return the one value that *query* gives."""
        with closing(self._connection()) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return cursor.fetchone()[0]

    def by_client(self, query: str) -> Sequence[Sequence[str]]:
        """Return the rows of *query* as the server's own client prints them, in UTC."""
        init = "SET time_zone = '+00:00', sql_mode = ''"
        command = [
            *(_program("mariadb"), "--no-defaults", "--batch", "--raw", "--skip-column-names", f"--user={USER}"),
            *(f"--socket={self.directory}/socket", "--default-character-set=utf8mb4", f"--init-command={init}"),
            *("test", f"--execute={query}"),
        ]
        options = {**self._options, "env": {**self._options["env"], "MYSQL_PWD": PASSWORD}}
        done = subprocess.run(command, check=True, capture_output=True, **options)
        return [line.split("\t") for line in done.stdout.decode().splitlines()]

    def _is_up(self) -> bool:
        log = (self.directory / "log").read_bytes()
        assert self._process is None or self._process.poll() is None, log.decode()
        return b"ready for connections" in log

    def _connection(self, **more: str) -> pymysql.Connection:
        options: dict[str, Any] = {
            "host": "127.0.0.1", "port": int(self.port), "user": USER, "password": PASSWORD.encode(),
            "database": "test", "charset": "utf8mb4", "autocommit": True, "ssl_disabled": True,
        }  # fmt: skip
        if "user" in more:
            del options["database"]
        return pymysql.connect(**options | more)


@pytest.fixture(scope="session")
def mariadb(authority: trustme.CA) -> Iterator[MariadbServer]:
    """A server that is up."""
    _program("mariadbd")
    # Not below pytest's directory: its path is too long for a socket, and the user nobody has no access.
    with tempfile.TemporaryDirectory(prefix="querykeep-my-") as directory:
        server = MariadbServer(Path(directory), authority)
        try:
            yield server
        finally:
            server.stop()
