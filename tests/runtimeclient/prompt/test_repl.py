import io
import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.history import InMemoryHistory

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ConnectionFailedError, NotAuthorisedError
from runtimeclient.http.results import JSON
from runtimeclient.output.formats import FORMATS
from runtimeclient.output.terminal import DOT_COMMANDS as HINTS
from runtimeclient.output.terminal import Console, Streams, Style
from runtimeclient.prompt.completion import COLUMNS_SQL, TABLES_SQL, Catalog
from runtimeclient.prompt.dot_commands import DOT_COMMANDS, NAMES, parse_input
from runtimeclient.prompt.repl import Repl, _file_history
from runtimeclient.sql.runner import StatementRunner
from tests.corpus import each
from tests.runtimeclient.remote import API_KEY, ONE, ONE_TABLE, Remote, Reply, problem, refuse_other_keys, with_schema

ONE_RECORD = f"-[ row 1 ]{'-' * 30}\na | 1\n(1 row)\n"
ONE_MARKDOWN = "| a |\n| ---: |\n| 1 |\n"
ENDINGS = [ending for format_ in FORMATS.values() for ending in format_.suffixes]


class Conversation:
    """The inputs of a user and the output. An exception stands for the key that raises it."""

    def __init__(self, *texts: str | type[BaseException], style: Style | None = None, editor: str = "") -> None:
        self.out = io.StringIO()
        self.err = io.StringIO()
        self.typed = ""
        #: The initial text of each prompt, and the texts added to the history.
        self.offered: list[str] = []
        self.kept: list[str] = []
        self._texts = iter(texts)
        self._style = style or Style()
        self._environ = {"EDITOR": editor, "PATH": os.environ["PATH"], "RUNTIME_API_KEY": API_KEY}

    @property
    def told(self) -> list[str]:
        return self.err.getvalue().splitlines()

    def talk(self, client: RuntimeClient) -> None:
        console = Console(Streams(None, self.out, self.err), self._environ)
        editor: Any = self
        Repl(StatementRunner(client, console, self._style), editor, Catalog(client)).run()

    def read(self, text: str = "") -> str:
        self.offered.append(text)
        typed = next(self._texts, EOFError)
        if isinstance(typed, str):
            return typed
        raise typed

    def add_to_history(self, text: str) -> None:
        self.kept.append(text)

    def run(self, remote: Remote) -> str:
        with RuntimeClient(remote.url, API_KEY) as client:
            self.talk(client)
        return self.out.getvalue()


def statements(remote: Remote) -> list[str]:
    """The typed statements, without the catalog query that the prompt sends in the background."""
    return [statement for statement in remote.statements if statement not in {COLUMNS_SQL, ""}]


@pytest.fixture
def runtime(remote: Remote) -> Remote:
    remote.on("GET", "/v1/status", refuse_other_keys(Reply(body=b"[]")))
    remote.on_sql(lambda request: problem(400, "sql_error", "No.") if b"absent" in request.body else ONE)
    return remote


def test_statements_and_commands_run_in_order(runtime: Remote) -> None:
    talk = Conversation("SELECT\n ';' ; SELECT 2;", ".timing on\nSELECT\n3;", ".timer off", "SELECT 4;", r"\timing")

    assert talk.run(runtime) == ONE_TABLE * 4
    assert statements(runtime) == ["SELECT\n ';'", "SELECT 2", "SELECT\n3", "SELECT 4"]
    assert talk.told[:2] == [
        f"Connected to {runtime.url}. End a statement with a semicolon; .help shows more.",
        "Timing: on.",
    ]
    assert talk.told[2].startswith("Time: ")
    assert talk.told[3:] == ["Timing: off.", "Timing: on."]


@each(
    ("help_", "word"),
    [
        *((".help", ".quit"), ("help", ".exit"), ("help;", "quit"), ("?", "exit;")),
        *((r"\?", " .QUIT "), (r"\h", r"\q")),
    ],
)
def test_help_names_every_command_and_quit_ends(runtime: Remote, help_: str, word: str) -> None:
    shown = Conversation(help_, "", "-- nothing", word, "SELECT 1;").run(runtime)

    assert all(f"  .{name} " in shown for name in DOT_COMMANDS)
    assert statements(runtime) == []


