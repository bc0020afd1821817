"""`sql` with a script, and where its answers go."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runtimeclient.output.pager import pager_command
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
    done = call("sql", "-f", script, "--http-endpoint", runtime.url)

    assert done == Called(
        1, ONE_TABLE, f'Error: {script}, line 4, column 3: Syntax error at or near "x". [sql_syntax_error]\n'
    )
    assert runtime.statements == ["SELECT 1", "SELECT\n  FORM x"]


@pytest.mark.parametrize(("environ", "is_red"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_shows_the_excerpt(runtime: Remote, environ: dict[str, str], is_red: bool) -> None:
    done = call("sql", "SELECT\n  FORM x", "--http-endpoint", runtime.url, err=Screen(), environ=environ)

    assert done.err.endswith("[sql_syntax_error]\n2 |   FORM x\n      ^\n")
    assert done.err.startswith("\x1b[31mError:\x1b[0m line 2" if is_red else "Error: line 2")


def test_a_script_may_continue_after_errors(runtime: Remote, script: str) -> None:
    done = call("sql", "-f", script, "--continue-on-error", "--http-endpoint", runtime.url)

    assert (done.status, done.out) == (1, f"{ONE_TABLE}\n{ONE_TABLE}")
    assert done.err.splitlines()[-1] == "Error: 1 of 3 statements failed."


def test_a_script_with_errors_leaves_no_file(runtime: Remote, script: str, tmp_path: Path) -> None:
    done = call(
        "sql", "-f", script, "--continue-on-error", "-o", str(tmp_path / "a.csv"), "--http-endpoint", runtime.url
    )

    assert done.status == 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.sql"]


@pytest.mark.parametrize("name", ["x.xlsx", "x.csv.gz", "X.TSV", "x.01", "x.svg"])
@pytest.mark.parametrize("arguments", [("SELECT 1",), ("-f", "-"), ("-c", "SELECT 1")])
def test_an_unknown_extension_is_a_usage_error(
    runtime: Remote, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    done = call("sql", *arguments, "-o", str(tmp_path / name), "--http-endpoint", runtime.url)

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

    done = call("sql", "SELECT 1", *arguments, "--http-endpoint", runtime.url)

    assert (done.status, done.err) == (0, "")
    assert (tmp_path / arguments[1]).read_text() == content


def test_statements_come_from_the_command_line(runtime: Remote) -> None:
    done = call(
        "sql", "-c", "SELECT 1; SELECT 2;", "-c", "SELECT\n FORM", "-c", "SELECT 4", "--http-endpoint", runtime.url
    )

    assert runtime.statements == ["SELECT 1", "SELECT 2", "SELECT\n FORM"]
    assert (done.status, done.out) == (1, f"{ONE_TABLE}\n{ONE_TABLE}")
    assert done.err == 'Error: line 2, column 3: Syntax error at or near "x". [sql_syntax_error]\n'


def test_a_file_keeps_its_mode_and_its_links(runtime: Remote, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)

    assert call("sql", "x", "-o", str(link), "--http-endpoint", runtime.url) == Called(0, "", "")
    assert target.read_text() == "a\n1\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_a_device_is_written_directly(runtime: Remote, tmp_path: Path) -> None:
    full = call("sql", "x", "-o", "/dev/full", "--http-endpoint", runtime.url)
    absent = call("sql", "x", "-o", str(tmp_path / "absent" / "a"), "--http-endpoint", runtime.url)

    assert call("sql", "x", "-o", "/dev/null", "--http-endpoint", runtime.url).status == 0
    assert (full.status, absent.status) == (1, 1)
    assert "No space left on device" in full.err
    assert "cannot be written: No such file or directory." in absent.err


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


def test_quiet_shows_results_only(runtime: Remote) -> None:
    assert call("sql", "x", "--quiet", "--http-endpoint", runtime.url) == Called(0, " a\n---\n 1\n", "")


def test_a_terminal_limits_rows_with_a_note(remote: Remote) -> None:
    rows = ",".join(f'{{"a":{number}}}' for number in range(1500))
    remote.on_sql(with_schema(f"[{rows}]", "a"))

    capped = call("sql", "x", "--no-pager", "--http-endpoint", remote.url, out=Screen())
    piped = call("sql", "x", "--http-endpoint", remote.url)

    assert capped.out.endswith(" 999\n(the first 1000 rows; there are more: --max-rows 0 shows all)\n")
    assert piped.out.endswith("1499\n(1500 rows)\n")


def test_a_long_result_goes_to_the_pager(remote: Remote, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    pager = tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\necho "${{RUNTIME_API_KEY-none}}" > {seen}\ncat >> {seen}\n')
    pager.chmod(0o700)
    environ = {"PAGER": str(pager), "PATH": os.environ["PATH"], "RUNTIME_API_KEY": "secret-key"}
    screen = Screen()

    for rows in (3, 100):
        items = ",".join(f'{{"a":{number}}}' for number in range(rows))
        remote.on_sql(with_schema(f"[{items}]", "a"))
        done = call("sql", "x", "--http-endpoint", remote.url, out=screen, environ=environ)
        assert (done.status, done.err) == (0, "")

    assert "(3 rows)" in screen.getvalue()
    assert "(100 rows)" not in screen.getvalue()
    assert seen.read_text().startswith("none\n")
    assert seen.read_text().endswith(" 99\n(100 rows)\n")


def test_the_pager_does_not_get_the_key_in_any_variable(remote: Remote, tmp_path: Path) -> None:
    seen, pager, config = tmp_path / "seen", tmp_path / "pager", tmp_path / "querykeep" / "config.toml"
    pager.write_text(f'#!/bin/sh\necho "${{MY_KEY-none}} ${{OTHER-none}}" > {seen}\ncat > /dev/null\n')
    pager.chmod(0o700)
    config.parent.mkdir()
    config.write_text(f'[profiles.default]\nendpoint = "{remote.url}"\napi_key_variable = "MY_KEY"\n')
    environ = {"PAGER": str(pager), "PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(tmp_path)}
    remote.on_sql(with_schema(f"[{','.join(['{}'] * 100)}]", "a"))

    done = call("sql", "x", out=Screen(), environ={**environ, "MY_KEY": "secret-key", "OTHER": "other"})

    assert (done.status, done.err) == (0, "")
    assert seen.read_text() == "none other\n"


def test_a_pager_that_cannot_start_is_ignored(remote: Remote, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("a script that names no interpreter\n")
    pager.chmod(0o700)
    items = ",".join(f'{{"a":"{"x" * 70}"}}' for _ in range(2000))
    remote.on_sql(with_schema(f"[{items}]", "a"))
    environ = {"PAGER": str(pager), "PATH": os.environ["PATH"]}

    done = call("sql", "x", "--max-rows", "0", "--http-endpoint", remote.url, out=Screen(), environ=environ)

    assert (done.status, done.err) == (0, "")
    assert done.out.count("x" * 70) == 2000
    assert done.out.endswith("\n(2000 rows)\n")


def test_quitting_the_pager_is_no_error(remote: Remote) -> None:
    items = ",".join(f'{{"a":"{"x" * 100}"}}' for _ in range(20_000))
    remote.on_sql(with_schema(f"[{items}]", "a"))
    environ = {"PAGER": "head -n 1", "PATH": os.environ["PATH"]}

    done = call("sql", "x", "--max-rows", "0", "--http-endpoint", remote.url, out=Screen(), environ=environ)

    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize("pager", ["", "cat", "/nonexistent/less", "'"])
def test_no_pager(pager: str) -> None:
    assert pager_command({"PAGER": pager, "PATH": "/bin:/usr/bin"}) is None


def test_the_help_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--help",), ("--version",)):
        with pytest.raises(SystemExit) as left:
            call(*arguments)
        assert left.value.code == 0
    shown = capsys.readouterr().out

    assert shown.count("usage: querykeep") == 2
    assert "querykeep" in shown.splitlines()[-1]


@pytest.mark.parametrize("name", ["slq", "--nothing"])
def test_an_unknown_command_is_a_usage_error(name: str) -> None:
    done = call(name)

    assert (done.status, done.out) == (2, "")
    assert done.err.endswith("See querykeep --help.\n")


def test_a_progress_line_is_shown_on_terminals_only(remote: Remote) -> None:
    screen = Screen()

    def late(_: Request) -> Reply:
        while "ms" not in screen.getvalue() and " s" not in screen.getvalue():
            pass
        return ONE

    remote.on_sql(late)

    assert call("sql", "x", "--http-endpoint", remote.url, err=screen) == Called(0, ONE_TABLE, screen.getvalue())
    assert screen.getvalue().endswith("\r\x1b[K")
    remote.on_sql(ONE)
    assert call("sql", "x", "--http-endpoint", remote.url).err == ""
