from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pexpect import fdpexpect

from runtimeclient.asking import Asker
from runtimeclient.client import RuntimeClient
from runtimeclient.console import Console, Streams
from runtimeclient.errors import ConnectionFailedError, NotAuthorisedError
from runtimeclient.repl import CONTINUATION, PROMPT, Repl
from runtimeclient.style import Style
from tests.runtimeclient.conftest import MANAGE, clean_environment
from tests.runtimeclient.remote import API_KEY, Remote, Reply, Request, problem, refuse_other_keys, with_schema

ONE = with_schema('[{"a":1}]', "a")
ONE_TABLE = " a\n---\n 1\n(1 row)\n"


class Conversation:
    """What a user types line by line, and what comes back. An exception is typed by pressing its key."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self.prompts: list[str] = []
        self.out = io.StringIO()
        self.err = io.StringIO()
        self._lines = iter(lines)

    @property
    def told(self) -> list[str]:
        return self.err.getvalue().splitlines()

    def talk(self, client: RuntimeClient, format_: str = "table") -> None:
        console = Console(Streams(None, self.out, self.err), {})
        Repl(Asker(client, console, Style(format=format_)), self.read_line).run()

    def read_line(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def run(self, remote: Remote, format_: str = "table") -> str:
        with RuntimeClient(remote.url, API_KEY) as client:
            self.talk(client, format_)
        return self.out.getvalue()


@pytest.fixture
def runtime(remote: Remote) -> Remote:
    remote.on("GET", "/v1/status", refuse_other_keys(Reply(body=b"[]")))
    remote.on_sql(lambda request: problem(400, "sql_error", "No.") if b"absent" in request.body else ONE)
    return remote


def test_a_statement_runs_when_its_semicolon_is_there(runtime: Remote) -> None:
    talk = Conversation("SELECT", " ';' ; SELECT 2; SELECT", "3;")

    assert talk.run(runtime) == ONE_TABLE * 3 + "\n"
    assert runtime.statements == ["SELECT\n ';'", "SELECT 2", "SELECT\n3"]
    assert talk.prompts == [PROMPT, CONTINUATION, CONTINUATION, PROMPT]
    assert talk.told == [f"Connected to {runtime.url}. End a statement with a semicolon; .help shows more."]


def test_an_error_is_told_and_the_talk_goes_on(runtime: Remote) -> None:
    talk = Conversation("SELECT absent; SELECT 2; SELECT", "SELECT 4;")

    assert talk.run(runtime) == ONE_TABLE + "\n"
    assert talk.told[1:] == ["Error: No. [sql_error]"]
    assert runtime.statements == ["SELECT absent", "SELECT 4"]


@pytest.mark.parametrize("word", [".quit", ".exit", "quit", "exit;", " .QUIT "])
def test_leaves_when_told_so(runtime: Remote, word: str) -> None:
    assert Conversation(word, "SELECT 1;").run(runtime) == ""
    assert runtime.statements == []


def test_a_command_inside_a_statement_is_part_of_it(runtime: Remote) -> None:
    Conversation("SELECT '", ".quit", "quit", "';").run(runtime)

    assert runtime.statements == ["SELECT '\n.quit\nquit\n'"]


def test_help_tables_and_what_there_is_not(runtime: Remote) -> None:
    talk = Conversation(".help", ".tables", ".\x1bfoo", "", "-- nothing")

    assert talk.run(runtime, "table").endswith(f"{ONE_TABLE}\n")
    assert ".tables" in talk.out.getvalue()
    assert talk.told[1:] == [r"There is no .\x1bfoo: see .help."]
    assert runtime.statements == ["SHOW TABLES"]


def test_ctrl_c_abandons_what_is_typed_and_twice_leaves(runtime: Remote) -> None:
    talk = Conversation("SELECT '", KeyboardInterrupt, "SELECT 2;", KeyboardInterrupt, KeyboardInterrupt)

    with pytest.raises(KeyboardInterrupt):
        talk.run(runtime)

    assert runtime.statements == ["SELECT 2"]
    assert talk.prompts == [PROMPT, CONTINUATION, PROMPT, PROMPT, PROMPT]


def test_a_wrong_key_and_a_server_down_show_before_the_first_prompt(runtime: Remote) -> None:
    talk = Conversation()
    for url, error in ((runtime.url, NotAuthorisedError), ("http://127.0.0.1:1", ConnectionFailedError)):
        with RuntimeClient(url, "wrong") as client, pytest.raises(error):
            talk.talk(client)

    assert talk.prompts == talk.told == []


# At a real terminal

spawn: Any = fdpexpect.fdspawn  # pexpect has no types


@contextmanager
def terminal(*arguments: str, **variables: str) -> Iterator[tuple[Any, subprocess.Popen[bytes]]]:
    """Start a command that controls a terminal of its own, so that Ctrl-C reaches it as it does a user's."""
    ours, theirs = os.openpty()
    take_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", take_terminal, *MANAGE, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=clean_environment(TERM="dumb", **variables),
    ) as process:
        os.close(theirs)
        screen = spawn(ours, encoding="utf-8", timeout=20)
        try:
            yield screen, process
        finally:
            process.kill()
            os.close(ours)


