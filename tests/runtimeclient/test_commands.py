"""The commands as a user starts them, and as Python calls them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from runtimeclient import CLIENT_COMMANDS
from tests.runtimeclient.conftest import MANAGE, ROOT, Run, clean_environment
from tests.runtimeclient.remote import API_KEY, Remote, Reply, problem, refuse_other_keys, with_schema

ONE = with_schema('[{"a":1}]', "a")
ONE_TABLE = " a\n---\n 1\n(1 row)\n"
COMPONENTS = [
    {"name": "http", "endpoint": "127.0.0.1:8090", "status": "Ready"},
    {"name": "flight", "endpoint": "127.0.0.1:50051", "status": "Disabled"},
]
DATASET = {
    "from": "file:flights.parquet",
    "name": "flights",
    "acceleration_enabled": True,
    "status": "Ready",
    "rows": 336_776,
    "refreshed_at": "2026-11-21T03:00:00Z",
    "snapshot": "flights-1",
    "error": None,
    "checked_at": "2026-11-21T04:00:00Z",
    "next_refresh_at": None,
    "age_s": 90,
    "bytes": 12_857_344,
}


def as_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text[:-1]


def run_and(program: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command in a fresh interpreter, and then *program* in the same one."""
    return subprocess.run(
        [
            *(sys.executable, "-c"),
            (
                "import pathlib, runpy, sys\n"
                f"sys.argv = ['manage.py', *{arguments!r}]\n"
                f"try: runpy.run_path({MANAGE[1]!r}, run_name='__main__')\n"
                "except SystemExit as exc: assert not exc.code\n"
                f"{program}\n"
            ),
        ],
        cwd=folder,
        # A shell of a Django project may have this set.
        env=clean_environment(PYTHONPATH=str(ROOT), DJANGO_SETTINGS_MODULE="runtime_site.settings"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


# The four commands


def test_sql_shows_a_table(remote: Remote, run: Run) -> None:
    remote.on_sql(refuse_other_keys(ONE))

    done = run("sql", "SELECT 1 AS a", "--http-endpoint", remote.url, RUNTIME_API_KEY=API_KEY)

    assert (done.returncode, done.stdout, done.stderr) == (0, ONE_TABLE, "")
    assert remote.statements == ["SELECT 1 AS a"]


@pytest.mark.parametrize(
    ("format_", "media_type", "body", "locale"),
    [
        ("json", "application/json", '[{"a":"é"}]\n', {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
        ("ndjson", "application/json", '{"a":"é"}\n', {"PYTHONIOENCODING": "latin-1"}),
        ("csv", "text/csv", "a\né\n", {}),
    ],
)
def test_sql_is_utf_8_whatever_the_locale(
    remote: Remote, format_: str, media_type: str, body: str, locale: dict[str, str]
) -> None:
    sent = body if format_ == "csv" else '[{"a":"é"}]'
    remote.on_sql(Reply(body=sent.encode(), content_type=media_type))

    done = subprocess.run(
        [*MANAGE, "sql", "SELECT 'é' AS a", "--format", format_, "--http-endpoint", remote.url],
        env=clean_environment(LC_ALL="C", **locale),
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, body, b"")
    assert remote.statements == ["SELECT 'é' AS a"]


def test_status_is_0_when_all_that_is_on_is_ready(remote: Remote, run: Run) -> None:
    remote.on("GET", "/v1/status", as_reply(COMPONENTS))

    done = run("status", "--http-endpoint", remote.url)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2] == " http   | 127.0.0.1:8090  | Ready"


@pytest.mark.parametrize("status", ["Initializing", "Error"])
def test_status_is_1_when_something_is_not_ready(remote: Remote, run: Run, status: str) -> None:
    components = [*COMPONENTS, {"name": "engine", "endpoint": "", "status": status}]
    remote.on("GET", "/v1/status", as_reply(components))

    done = run("status", "--http-endpoint", remote.url, "--format", "json")

    assert (done.returncode, one_line(done.stderr)) == (1, f"Error: Not ready: engine is {status}.")
    assert json.loads(done.stdout) == components


def test_status_shows_the_workers_where_there_are_any(remote: Remote, run: Run) -> None:
    engine = {"name": "engine", "endpoint": "unix:engine.sock", "status": "Ready"}
    components = [*COMPONENTS, engine | {"workers_alive": 4, "workers_killed": 17}]
    remote.on("GET", "/v1/status", as_reply(components))

    as_table, as_json, as_csv = (
        run("status", "--http-endpoint", remote.url, "--format", format_) for format_ in ("table", "json", "csv")
    )

    assert as_table.stdout.splitlines()[-2:] == ["(3 rows)", "engine workers: 4 alive, 17 killed since the start"]
    assert json.loads(as_json.stdout) == components
    assert as_csv.stdout.splitlines()[0] == "name,endpoint,status"
    assert as_csv.stdout.splitlines()[-1] == "engine,unix:engine.sock,Ready"
    assert [done.returncode for done in (as_table, as_json, as_csv)] == [0, 0, 0]


def test_workers_do_not_change_the_exit_status(remote: Remote, run: Run) -> None:
    engine = {"name": "engine", "endpoint": "unix:engine.sock", "status": "Error", "workers_alive": 0}
    remote.on("GET", "/v1/status", as_reply([engine]))

    done = run("status", "--http-endpoint", remote.url)

    assert (done.returncode, one_line(done.stderr)) == (1, "Error: Not ready: engine is Error.")
    assert done.stdout.splitlines()[-1] == "engine workers: 0 alive, 0 killed since the start"


def test_datasets_lists_them(remote: Remote, run: Run) -> None:
    remote.on("GET", "/v1/datasets", as_reply([DATASET]))
    shown = {
        format_: run("datasets", "--http-endpoint", remote.url, "--format", format_) for format_ in ("json", "csv")
    }

    assert json.loads(shown["json"].stdout) == [DATASET]
    assert shown["csv"].stdout == (
        "from,name,acceleration_enabled,status,rows,refreshed_at,snapshot,error,"
        "checked_at,next_refresh_at,age_s,bytes\n"
        "file:flights.parquet,flights,true,Ready,336776,2026-11-21T03:00:00Z,flights-1,,"
        "2026-11-21T04:00:00Z,,90,12857344\n"
    )
    assert {done.returncode for done in shown.values()} == {0}


def test_refresh_asks_and_leaves(remote: Remote, run: Run) -> None:
    remote.on_refreshes("flights")

    asked = ("--refresh-sql", "SELECT 1", "--refresh-mode=full", "--refresh-jitter-max=9s")
    done = run("refresh", "flights", *asked, "--http-endpoint", remote.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Dataset refresh triggered for flights.\n", "")
    assert list(json.loads(remote.requests[0].body).values()) == ["SELECT 1", "full", "9s"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"rows": 336_776, "duration_ms": 1234}, "Loaded 336,776 rows in 1.2 s."),
        ({"rows": 1, "duration_ms": 1}, "Loaded 1 row in 1 ms."),
        ({}, "Loaded an unknown number of rows."),
        ({"rows": 2, "duration_ms": 1, "unchanged": True}, "Nothing new: 2 rows as before."),
    ],
)
def test_refresh_waits_for_its_run(remote: Remote, fields: dict[str, int], line: str) -> None:
    remote.on_refreshes("flights", {"id": "7", "status": "running"}, {"id": "7", "status": "succeeded"} | fields)
    out = io.StringIO()

    call_command("refresh", "flights", wait=True, http_endpoint=remote.url, stdout=out)

    assert out.getvalue() == f"Dataset refresh triggered for flights.\n{line}\n"


def test_refresh_exits_1_when_its_run_failed(remote: Remote, run: Run) -> None:
    remote.on_refreshes("flights", {"id": "7", "status": "failed", "error": "The source is gone."})

    done = run("refresh", "flights", "--wait", "--http-endpoint", remote.url)

    assert done.returncode == 1
    assert one_line(done.stderr) == "Error: The refresh of flights failed: The source is gone."


# Statements from files and pipes


def test_standard_input_is_statements_run_in_order(remote: Remote, run: Run) -> None:
    remote.on_sql(ONE)

    done = run("sql", "--http-endpoint", remote.url, stdin="\ufeffSELECT ';' ;\r\n-- nothing;\nSELECT 'a\r\nb'")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ONE_TABLE}\n{ONE_TABLE}", "")
    assert remote.statements == ["SELECT ';'", "-- nothing;\nSELECT 'a\r\nb'"]


