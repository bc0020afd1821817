"""The client commands with a real runtime (checks X01 to X15 end to end)."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.system.harness import K1, PYTHON, REPOSITORY, WRONG, Server, free_port, run_program, wait_for, write_orders


def run(
    server: Server | None, *arguments: str, key: str | None = K1, stdin: str | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run one client command in a directory without YAML, with the key in the environment."""
    settings = environ | ({"RUNTIME_HTTP_ENDPOINT": server.url} if server else {})
    settings |= {"RUNTIME_API_KEY": key} if key else {}
    return run_program(str(REPOSITORY / "manage.py"), *arguments, cwd=Path("/"), stdin=stdin, **settings)


def test_sql_runs_statements_from_standard_input_until_one_fails(serve: Server) -> None:
    done = run(
        serve, "sql", "--format", "csv", stdin="SELECT 1 AS a;\nSELECT ';' AS b;\nSELECT * FROM absent;\nSELECT 9 AS z;"
    )

    assert done.returncode == 1
    assert done.stdout.splitlines() == ["a", "1", "b", ";"]
    assert "absent" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.exhaustive
def test_x03_a_wrong_key_is_not_a_server_that_is_down(serve: Server) -> None:
    refused = run(serve, "sql", "SELECT 1", key=WRONG)
    anonymous = run(serve, "status", key=None)
    down = run(None, "sql", "SELECT 1", RUNTIME_HTTP_ENDPOINT=f"http://127.0.0.1:{free_port()}")

    assert (refused.returncode, anonymous.returncode, down.returncode) == (4, 4, 3)
    for done in (refused, anonymous, down):
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1
        assert WRONG not in done.stderr


def test_x15_refusals_exit_1(serve: Server) -> None:
    """The usage errors, exit status 2, need no runtime: see tests/runtimeclient/commands/test_commands.py."""
    assert run(serve, "sql", "SELECT * FROM absent").returncode == 1
    assert run(serve, "refresh", "absent").returncode == 1


def test_sql_status_datasets_and_refresh(serve: Server) -> None:
    rows = run(serve, "sql", "SELECT count(*) AS n FROM orders", "--format", "json")
    status = run(serve, "status")
    datasets = run(serve, "datasets", "--format", "json")
    refresh = run(serve, "refresh", "orders", "--wait")

    assert (rows.returncode, json.loads(rows.stdout)) == (0, [{"n": 1000}]), rows.stderr
    assert status.returncode == 0, status.stderr
    assert "engine" in status.stdout
    assert json.loads(datasets.stdout)[0]["name"] == "orders"
    assert refresh.returncode == 0, refresh.stderr
    assert "1000" in refresh.stdout.replace(",", "")


@pytest.mark.exhaustive
def test_refresh_wait_reports_a_failure(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        (tmp_path / "orders.parquet").write_bytes(b"broken")

        done = run(server, "refresh", "orders", "--wait")

        assert done.returncode == 1
        assert done.stderr.strip()
        write_orders(tmp_path / "orders.parquet")
        assert run(server, "refresh", "orders", "--wait").returncode == 0


def test_x12_cells_are_escaped_in_tables(serve: Server) -> None:
    sql = "SELECT chr(27) || ']0;pwn' || chr(7) || chr(27) || '[2J' || chr(13) || chr(8238) AS evil"

    table = run(serve, "sql", sql)
    as_json = run(serve, "sql", sql, "--format", "json")

    assert table.returncode == 0, table.stderr
    assert not set(table.stdout) & {"\x1b", "\x07", "\r", "\u202e"}
    assert json.loads(as_json.stdout)[0]["evil"].startswith("\x1b]0;pwn")


def test_tls_is_verified(tls_server: Server) -> None:
    trusted = run(tls_server, "sql", "SELECT 1 AS a", "--tls-root-certificate-file", str(tls_server.trust))
    untrusted = run(tls_server, "sql", "SELECT 1 AS a")

    assert trusted.returncode == 0, trusted.stderr
    assert untrusted.returncode == 3
    assert "certificate" in untrusted.stderr.lower()


@pytest.mark.exhaustive
def test_each_state_of_a_runtime_has_its_message(tmp_path: Path) -> None:
    query = {"workers": 1, "max_queued": 1, "queue_timeout": "1s"}
    auth = {"api-key": {"enabled": False}}
    datasets = [{"from": f"file:{name}.parquet", "name": name} for name in ("orders", "absent")]
    changes = {"runtime": {"auth": auth, "query": query}, "datasets": datasets}
    endless = "SELECT count(*) FROM range(1000000000000)"

    with Server(tmp_path, changes=changes, wait_ready=False) as server:
        starting = run(server, "status", "--wait", "0.5", key=None)
        anonymous = run(server, "sql", "SELECT 42 AS n", "--format", "csv", key=None)
        slow = run(server, "sql", endless, "--timeout", "0.5", key=None)
        with subprocess.Popen(
            [PYTHON, str(REPOSITORY / "manage.py"), "sql", endless, "--http-endpoint", server.url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as busy:
            wait_for(lambda: endless in run(server, "queries", "--format", "csv", key=None).stdout, "it to run")
            saturated = run(server, "sql", "SELECT 1", key=None)
            busy.terminate()

    assert (starting.returncode, starting.stdout) == (1, "")
    assert starting.stderr.startswith("Error: The runtime is not ready: ")
    assert (anonymous.returncode, anonymous.stdout) == (0, "n\n42\n")
    assert slow.returncode == 3
    assert slow.stderr.endswith("accepted the connection, but did not answer within 0.5 s.\n")
    assert saturated.returncode == 1
    assert saturated.stderr.count("\n") == 1
    assert "[" in saturated.stderr
