import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ErrorPosition
from runtimeclient.output.programs import pager_command
from runtimeclient.output.terminal import Console, Streams, Style, excerpt
from runtimeclient.sql.runner import StatementRunner, find_position
from runtimeclient.sql.statements import Statement
from tests.corpus import each
from tests.runtimeclient.calling import Called, Screen, call
from tests.runtimeclient.remote import ONE, ONE_TABLE, Remote, Reply, Request, problem, with_schema


@pytest.fixture
def runtime(remote: Remote) -> Remote:
    def answer(request: Request) -> Reply:
        if b"FORM" in request.body:
            return problem(400, "sql_syntax_error", 'Syntax error at or near "x" (line 2, column 3).')
        return Reply(body=b"a\n1\n", content_type="text/csv") if request.headers["Accept"] == "text/csv" else ONE

    remote.on_sql(answer)
    return remote


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "report.sql"
    path.write_text("SELECT 1;\n\nSELECT\n  FORM x;\nSELECT 3")
    return str(path)


def test_an_error_has_its_position_in_the_script(runtime: Remote, script: str) -> None:
    done = runtime.call("sql", "-f", script)

    assert done == Called(
        1, ONE_TABLE, f'Error: {script}, line 4, column 3: Syntax error at or near "x". [sql_syntax_error]\n'
    )
    assert runtime.statements == ["SELECT 1", "SELECT\n  FORM x"]


@pytest.mark.parametrize(("environ", "is_red"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_shows_the_excerpt(runtime: Remote, environ: dict[str, str], is_red: bool) -> None:
    done = runtime.call("sql", "SELECT\n  FORM x", err=Screen(), environ=environ)

    assert done.err.endswith("[sql_syntax_error]\n2 |   FORM x\n      ^\n")
    assert done.err.startswith("\x1b[31mError:\x1b[0m line 2" if is_red else "Error: line 2")


def test_a_script_may_continue_after_errors_but_then_leaves_no_file(
    runtime: Remote, script: str, tmp_path: Path
) -> None:
    done = runtime.call("sql", "-f", script, "--continue-on-error")
    to_file = runtime.call("sql", "-f", script, "--continue-on-error", "-o", str(tmp_path / "a.csv"))

    assert (done.status, done.out) == (1, f"{ONE_TABLE}\n{ONE_TABLE}")
    assert done.err.splitlines()[-1] == "Error: 1 of 3 statements failed."
    assert to_file.status == 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.sql"]


@pytest.mark.parametrize("name", ["x.xlsx", "x.csv.gz", "X.TSV", "x.01", "x.svg"])
@pytest.mark.parametrize("arguments", [("SELECT 1",), ("-f", "-"), ("-c", "SELECT 1")])
def test_an_unknown_extension_is_a_usage_error(
    runtime: Remote, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    done = runtime.call("sql", *arguments, "-o", str(tmp_path / name))

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"Error: {name} has an unknown extension: ")
    assert ".txt, .json, .csv, .ndjson, .jsonl, .md, .arrow, .feather, .parquet" in done.err
    assert ("--chart-file" in done.err) is (name == "x.svg")
    assert (runtime.requests, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        (("-o", "x.CSV"), "a\n1\n"),
        (("-o", "x.txt"), ONE_TABLE),
        (("-o", "x"), ONE_TABLE),
        (("-o", ".x"), ONE_TABLE),
        (("-o", ".csv"), "a\n1\n"),
        (("-o", "x.xlsx", "--format", "csv"), "a\n1\n"),
        (("-o", "x.csv", "--format", "table"), ONE_TABLE),
    ],
)
def test_the_extension_selects_the_format_unless_one_is_given(
    runtime: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], content: str
) -> None:
    monkeypatch.chdir(tmp_path)

    done = runtime.call("sql", "SELECT 1", *arguments)

    assert (done.status, done.err) == (0, "")
    assert (tmp_path / arguments[1]).read_text() == content


def test_statements_come_from_the_command_line(runtime: Remote) -> None:
    done = runtime.call("sql", "-c", "SELECT 1; SELECT 2;", "-c", "SELECT\n FORM", "-c", "SELECT 4")

    assert runtime.statements == ["SELECT 1", "SELECT 2", "SELECT\n FORM"]
    assert (done.status, done.out) == (1, f"{ONE_TABLE}\n{ONE_TABLE}")
    assert done.err == 'Error: line 2, column 3: Syntax error at or near "x". [sql_syntax_error]\n'