def test_the_first_statement_that_fails_is_the_last(remote: Remote, run: Run, tmp_path: Path) -> None:
    remote.on_sql(lambda request: problem(400, "sql_error", "No\nsuch table.") if b"absent" in request.body else ONE)
    file = tmp_path / "ä b.sql"
    file.write_text("SELECT 1;\nSELECT absent;\nSELECT 3;\n")

    done = run("sql", "-f", str(file), "--format", "table", "--http-endpoint", remote.url)

    assert (done.returncode, done.stdout) == (1, ONE_TABLE)
    assert one_line(done.stderr) == "Error: No such table. [sql_error]"
    assert remote.statements == ["SELECT 1", "SELECT absent"]


@pytest.mark.parametrize("arguments", [(), ("-f", "-"), ("--file", "/dev/stdin")])
def test_no_statement_is_no_error(remote: Remote, run: Run, arguments: tuple[str, ...]) -> None:
    done = run("sql", *arguments, "--http-endpoint", remote.url, stdin=" ;-- nothing\n")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert remote.requests == []


def test_statements_run_as_they_arrive(remote: Remote) -> None:
    remote.on_sql(Reply(body=b'[{"a":1}]'))
    with subprocess.Popen(
        [*MANAGE, "sql", "--format", "ndjson", "--http-endpoint", remote.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write("SELECT 1;\n")
            process.stdin.flush()
            assert process.stdout.readline() == '{"a":1}\n'
        process.stdin.close()

        assert process.wait(60) == 0


# Keys


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("flag", id="X02 a flag before the others"),
        pytest.param("file", id="X02 a file before the environment"),
        pytest.param("input", id="X01 standard input"),
        pytest.param("variable", id="X01 the environment"),
    ],
)
def test_the_key_comes_from_where_it_should(remote: Remote, run: Run, tmp_path: Path, source: str) -> None:
    remote.on("GET", "/v1/status", refuse_other_keys(as_reply([])))
    file = tmp_path / "key"
    file.write_text(API_KEY + "\n" if source == "file" else "not this one")
    file.chmod(0o600)
    arguments = {
        "flag": ("--api-key", API_KEY, "--api-key-file", str(file)),
        "file": ("--api-key-file", str(file)),
        "input": ("--api-key-file", "-"),
        "variable": (),
    }[source]
    variable = API_KEY if source == "variable" else "nor this one"

    done = run("status", *arguments, stdin=API_KEY + "\n", RUNTIME_API_KEY=variable, RUNTIME_HTTP_ENDPOINT=remote.url)

    assert (done.returncode, done.stderr) == (0, "")
    assert remote.requests[0].headers["X-API-Key"] == API_KEY


def test_x02_an_empty_key_is_a_usage_error_never_an_anonymous_call(remote: Remote, run: Run, tmp_path: Path) -> None:
    remote.on("GET", "/v1/status", as_reply([]))
    (tmp_path / "empty").touch()

    for arguments in (["--api-key", ""], ["--api-key="], ["--api-key-file", "empty"], ["--api-key-file", "-"]):
        done = run("status", *arguments, RUNTIME_API_KEY=API_KEY, RUNTIME_HTTP_ENDPOINT=remote.url)

        assert done.returncode == 2
        assert "empty" in one_line(done.stderr)
    assert remote.requests == []


def test_a_key_file_that_others_can_read_is_warned_of(remote: Remote, run: Run, tmp_path: Path) -> None:
    remote.on("GET", "/v1/status", refuse_other_keys(as_reply([])))
    file = tmp_path / "key"
    file.write_text(API_KEY)
    file.chmod(0o644)

    done = run("status", "--api-key-file", "key", "--http-endpoint", remote.url)

    assert done.returncode == 0
    assert one_line(done.stderr) == "Warning: key can be read by others (mode 0644): chmod 600 it."


def test_the_endpoint_flag_wins_over_the_environment(remote: Remote, run: Run) -> None:
    remote.on("GET", "/v1/status", as_reply([]))

    assert run("status", "--http-endpoint", remote.url, RUNTIME_HTTP_ENDPOINT="http://127.0.0.1:1").returncode == 0
    assert run("status", "--http-endpoint", "", RUNTIME_HTTP_ENDPOINT=remote.url).returncode == 2