@pytest.mark.parametrize("text", ["SELECT absent; SELECT 2;", r"SELECT absent \watch", ".read {script}"])
def test_the_prompt_continues_after_an_error(runtime: Remote, tmp_path: Path, text: str) -> None:
    script = tmp_path / "two.sql"
    script.write_text("SELECT absent;\nSELECT 3")
    talk = Conversation(text.format(script=script), "SELECT 4;")

    assert talk.run(runtime) == ONE_TABLE
    assert [line for line in talk.told[1:] if "press Ctrl-C" not in line] == ["Error: No. [sql_error]"]
    assert statements(runtime) == ["SELECT absent", "SELECT 4"]


@each("text", [".foo", r"\foo", ".\x1bfoo", r"SELECT 1 \foo", "SELECT 1\n\\foo", "SELECT 1\\", "/* a */ \\foo"])
def test_an_unknown_command_is_not_sent_and_the_commands_are_listed(runtime: Remote, text: str) -> None:
    talk = Conversation(text)

    assert (talk.run(runtime), statements(runtime)) == ("", [])
    assert talk.told[1].startswith("Error: Unknown command ")
    assert all(name in talk.told[1] for name in NAMES)


def test_a_command_may_follow_a_statement_on_its_line(runtime: Remote) -> None:
    talk = Conversation(r"SELECT 1; \x", "SELECT 2; .timer on", r"SELECT '\x', $$\x$$, E'\'\x' -- \x", ";")

    talk.run(runtime)

    assert statements(runtime) == ["SELECT 1", "SELECT 2"]
    assert talk.told[1:3] == ["Records: on.", "Timing: on."]


@each(
    ("modes", "shown", "told"),
    [
        ((".mode jsonlines",), '{"a":1}\n', []),
        ((".mode markdown", ".mode duckbox"), ONE_TABLE, []),
        ((".mode line",), ONE_RECORD, []),
        ((".mode line", ".mode table"), ONE_TABLE, []),
        ((r"\x", ".mode line", ".mode markdown"), ONE_MARKDOWN, ["Records: on."]),
        ((".format", ".format markdown"), ONE_MARKDOWN, ["Format: table."]),
        ((".format TABLE", r"\x"), ONE_RECORD, ["Records: on."]),
        ((r"\x", r"\x"), ONE_TABLE, ["Records: on.", "Records: auto."]),
    ],
)
def test_formats_and_modes_of_the_duckdb_shell(
    runtime: Remote, modes: tuple[str, ...], shown: str, told: list[str]
) -> None:
    runtime.on_sql(lambda request: Reply(body=b'[{"a":1}]') if request.headers["Accept"] == JSON else ONE)
    talk = Conversation(*modes, "SELECT 1;")

    assert talk.run(runtime) == shown
    assert talk.told[1:] == told


def test_the_note_below_a_cut_table_names_a_working_command(runtime: Remote) -> None:
    runtime.on_sql(with_schema('[{"a":1},{"a":2}]', "a"))
    talk = Conversation("SELECT 1;", ".maxrows 0", "SELECT 1;", style=Style(max_rows=1, hints=HINTS))

    first, second = talk.run(runtime).split("(the first 1 row; there are more: .maxrows 0 shows all)\n")

    assert first.endswith(" 1\n")
    assert second.endswith(" 1\n 2\n(2 rows)\n")
    assert talk.told[1:] == ["Maximum rows of a table: all."]