def test_a_file_keeps_its_mode_and_its_links(runtime: Remote, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)

    assert runtime.call("sql", "x", "-o", str(link)) == Called(0, "", "")
    assert target.read_text() == "a\n1\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_a_device_is_written_directly(runtime: Remote, tmp_path: Path) -> None:
    full = runtime.call("sql", "x", "-o", "/dev/full")
    absent = runtime.call("sql", "x", "-o", str(tmp_path / "absent" / "a"))

    assert runtime.call("sql", "x", "-o", "/dev/null").status == 0
    assert (full.status, absent.status) == (1, 1)
    assert "No space left on device" in full.err
    assert "cannot be written: No such file or directory." in absent.err
    assert runtime.call("sql", "x", "-o", str(tmp_path)).err.endswith("cannot be written: Is a directory.\n")


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "fifo", "link to a fifo"])
def test_a_pipe_is_written_directly(runtime: Remote, tmp_path: Path, name: str) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    path = {"fifo": str(fifo), "link to a fifo": str(link)}.get(name, name.format(writer))

    try:
        assert runtime.call("sql", "x", "-o", path) == Called(0, "", "")
        assert os.read(reader, 1 << 16).decode() == ONE_TABLE
    finally:
        os.close(reader)
        os.close(writer)
    assert sorted(tmp_path.iterdir()) == [fifo, link]
    assert link.is_symlink()


def test_a_descriptor_that_is_not_open_is_an_error(runtime: Remote) -> None:
    done = runtime.call("sql", "x", "-o", "/dev/fd/987")

    assert (done.status, done.err) == (1, "Error: /dev/fd/987 cannot be written: Bad file descriptor.\n")
    assert runtime.statements == []


def test_a_file_may_have_the_longest_name(runtime: Remote, tmp_path: Path) -> None:
    file = tmp_path / ("é" * 127)

    assert runtime.call("sql", "x", "-o", str(file)) == Called(0, "", "")
    assert file.read_text() == ONE_TABLE


def test_parameters_go_to_the_statements_that_use_them(runtime: Remote, tmp_path: Path) -> None:
    script = tmp_path / "a.sql"
    script.write_text("SELECT $a; SELECT $b, $A; SELECT ?;")

    done = call(
        *("sql", "-f", str(script), "--http-endpoint", runtime.url),
        *("--param", "a=1.50", "--param", "b=x", "--param", '1:="1"', "--param", "c=1"),
    )

    bodies = [request.body for request in runtime.requests if request.method == "POST"]
    assert bodies[0] == b'{"sql":"SELECT $a","parameters":{"a":1.50}}'
    assert [json.loads(body)["parameters"] for body in bodies[1:]] == [{"a": 1.5, "b": "x"}, ["1"]]
    assert done.err == "Warning: No statement uses the parameter c.\n"


def test_a_terminal_limits_rows_with_a_note_and_quiet_has_none(remote: Remote) -> None:
    remote.on_sql(numbers(1500))

    capped = remote.call("sql", "x", "--no-pager", out=Screen())
    piped = remote.call("sql", "x")

    assert capped.out.endswith(" 999\n(the first 1000 rows; there are more: --max-rows 0 shows all)\n")
    assert piped.out.endswith("1499\n(1500 rows)\n")
    assert remote.call("sql", "x", "--quiet").out.endswith("1499\n")


