"""The prompt at a real terminal."""

import threading
from pathlib import Path

import pytest

from tests.runtimeclient.remote import API_KEY, ONE, Remote, Reply, Request, refuse_other_keys
from tests.runtimeclient.terminal import CTRL_C, ENTER, Terminal


@pytest.fixture
def runtime(remote: Remote) -> Remote:
    remote.on("GET", "/v1/status", refuse_other_keys(Reply(body=b"[]")))
    remote.on_sql(ONE)
    return remote


def variables(runtime: Remote, state: Path) -> dict[str, str]:
    return {"RUNTIME_HTTP_ENDPOINT": runtime.url, "RUNTIME_API_KEY": API_KEY, "XDG_STATE_HOME": str(state)}


def test_x10_ctrl_c_cancels_the_query_and_pressed_again_exits_with_130(runtime: Remote, tmp_path: Path) -> None:
    is_running = threading.Event()
    is_cancelled = threading.Event()

    def long(request: Request) -> Reply:
        if request.body == b"SELECT 1":
            is_running.set()
            is_cancelled.wait(60)
        return ONE

    runtime.on_sql(long)
    with Terminal("sql", environ=variables(runtime, tmp_path)) as terminal:
        terminal.prompts()
        terminal.send(f"SELECT 1;{ENTER}")
        assert is_running.wait(60)
        terminal.send(CTRL_C)
        terminal.shows("Cancelled.")
        terminal.prompts()
        is_cancelled.set()
        terminal.send("SELECT abandoned")
        terminal.shows("abandoned")
        terminal.send(CTRL_C)
        terminal.prompts()
        terminal.send(CTRL_C)

        assert terminal.leaves() == 130


def test_a_key_typed_at_a_terminal_is_not_shown_and_no_history_stores_nothing(runtime: Remote, tmp_path: Path) -> None:
    environ = variables(runtime, tmp_path) | {"RUNTIME_API_KEY": ""}
    with Terminal("sql", "--no-history", "--api-key-file", "-", environ=environ | {"TERM": "dumb"}) as terminal:
        terminal.shows("API key:")
        terminal.send(f"{API_KEY}{ENTER}")
        terminal.prompts()
        assert API_KEY not in terminal.output
        terminal.send(f".quit{ENTER}")

        assert terminal.leaves() == 0
    assert list(tmp_path.iterdir()) == []