@pytest.mark.parametrize(
    "typed", [("SELECT 1;", r"\watch 0.01"), (r"SELECT 1 \watch 0.01",), ("SELECT 1; .watch .01",)]
)
def test_a_statement_is_repeated_until_ctrl_c(
    runtime: Remote, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    pauses = iter([None, None, KeyboardInterrupt])

    def pause(seconds: float) -> None:
        assert seconds == 0.01
        if end := next(pauses):
            raise end

    # Its own name only: other threads of this process sleep too.
    monkeypatch.setattr("runtimeclient.prompt.repl.time", SimpleNamespace(sleep=pause, strftime=time.strftime))
    talk = Conversation(*typed, "SELECT 2;")

    assert talk.run(runtime) == ONE_TABLE * (len(statements(runtime)))
    assert statements(runtime)[-4:] == ["SELECT 1"] * 3 + ["SELECT 2"]
    assert talk.told[-1].endswith("every 0.01 s; press Ctrl-C to stop.")


@pytest.mark.parametrize("editor", ["sed -i s/1/2/", "NEW=2; sed -i s/1/$NEW/", "sed -i 's/;/ + 1;/; s/1 + 1/2/'"])
def test_the_last_statement_can_be_edited_and_is_run(runtime: Remote, editor: str) -> None:
    talk = Conversation("SELECT 1;", r"\e", "SELECT 8;", editor=editor)

    assert talk.run(runtime) == ONE_TABLE * 3
    assert statements(runtime) == ["SELECT 1", "SELECT 2", "SELECT 8"]
    assert talk.kept == ["SELECT 2;"]


@pytest.mark.parametrize(
    ("editor", "offered", "told"),
    [
        pytest.param("sed -i 's/;//'", "SELECT 1", [], id="without its semicolon it waits at the prompt"),
        pytest.param("true", "", ["No changes."], id="unchanged"),
        pytest.param("sh -c 'echo \"SELECT 2;\" > $0; false'", "", ["No changes."], id="given up"),
        pytest.param(
            "/nonexistent",
            "",
            ["Error: The editor /nonexistent cannot be used: name another in EDITOR."],
            id="none",
        ),
        pytest.param(
            "sh -c 'stat -c \"-- %a $RUNTIME_API_KEY\" $0 > $0'", "", ["-- 600"], id="its file and environment"
        ),
    ],
)
def test_results_of_the_external_editor(
    runtime: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, editor: str, offered: str, told: list[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    talk = Conversation("SELECT 1;", r"\e", editor=editor)

    talk.run(runtime)

    assert list(tmp_path.iterdir()) == []
    assert talk.offered[2] == offered
    assert talk.told[1:] == told
    assert statements(runtime) == ["SELECT 1"]


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (r"\l", "SELECT DISTINCT catalog_name FROM information_schema.schemata ORDER BY 1"),
        (".tables", TABLES_SQL),
        (r"\dt", TABLES_SQL),
        ('.schema my "table', 'DESCRIBE "my ""table"'),
        (r'\d "a b"', 'DESCRIBE "a b"'),
        (".schema main.Flights", 'DESCRIBE "main"."Flights"'),
        ('.schema "a.b"', 'DESCRIBE "a.b"'),
    ],
)
def test_commands_for_tables_and_columns(runtime: Remote, text: str, statement: str) -> None:
    runtime.requests.clear()

    assert Conversation(text).run(runtime) == ONE_TABLE
    assert statements(runtime) == [statement]


@each(
    ("text", "said"),
    [
        *[(f".maxrows {rows}", ".maxrows takes a number of rows, 0 for all.") for rows in ("-1", "9" * 5000)],
        (".watch 0", ".watch takes a number of seconds greater than 0."),
        (".watch 1e999", ".watch takes a number of seconds greater than 0."),
        (".watch", "There is no statement to repeat yet."),
        (".output x.xlsx", f"x.xlsx has an unknown extension: the known ones are {', '.join(ENDINGS)}."),
        (r"SELECT 1 \x", r"End the statement before \x with a semicolon."),
        (".tables x", ".tables takes no argument."),
        (".format xml", "The formats are table, json, csv, ndjson, markdown, arrow, parquet."),
        (".timing maybe", ".timing takes on or off."),
        (".expanded maybe", ".expanded takes on, off or auto."),
        (".chart", "There is no statement to draw yet."),
        (".chart 'a", "A quote is not closed."),
        *[(f".read{name}", "Name the file to read.") for name in ("", " -")],
        (".output | cat", "Results go to a file, not to a program."),
        (".read /nonexistent", "The file /nonexistent cannot be read: No such file or directory."),
        (".output /nonexistent/x", "/nonexistent/x cannot be written: No such file or directory."),
        (".format parquet\nSELECT 1;", "The format parquet needs a file: name one with --output."),
    ],
)
def test_invalid_arguments_of_commands(runtime: Remote, text: str, said: str) -> None:
    talk = Conversation(text, "SELECT 1;", style=Style(format="csv"))
    runtime.on_sql(Reply(body=b"a\n1\n", content_type="text/csv"))

    talk.run(runtime)

    assert talk.told[1] == f"Error: {said}"


def test_output_writes_a_file_when_it_is_complete(runtime: Remote, tmp_path: Path) -> None:
    file, other = tmp_path / "a.md", tmp_path / "b.md"
    talk = Conversation(f".output {file}", "SELECT 1;", ".output", "SELECT 2;", f".output {other}", "SELECT 3;")

    assert talk.run(runtime) == ONE_TABLE
    assert file.read_text() == other.read_text() == ONE_MARKDOWN


@pytest.mark.parametrize("end", ["SELECT absent;", KeyboardInterrupt])
def test_an_incomplete_output_file_is_discarded(
    runtime: Remote, tmp_path: Path, end: str | type[BaseException]
) -> None:
    talk = Conversation(f".output {tmp_path / 'a.csv'}", end, KeyboardInterrupt)
    runtime.on_sql(problem(400, "sql_error", "No."))

    with pytest.raises(KeyboardInterrupt) if end is KeyboardInterrupt else nullcontext():
        talk.run(runtime)

    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path / 'a.csv'} was not changed: some results are missing." in talk.told