def test_at_a_terminal(runtime: Remote) -> None:
    with terminal("sql", RUNTIME_HTTP_ENDPOINT=runtime.url, RUNTIME_API_KEY=API_KEY) as (screen, process):
        screen.expect_exact(PROMPT)
        screen.send("SELECT\r")
        screen.expect_exact(CONTINUATION)
        screen.send("1;\r")
        screen.expect_exact("(1 row)")
        screen.expect_exact(PROMPT)
        screen.send("\x04")

        assert process.wait(20) == 0
    assert runtime.statements == ["SELECT\n1"]


def test_x10_ctrl_c_cancels_the_query_and_again_leaves_with_130(runtime: Remote) -> None:
    is_running = threading.Event()
    is_cancelled = threading.Event()

    def long(_: Request) -> Reply:
        is_running.set()
        is_cancelled.wait(20)
        return ONE

    runtime.on_sql(long)
    with terminal("sql", RUNTIME_HTTP_ENDPOINT=runtime.url, RUNTIME_API_KEY=API_KEY) as (screen, process):
        screen.expect_exact(PROMPT)
        screen.send("SELECT 1;\r")
        assert is_running.wait(20)
        screen.send("\x03")
        screen.expect_exact("Cancelled.")
        screen.expect_exact(PROMPT)
        is_cancelled.set()
        screen.send("SELECT abandoned")
        screen.expect_exact("abandoned")
        screen.send("\x03")
        screen.expect_exact(PROMPT)
        screen.send("\x03")

        assert process.wait(20) == 130


def test_a_key_typed_at_a_terminal_is_not_shown(runtime: Remote) -> None:
    with terminal("sql", "--api-key-file", "-", RUNTIME_HTTP_ENDPOINT=runtime.url) as (screen, process):
        screen.expect_exact("API key: ")
        screen.send(f"{API_KEY}\r")
        screen.expect_exact(PROMPT)
        assert API_KEY not in screen.before
        screen.send(".quit\r")

        assert process.wait(20) == 0


def test_the_terminal_is_told_of_a_wrong_key(runtime: Remote) -> None:
    with terminal("sql", RUNTIME_HTTP_ENDPOINT=runtime.url, RUNTIME_API_KEY="wrong") as (screen, process):
        screen.expect_exact("refused the API key")

        assert process.wait(20) == 4


def test_x05_nothing_typed_is_kept(runtime: Remote, tmp_path: Path) -> None:
    with terminal("sql", RUNTIME_HTTP_ENDPOINT=runtime.url, RUNTIME_API_KEY=API_KEY, HOME=str(tmp_path)) as (
        screen,
        process,
    ):
        screen.expect_exact(PROMPT)
        screen.send(f"SELECT '{API_KEY}';\r")
        screen.expect_exact(PROMPT)
        screen.send("\x04")

        assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []
