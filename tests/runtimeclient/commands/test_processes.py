"""Commands as processes: standard input, streams, signals, memory, the locale."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.runtimeclient.conftest import MANAGE, clean_environment, run_measured
from tests.runtimeclient.remote import (
    API_KEY,
    ONE,
    ONE_TABLE,
    Remote,
    Reply,
    as_reply,
    refuse_other_keys,
    with_schema,
)


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands without YAML."""
    monkeypatch.chdir(tmp_path)


def in_shell(script: str, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script whose arguments are the command line of a client command."""
    command, environ = ["sh", "-c", script, "sh", *MANAGE, *arguments], clean_environment(**variables)
    done = subprocess.run(command, env=environ, input=stdin.encode(), capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return in_shell('exec "$@"', *arguments, stdin=stdin, **variables)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "locale", [{"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "latin-1"}], ids=["C", "latin-1"]
)
def test_sql_is_utf_8_whatever_the_locale(remote: Remote, locale: dict[str, str]) -> None:
    remote.on_sql(Reply(body='[{"a":"é"}]'.encode()))

    done = run("sql", "SELECT 'é' AS a", "--format", "json", "--http-endpoint", remote.url, LC_ALL="C", **locale)

    assert (done.returncode, done.stdout, done.stderr) == (0, '[{"a":"é"}]\n', "")
    assert remote.statements == ["SELECT 'é' AS a"]


def test_x01_the_key_comes_from_standard_input(remote: Remote) -> None:
    remote.on("GET", "/v1/status", refuse_other_keys(as_reply([])))
    command = ("status", "--api-key-file", "-", "--http-endpoint", remote.url)

    done = run(*command, stdin=API_KEY + "\n", RUNTIME_API_KEY="another")
    empty = run(*command, stdin="", RUNTIME_API_KEY=API_KEY)

    assert (done.returncode, done.stderr) == (0, "")
    assert (empty.returncode, empty.stderr) == (2, "Error: The API key on standard input is empty.\n")
    assert {request.headers["X-API-Key"] for request in remote.requests} == {API_KEY}


def test_standard_input_is_statements_run_in_order(remote: Remote) -> None:
    remote.on_sql(ONE)

    done = run("sql", "--http-endpoint", remote.url, stdin="\ufeffSELECT ';' ;\r\n-- nothing;\nSELECT 'a\r\nb'")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ONE_TABLE}\n{ONE_TABLE}", "")
    assert remote.statements == ["SELECT ';'", "-- nothing;\nSELECT 'a\r\nb'"]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (b"SELECT '\xe9'", (), "Error: Standard input is not UTF-8 text.\n"),
        (None, (), "Error: Standard input cannot be read: Bad file descriptor.\n"),
        pytest.param(b" ;-- nothing\n", ("-f", "-"), "", marks=pytest.mark.exhaustive),
        (b" ;-- nothing\n", ("--file", "/dev/stdin"), ""),
    ],
)
def test_x15_standard_input_without_statements(
    remote: Remote, tmp_path: Path, content: bytes | None, arguments: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "input"
    file.write_bytes(content or b"")
    redirection = "<&-" if content is None else f"<{file}"

    done = in_shell(f'exec "$@" {redirection}', "sql", *arguments, "--http-endpoint", remote.url)

    assert (done.returncode, done.stdout, done.stderr) == (2 if said else 0, "", said)
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


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
)
def test_x15_ctrl_c_is_130_and_no_signal_leaves_a_file(
    remote: Remote, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    is_running = threading.Event()
    is_done = threading.Event()

    def work(_: object) -> Reply:
        is_running.set()
        is_done.wait(60)
        return ONE

    remote.on_sql(work)
    with subprocess.Popen(
        [*MANAGE, "sql", "SELECT 1", "--http-endpoint", remote.url, "-o", "new.csv"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A background shell passes an ignored SIGINT to its children, and nohup a SIGHUP; a terminal does not.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert is_running.wait(60)
        assert [file.suffix for file in tmp_path.iterdir()] == [".part"]
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        is_done.set()

    assert (process.returncode, out, err) == (status, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_closes_the_pipe_is_no_error(remote: Remote) -> None:
    rows = ",".join(f'{{"a":{number}}}' for number in range(300_000))
    remote.on_sql(with_schema(f"[{rows}]", "a"))

    done = in_shell('{ "$@"; echo "status $?" >&2; } | head -n 3', "sql", "x", "--http-endpoint", remote.url)

    assert (done.stdout, done.stderr) == ("   a\n-----\n   0\n", "status 0\n")


@pytest.mark.parametrize(
    "format_",
    [
        "table",
        pytest.param("json", marks=pytest.mark.exhaustive),
        pytest.param("csv", marks=pytest.mark.exhaustive),
        pytest.param("ndjson", marks=pytest.mark.exhaustive),
    ],
)
def test_x13_a_large_answer_needs_little_memory(remote: Remote, format_: str) -> None:
    row = '{"n":12345,"text":"0123456789012345678901234567890123456789"}'
    rows = f"[{','.join([row] * 200_000)}]"
    if format_ == "table":
        remote.on_sql(with_schema(rows, "n", "text"))
    elif format_ == "csv":
        remote.on_sql(Reply(body=f"n,text\n{rows}\n".encode(), content_type="text/csv"))
    else:
        remote.on_sql(Reply(body=rows.encode()))

    done, peak_kib = run_measured("sql", "x", "--format", format_, RUNTIME_HTTP_ENDPOINT=remote.url)

    assert (done.status, done.err) == (0, "")
    assert len(done.out) > 10e6
    # The answer is 12 MB, its rows as objects 100 MB; the interpreter with its modules takes about 30 MB.
    assert peak_kib < 55_000


@pytest.mark.exhaustive
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

    done = in_shell(f'exec "$@" {arguments}', RUNTIME_HTTP_ENDPOINT=remote.url)

    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


@pytest.mark.exhaustive
def test_help_needs_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "runtime.yaml").write_text("nonsense: [")

    help_, option = run("help", "sql"), run("sql", "--help")

    assert help_.stdout == option.stdout != ""
    assert (option.returncode, option.stderr) == (0, "")
