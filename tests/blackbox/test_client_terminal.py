"""The prompt of `sql` at a terminal, with a real runtime."""

import json
from pathlib import Path

import pytest

from tests.runtimeclient.terminal import CTRL_C, CTRL_D, ENTER, TAB, Terminal, paste
from tests.system.harness import K1, Server, wait_for


@pytest.fixture
def environ(serve: Server, tmp_path: Path) -> dict[str, str]:
    runtime = {"RUNTIME_HTTP_ENDPOINT": serve.url, "RUNTIME_API_KEY": K1}
    return runtime | {"XDG_STATE_HOME": str(tmp_path), "PAGER": "cat"}  # a pager would wait for a key


def test_a_session(environ: dict[str, str], tmp_path: Path) -> None:
    with Terminal("sql", environ=environ) as terminal:
        terminal.prompts()
        terminal.send("SELECT count(*) AS n, '")
        terminal.send(f"{K1}' AS key{ENTER}FROM ord")
        # The names are loaded in the background; until then, Tab does nothing.
        wait_for(lambda: "FROM orders" in terminal.soon(TAB), "the name to be completed")
        # A second Tab may open a menu, in which Enter would choose; a space closes it.
        terminal.send(f" {ENTER}WHERE id < 10;")
        # A late menu may be shown below the lines.
        terminal.until(lambda lines: sum(line.startswith("  -> ") for line in lines) == 2, "three lines")
        terminal.send(ENTER)
        assert any(line.startswith(f" 10 | {K1}") for line in terminal.shows("(1 row)"))

        for columns, begin in ((60, "-[ row 1 ]"), (120, f" {'a' * 50} | ")):
            terminal.prompts()
            terminal.resize(columns, 30)
            terminal.send(f"SELECT 1 AS {'a' * 50}, 2 AS {'b' * 50};{ENTER}")
            terminal.begins(begin)

        terminal.prompts()
        terminal.send(rf".schema orders{ENTER}\x{ENTER}SELECT 1 AS one, NULL AS two;{ENTER}")
        lines = terminal.shows("two | NULL")
        assert any(line.startswith(" placed_at") for line in lines)
        assert any(line.startswith("-[ row 1 ]") for line in lines)

        terminal.prompts()
        terminal.send(CTRL_D)
        assert terminal.leaves() == 0
    history = (tmp_path / "querykeep" / "history").read_text()
    statements = [json.loads(line) for line in history.splitlines()]
    assert statements[-3:] == [".schema orders", r"\x", "SELECT 1 AS one, NULL AS two;"]
    assert K1 not in history


def test_ctrl_c_stops_the_statement_in_the_runtime(serve: Server, environ: dict[str, str]) -> None:
    statement = "SELECT count(*) FROM range(1000000000000)"

    def running() -> bool:
        return any(query["sql"] == statement for query in serve.active())

    with Terminal("sql", "--no-history", environ=environ) as terminal:
        terminal.prompts()
        terminal.send(f"{statement};{ENTER}")
        wait_for(running, "the statement to run")
        terminal.send(CTRL_C)
        terminal.shows("Cancelled.")
        terminal.prompts()
        wait_for(lambda: not running(), "the statement to be gone")


def test_pastes(environ: dict[str, str]) -> None:
    long = "\n".join(["SELECT 0", *(f"     + {number}" for number in range(1, 199)), "AS total;"])

    with Terminal("sql", "--no-history", environ=environ) as terminal:
        terminal.prompts()
        terminal.send(paste(long) + ENTER)
        terminal.shows(f" {sum(range(199))}")
        terminal.prompts()
        # A terminal without bracketed paste sends lines as if typed; every statement runs.
        terminal.send("".join(f"SELECT{ENTER}{number}{ENTER}AS pasted;{ENTER}" for number in range(20)))
        terminal.until(lambda lines: any(line.strip() == "19" for line in lines), "the last of them")
