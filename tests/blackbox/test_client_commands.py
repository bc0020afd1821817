"""The client commands with a real runtime: one sample of what tests/runtimeclient shows with a fake one."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.runtime import FlightServer
from tests.system.harness import K1, REPOSITORY, WRONG, Server, run_program


def run(server: Server, *arguments: str, key: str = K1, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one client command in a directory without YAML, with the key in the environment."""
    environ = {"RUNTIME_HTTP_ENDPOINT": server.url, "RUNTIME_API_KEY": key}
    return run_program(str(REPOSITORY / "manage.py"), *arguments, cwd=Path("/"), stdin=stdin, **environ)


def test_sql_runs_statements_from_standard_input_until_one_fails(serve: Server) -> None:
    done = run(
        serve, "sql", "--format", "csv", stdin="SELECT 1 AS a;\nSELECT ';' AS b;\nSELECT * FROM absent;\nSELECT 9 AS z;"
    )

    assert done.returncode == 1
    assert done.stdout.splitlines() == ["a", "1", "b", ";"]
    assert "absent" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_sql_status_datasets_and_refresh(serve: Server) -> None:
    rows = run(serve, "sql", "SELECT count(*) AS n FROM orders", "--format", "json")
    status = run(serve, "status")
    datasets = run(serve, "datasets", "--format", "json")
    refresh = run(serve, "refresh", "orders", "--wait")
    refused = run(serve, "refresh", "absent")
    wrong = run(serve, "status", key=WRONG)

    assert (rows.returncode, json.loads(rows.stdout)) == (0, [{"n": 1000}]), rows.stderr
    assert status.returncode == 0, status.stderr
    assert "engine" in status.stdout
    assert json.loads(datasets.stdout)[0]["name"] == "orders"
    assert refresh.returncode == 0, refresh.stderr
    assert "1000" in refresh.stdout.replace(",", "")
    assert (refused.returncode, wrong.returncode) == (1, 4)
    assert WRONG not in wrong.stderr


@pytest.mark.exhaustive  # a server of its own
def test_tls_is_served_and_verified(tmp_path: Path, tls_files: tuple[Path, Path]) -> None:
    certificate, key_file = tls_files
    with FlightServer(tmp_path, trust=certificate, key_file=key_file) as server:
        trusted = run(server, "sql", "SELECT 1 AS a", "--tls-root-certificate-file", str(certificate))
        untrusted = run(server, "sql", "SELECT 1 AS a")
        assert server.sql("SELECT 1", None).status_code == 401

    assert trusted.returncode == 0, trusted.stderr
    assert untrusted.returncode == 3
    assert "certificate" in untrusted.stderr.lower()