@pytest.fixture
def pager(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Make a program the pager; return the environment that names it."""

    def make(program: str) -> dict[str, str]:
        path = tmp_path / "pager"
        path.write_text(program)
        path.chmod(0o700)
        return {"PAGER": str(path), "PATH": os.environ["PATH"]}

    return make


def numbers(count: int, text: str = "") -> Reply:
    return with_schema(json.dumps([{"a": text or number} for number in range(count)]), "a")


def test_a_long_result_goes_to_the_pager_which_does_not_get_the_key(
    remote: Remote, tmp_path: Path, pager: Callable[[str], dict[str, str]]
) -> None:
    seen, config, screen = tmp_path / "seen", tmp_path / "querykeep" / "config.toml", Screen()
    names = "${RUNTIME_API_KEY-none} ${MY_KEY-none} ${OTHER-none}"
    environ = pager(f'#!/bin/sh\necho "{names}" > {seen}\ncat >> {seen}\n')
    config.parent.mkdir()
    config.write_text(f'[profiles.default]\nendpoint = "{remote.url}"\napi_key_variable = "MY_KEY"\n')
    environ |= {"XDG_CONFIG_HOME": str(tmp_path), "MY_KEY": "secret-key", "OTHER": "other"}

    for rows, key in ((3, {}), (100, {}), (100, {"RUNTIME_API_KEY": "secret-key"})):
        remote.on_sql(numbers(rows))
        done = remote.call("sql", "x", out=screen, environ=environ | key)
        assert (done.status, done.err) == (0, "")
        if rows == 100:
            assert seen.read_text().startswith("none none other\n")
            assert seen.read_text().endswith(" 99\n(100 rows)\n")

    assert "(3 rows)" in screen.getvalue()
    assert "(100 rows)" not in screen.getvalue()


@pytest.mark.parametrize("count", [100, 2000, 40_000])
@pytest.mark.parametrize("command", ["{script}", "/nonexistent/less", "no-such-pager -F", "cat > /dev/null; exit 127"])
def test_without_a_pager_that_starts_the_terminal_shows_the_rows(
    remote: Remote, pager: Callable[[str], dict[str, str]], *, command: str, count: int
) -> None:
    remote.on_sql(numbers(count, "x" * 70))
    environ = pager("a script that names no interpreter\n")
    environ["PAGER"] = command.format(script=environ["PAGER"])
    screen = Screen()

    done = remote.call("sql", "x", "--max-rows", "0", out=screen, environ=environ)

    if count == 40_000 and command.startswith("cat"):  # More than is held; it has read them.
        assert (done.out, done.err.count("\n")) == ("", 1)
        return
    assert (done.status, done.err) == (0, "")
    assert done.out.count("x" * 70) == count
    assert done.out.endswith(f"\n({count} rows)\n")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("sed s/a/X/ | tail -3 > {file}", " 98\n 99\n(100 rows)\n"),
        ("WORD=twice; cat > {file}; echo $WORD >> {file}", None),
        ("cat > {file} # a comment", None),
    ],
)
def test_the_shell_runs_the_pager(remote: Remote, tmp_path: Path, *, command: str, shown: str | None) -> None:
    remote.on_sql(numbers(100))
    environ = {"PAGER": command.format(file=tmp_path / "seen"), "PATH": os.environ["PATH"]}

    assert remote.call("sql", "x", out=Screen(), environ=environ) == Called(0, "", "")

    seen = (tmp_path / "seen").read_text()
    assert seen == shown if shown else "(100 rows)\n" in seen


@pytest.mark.parametrize(("command", "status"), [("false", 1), ("cat > /dev/null; exit 3", 3), ("'", 2)])
def test_a_pager_that_fails_is_reported(remote: Remote, command: str, status: int) -> None:
    remote.on_sql(numbers(100))

    done = remote.call("sql", "x", out=Screen(), environ={"PAGER": command, "PATH": os.environ["PATH"]})

    assert (done.status, done.out) == (0, "")
    assert done.err == (
        f"Warning: The pager {command} failed with exit status {status}; PAGER= shows results without one.\n"
    )


def test_the_time_of_a_statement_is_not_that_of_its_reader(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.on_sql(numbers(100))
    clock, passed = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed)

    class Slow(io.StringIO):
        def write(self, text: str, /) -> int:
            nonlocal passed
            passed += 3600
            return super().write(text)

    slow = Slow()
    with RuntimeClient(remote.url) as client:
        elapsed_s = StatementRunner(client, Console(Streams(None, slow, slow), {}), Style()).run(Statement("x"))

    assert slow.getvalue().endswith("(100 rows)\n")
    assert 0 < elapsed_s < 3600 <= passed


def test_quitting_the_pager_is_no_error(remote: Remote) -> None:
    remote.on_sql(numbers(20_000, "x" * 100))
    environ = {"PAGER": "head -n 1", "PATH": os.environ["PATH"]}

    done = remote.call("sql", "x", "--max-rows", "0", out=Screen(), environ=environ)

    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize("environ", [{"PAGER": ""}, {"PAGER": " "}, {"PAGER": "cat"}, {"PATH": "/nonexistent"}])
def test_no_pager(environ: dict[str, str]) -> None:
    assert pager_command({"PATH": "/bin:/usr/bin"} | environ) is None


def test_a_progress_line_is_shown_on_terminals_only(remote: Remote) -> None:
    screen = Screen()

    def late(_: Request) -> Reply:
        while "ms" not in screen.getvalue() and " s" not in screen.getvalue():
            pass
        return ONE

    remote.on_sql(late)

    assert remote.call("sql", "x", err=screen) == Called(0, ONE_TABLE, screen.getvalue())
    assert screen.getvalue().endswith("\r\x1b[K")
    remote.on_sql(ONE)
    assert remote.call("sql", "x").err == ""


LONG = "SELECT 1, '" + "a" * 120 + "', 'x'::INT, '" + "b" * 80 + "' FROM orders"


@each(
    ("message", "statement", "told", "line", "column"),
    [
        pytest.param(
            'Syntax error at or near "orders" (line 1, column 15).',
            Statement("SELECT * FORM orders"),
            'Syntax error at or near "orders".',
            *(1, 15),
            id="a position",
        ),
        pytest.param(
            "No 'x'\n\nLINE 2:   'x'::INT\n               ^^^^^",
            Statement("SELECT 1,\n  'x'::INT", 5, "a.sql"),
            "No 'x'",
            *(6, 8),
            id="a caret, in a script",
        ),
        pytest.param(
            "No 'x'\n\nLINE 1: SELECT 'é日本', 'x'::INT\n                           ^^^^^",
            Statement("SELECT 'é日本', 'x'::INT"),
            "No 'x'",
            *(1, 18),
            id="a caret below wide characters",
        ),
        pytest.param(
            f"No 'x'\n\nLINE 1: ...{'a' * 51}', 'x'::INT, '{'b' * 51}...\n{' ' * 68}^^^^^",
            Statement(LONG),
            "No 'x'",
            *(1, LONG.index("::") + 1),
            id="a line that was cut",
        ),
        pytest.param("Bad (line 1, column 3)", Statement("SELECT", 4, column=11), "Bad", *(4, 13), id="further right"),
        pytest.param(
            "Bad (line 2, column 3)", Statement("SELECT\n x y", 4, column=11), "Bad", *(5, 3), id="the line after that"
        ),
        pytest.param(
            "No\n\nLINE 1: SELECT x\n               ^",
            Statement("/* */ SELECT x", column=11),
            "No",
            *(1, 24),
            id="a caret further right",
        ),
        pytest.param("Bad (line 1, column 99)", Statement("SELECT"), "Bad", *(1, 7), id="beyond the end"),
    ],
)
def test_a_message_has_a_position(message: str, statement: Statement, told: str, line: int, column: int) -> None:
    text, position = find_position(message, statement)

    assert position is not None
    assert (text, position.line, position.column, position.source) == (told, line, column, statement.source)


@each(
    "message",
    [
        "No such table.",
        "Bad (line 7, column 1).",
        "Bad (line 0, column 1).",
        "Bad\n\nLINE 7: SELECT\n        ^",
        "Bad\n\nLINE 1: something else\n        ^",
        "LINE 1: SELECT in the middle\n of a message",
        pytest.param(f"Bad (line {'9' * 5000}, column 1).", id="a line beyond what Python reads"),
        pytest.param(f"Bad (line 1, column {'9' * 5000}).", id="a column beyond what Python reads"),
        pytest.param(f"Bad\n\nLINE {'9' * 5000}: SELECT\n        ^", id="an excerpt beyond what Python reads"),
        # A search that tries every space anew takes hours.
        pytest.param(f"Bad{' ' * 1_000_000}x", id="a million spaces"),
        pytest.param(f"Bad\n\nLINE 1: SELECT\n{' ' * 1_000_000}x", id="a million spaces before no caret"),
    ],
)
def test_a_message_without_a_position_is_unchanged(message: str) -> None:
    assert find_position(message, Statement("SELECT")) == (message, None)


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        pytest.param(
            ErrorPosition(12, 18, "SELECT id FORM '日本' orders"),
            "12 | SELECT id FORM '日本' orders\n                       ^",
            id="wide characters",
        ),
        pytest.param(
            ErrorPosition(1, 18, "SELECT nope", text_column=11), "1 | SELECT nope\n           ^", id="second statement"
        ),
        pytest.param(
            ErrorPosition(1, 3, "\x1b\tx\x1b[2J"), "1 | \\x1b\\tx\\x1b[2J\n" + " " * 10 + "^", id="X12 escapes"
        ),
    ],
)
def test_an_excerpt_has_a_caret_below_the_position(position: ErrorPosition, shown: str) -> None:
    assert excerpt(position) == shown


def test_a_long_line_is_cut_around_the_position() -> None:
    line, caret = excerpt(ErrorPosition(1, 5001, "a" * 5000 + "!" + "b" * 5000)).split("\n")

    assert len(line) < 220
    assert line[len(caret) - 1] == "!"
    assert line.startswith("1 | ...a")
    assert line.endswith("b...")