def test_chart_draws_the_last_result(runtime: Remote) -> None:
    runtime.on_sql(with_schema('[{"a":"x","n o":1}]', "a", "n o"))

    shown = Conversation("SELECT 1;", ".chart bar a 'n o'", ".chart", "SELECT 2;").run(runtime)

    assert [line for line in shown.splitlines() if "│" not in line].count("(1 row)") == 4
    assert shown.count("a │ n o") == 2
    assert statements(runtime) == ["SELECT 1"] * 3 + ["SELECT 2"]


@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "a\0b"])
@pytest.mark.parametrize("command", [".read", ".output"])
def test_an_invalid_path_does_not_end_the_prompt(runtime: Remote, command: str, path: str) -> None:
    talk = Conversation(f"{command} {path}", "SELECT 1;")

    assert talk.run(runtime) == ONE_TABLE
    assert any(line.startswith("Error: ") for line in talk.told)


def test_ctrl_c_twice_quits(runtime: Remote) -> None:
    talk = Conversation(KeyboardInterrupt, "SELECT 2;", KeyboardInterrupt, KeyboardInterrupt, "SELECT 3;")

    with pytest.raises(KeyboardInterrupt):
        talk.run(runtime)

    assert statements(runtime) == ["SELECT 2"]


def test_a_wrong_key_and_a_server_down_are_reported_before_the_first_prompt(runtime: Remote) -> None:
    talk = Conversation("SELECT 1;")
    for url, error in ((runtime.url, NotAuthorisedError), ("http://127.0.0.1:1", ConnectionFailedError)):
        with RuntimeClient(url, "wrong") as client, pytest.raises(error):
            talk.talk(client)

    assert talk.told == runtime.statements == []


@each(
    ("text", "is_complete"),
    [
        ("", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; SELECT", False),
        ("SELECT ';", False),
        (".tables", True),
        ("SELECT '\n.tables", False),
        ("/* ;", False),
        ("-- ;", True),
        ("SELECT 1 -- a\x0c; b\u2028;", False),
        (r"SELECT 1 \x", True),
        (r"SELECT '\x", False),
        ("SELECT 1; .tables", True),
    ],
)
def test_input_is_complete_with_its_semicolon(text: str, is_complete: bool) -> None:
    assert parse_input(text)[1] is is_complete


def test_a_history_file_that_cannot_be_used_is_a_warning() -> None:
    err = io.StringIO()
    with RuntimeClient("http://127.0.0.1:1") as client:
        runner = StatementRunner(client, Console(Streams(None, io.StringIO(), err), {}), Style())
        history = _file_history(runner, {"XDG_STATE_HOME": "/dev/null"})

    assert isinstance(history, InMemoryHistory)
    assert err.getvalue() == "Warning: The history /dev/null/querykeep/history is not saved: Not a directory.\n"