# Exit statuses


@pytest.mark.parametrize("command", [("sql", "SELECT 1"), ("status",), ("datasets",), ("refresh", "a", "--wait")])
def test_x03_a_wrong_key_is_4_and_a_server_down_is_3(remote: Remote, run: Run, command: tuple[str, ...]) -> None:
    refusal = refuse_other_keys(Reply())
    for method, path in (
        ("POST", "/v1/sql"),
        ("GET", "/v1/status"),
        ("GET", "/v1/datasets"),
        ("POST", "/v1/datasets/a/acceleration/refresh"),
    ):
        remote.on(method, path, refusal)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"

    wrong = run(*command, "--api-key", "a-wrong-key", "--http-endpoint", remote.url)
    with pytest.raises(CommandError, match="requires an API key") as missing:
        call_command(*command, http_endpoint=remote.url)
    down = run(*command, "--api-key", API_KEY, "--http-endpoint", nobody)

    assert (wrong.returncode, missing.value.returncode, down.returncode) == (4, 4, 3)
    assert one_line(wrong.stderr) == f"Error: The runtime at {remote.url} refused the API key."
    assert "is the runtime running" in one_line(down.stderr)
    assert wrong.stdout == down.stdout == ""
    assert "a-wrong-key" not in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["sql", "SELECT 1", "--format", "xml"], "invalid choice: 'xml'", id="X15 unknown format"),
        pytest.param(["sql", "--bogus", "SELECT 1"], "unknown option --bogus", id="X15 unknown option"),
        pytest.param(["sql", "SELECT", "1"], "quote text that contains spaces", id="X15 too many arguments"),
        pytest.param(["sql", "SELECT 1", "-f", "x"], "only one of", id="X15 query and file"),
        pytest.param(["sql", "SELECT 1", "-c", "SELECT 2"], "only one of", id="X15 query and -c"),
        pytest.param(["sql", "-c", "SELECT 1", "-f", "x"], "only one of", id="X15 -c and file"),
        pytest.param(["sql", "-f", "absent.sql"], "absent.sql cannot be read: No such file", id="X15 no such file"),
        pytest.param(["sql", "-f", "."], "cannot be read: Is a directory", id="X15 a directory"),
        pytest.param(["sql", "--api-key-file", "-"], "Standard input holds the API key", id="X15 input twice"),
        pytest.param(["sql", "-f", "-", "--api-key-file", "-"], "Standard input holds", id="X15 input twice, by -f"),
        pytest.param(["sql", "--http", "http://127.0.0.1:1"], "unknown option --http", id="X15 no abbreviations"),
        pytest.param(["refresh"], "Name the datasets", id="X15 no dataset"),
        pytest.param(["refresh", ""], "Name the dataset", id="X15 empty dataset"),
        pytest.param(["status", "--timeout", "0"], "more than 0 seconds", id="X15 zero seconds"),
        pytest.param(["status", "--timeout", "nan"], "more than 0 seconds", id="X15 no number"),
        pytest.param(["status", "--connect-timeout", "x"], "invalid", id="X15 not a number"),
        pytest.param(
            ["status", "--http-endpoint", "127.0.0.1:1"], "did you mean http://127.0.0.1:1?", id="X15 no scheme"
        ),
        pytest.param(["status", "--api-key-file", "absent"], "absent cannot be read", id="X15 no key file"),
        pytest.param(
            ["status", "--http-endpoint", "https://127.0.0.1:1", "--tls-root-certificate-file", "absent"],
            "absent cannot be used",
            id="X15 no root certificate",
        ),
    ],
)
def test_x15_usage_errors_exit_2_with_one_line(remote: Remote, run: Run, arguments: list[str], said: str) -> None:
    done = run(*arguments, stdin="some-key", RUNTIME_HTTP_ENDPOINT=remote.url)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in one_line(done.stderr)
    assert remote.requests == []


def test_x15_statements_that_are_not_utf_8_are_a_usage_error(remote: Remote, run: Run) -> None:
    done = run("sql", "--http-endpoint", remote.url, stdin=b"SELECT '\xe9'")

    assert done.returncode == 2
    assert one_line(done.stderr) == "Error: Standard input is not UTF-8 text."


def test_x15_no_standard_input_is_a_usage_error(remote: Remote, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *MANAGE, "sql", "--http-endpoint", remote.url],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "Standard input cannot be read" in one_line(done.stderr)


def test_x15_a_refusal_and_a_cut_answer(remote: Remote, run: Run) -> None:
    remote.on_sql(
        lambda request: (
            problem(403, "statement_not_allowed", "DROP is not allowed.\x1b[2J")
            if b"DROP" in request.body
            else Reply(body=b'[{"a":1}', is_cut=True)
        )
    )

    refused = run("sql", "DROP TABLE a", "--format", "json", "--http-endpoint", remote.url)
    cut = run("sql", "SELECT 1", "--format", "json", "--http-endpoint", remote.url)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert one_line(refused.stderr) == r"Error: DROP is not allowed.\x1b[2J [statement_not_allowed]"
    assert (cut.returncode, cut.stdout) == (3, '[{"a":1}')
    assert "cut off" in one_line(cut.stderr)


@pytest.mark.parametrize("command", [("sql", "SELECT 1"), ("status",)])
def test_x09_a_silent_server_is_given_up(run: Run, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        done = run(*command, "--http-endpoint", url, "--connect-timeout", "0.2")

    assert done.returncode == 3
    assert "did not answer within 0.2 s" in one_line(done.stderr)


def test_x09_a_query_may_be_silent_for_longer_than_a_connection(remote: Remote, run: Run) -> None:
    seen = threading.Event()

    def late(_: object) -> Reply:
        # Longer than the connect timeout, on a machine of any speed: nothing sets this.
        seen.wait(2.5)
        return ONE

    remote.on_sql(late)

    done = run("sql", "SELECT 1", "--http-endpoint", remote.url, "--connect-timeout", "2", "--timeout", "30")

    assert (done.returncode, done.stdout) == (0, ONE_TABLE)


def test_x15_ctrl_c_is_130(remote: Remote) -> None:
    is_running = threading.Event()
    is_done = threading.Event()

    def work(_: object) -> Reply:
        is_running.set()
        is_done.wait(60)
        return ONE

    remote.on_sql(work)
    with subprocess.Popen(
        [*MANAGE, "sql", "SELECT 1", "--http-endpoint", remote.url],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell in the background hands its children an ignored SIGINT; a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        assert is_running.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        is_done.set()

    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_has_seen_enough_is_no_error(remote: Remote) -> None:
    rows = ",".join(f'{{"a":{number}}}' for number in range(300_000))
    remote.on_sql(with_schema(f"[{rows}]", "a"))

    done = subprocess.run(
        [
            "sh",
            "-c",
            '{ "$@"; echo "status $?" >&2; } | head -n 3',
            "sh",
            *MANAGE,
            "sql",
            "x",
            "--http-endpoint",
            remote.url,
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "   a\n-----\n   0\n"
    assert done.stderr == "status 0\n"


@pytest.mark.parametrize("format_", ["table", "json", "csv", "ndjson"])
def test_x13_a_large_answer_needs_little_memory(remote: Remote, format_: str) -> None:
    row = '{"n":12345,"text":"0123456789012345678901234567890123456789"}'
    rows = f"[{','.join([row] * 200_000)}]"
    if format_ == "table":
        remote.on_sql(with_schema(rows, "n", "text"))
    elif format_ == "csv":
        remote.on_sql(Reply(body=f"n,text\n{rows}\n".encode(), content_type="text/csv"))
    else:
        remote.on_sql(Reply(body=rows.encode()))

    # The peak of this program alone: what wait4() tells includes the process that it was forked from.
    done = run_and(
        "print(pathlib.Path('/proc/self/status').read_text(), file=sys.stderr)",
        *("sql", "x", "--format", format_, "--http-endpoint", remote.url),
    )

    assert len(done.stdout) > 10e6
    peak_kib = int(done.stderr.partition("VmHWM:")[2].split()[0])
    # The answer alone is 12 MB, its rows as objects 100; the interpreter with its modules takes about 50.
    assert peak_kib < 75_000


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        ("sql x >/dev/full", 1, "", "Error: The output cannot be written: No space left on device.\n"),
        ("sql x >&-", 0, "", ""),
        ("sql x 2>&-", 0, ONE_TABLE, ""),
        ("sql --bogus 2>&-", 2, "", ""),
        ("sql --bogus >&-", 2, "", "Error: unknown option --bogus. See manage.py sql --help.\n"),
        ("status --help >/dev/full", 0, "", ""),
    ],
)
def test_streams_that_are_full_or_closed(remote: Remote, arguments: str, status: int, out: str, err: str) -> None:
    remote.on_sql(ONE)

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {arguments}', "sh", *MANAGE],
        env=clean_environment(RUNTIME_HTTP_ENDPOINT=remote.url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


# What is loaded, and help


@pytest.mark.parametrize("command", CLIENT_COMMANDS)
def test_help_is_complete_and_free_of_what_does_not_matter(run: Run, command: str) -> None:
    done = run(command, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "examples:" in done.stdout
    assert "exit status: 0 done" in done.stdout
    assert f"manage.py {command}" in done.stdout
    options = set(re.findall(r"--[a-z-]+", done.stdout))
    assert (
        options & {"--settings", "--pythonpath", "--traceback", "--force-color", "--verbosity", "--skip-checks"}
        == set()
    )


def test_help_needs_no_yaml_either(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runtime.yaml").write_text("nonsense: [")

    assert run("help", "sql").stdout == run("sql", "--help").stdout != ""


# From Python


def test_commands_work_through_call_command(remote: Remote) -> None:
    remote.on_sql(refuse_other_keys(ONE))
    remote.on("GET", "/v1/datasets", refuse_other_keys(as_reply([DATASET])))
    out = io.StringIO()

    call_command("sql", "SELECT 1", api_key=API_KEY, http_endpoint=remote.url, stdout=out)
    call_command("datasets", "--format=csv", api_key=API_KEY, http_endpoint=remote.url, stdout=out)

    assert out.getvalue().startswith(ONE_TABLE)
    assert out.getvalue().count("\n") == 6


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("sql", "SELECT 1"), 4),
        (("sql", "SELECT 1", "--api-key="), 2),
        (("sql", "SELECT 1", "--bogus"), 2),
        (("status",), 3),
    ],
)
def test_a_failure_from_python_carries_its_exit_status(remote: Remote, arguments: tuple[str, ...], status: int) -> None:
    remote.on_sql(refuse_other_keys(ONE))

    with pytest.raises(CommandError) as caught:
        call_command(*arguments, http_endpoint=remote.url)

    assert caught.value.returncode == status
    assert os.linesep not in str(caught.value)
