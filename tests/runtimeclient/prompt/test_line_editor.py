import json
import os
import stat
import threading
from pathlib import Path

import pytest

from runtimeclient.errors import OutputError
from runtimeclient.prompt.line_editor import FileHistory, history_path
from tests.runtimeclient.remote import API_KEY, ONE, Remote, Reply, Request, refuse_other_keys
from tests.runtimeclient.terminal import CTRL_C, ENTER, Terminal

KEY = "correct-horse"


def history(path: Path) -> FileHistory:
    return FileHistory(path, (None, KEY))


def kept(path: Path) -> list[str]:
    """What the next prompt finds, oldest first."""
    return list(history(path).load_history_strings())[::-1]


def test_the_history_is_kept_for_the_next_session(tmp_path: Path) -> None:
    path = tmp_path / "a" / "history"
    texts = ["SELECT 1;", "SELECT\n 'ü\udc80';", ".tables"]
    for text in texts:
        history(path).store_string(text)

    assert kept(path) == texts
    assert [stat.S_IMODE(made.stat().st_mode) for made in (path, path.parent)] == [0o600, 0o700]


@pytest.mark.parametrize(
    "text", [f"SELECT '{KEY}'", "-- X-API-Key: abc", "--api-key abc", "SELECT 'api_key'", "Authorization: Bearer abc"]
)
def test_x05_input_about_keys_is_not_kept(tmp_path: Path, text: str) -> None:
    made = history(tmp_path / "history")

    made.store_string(text)

    assert (tmp_path / "history").read_bytes() == b""
    # A history that was deleted is not created again.
    (tmp_path / "history").unlink()
    made.store_string("SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_a_long_history_loses_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"{json.dumps(str(number) + ' ' + 'x' * 100)}\n" for number in range(12_000)))

    texts = kept(path)

    assert len(texts) == 6000
    assert texts[-1].startswith("11999 ")
    assert kept(path) == texts
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_x05_invalid_lines_are_skipped_and_only_the_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'\xff\n12\n{"a":1}\n"SELECT 1"\n"SEL')
    path.chmod(0o644)

    assert kept(path) == ["SELECT 1"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_or_a_pipe_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)

    for path in (link, pipe):
        with pytest.raises(OutputError, match="is not saved"):
            history(path)


@pytest.mark.parametrize(
    ("home", "place"),
    [("/var/state", "/var/state/querykeep/history"), ("state", "~/.local/state/querykeep/history")],
)
def test_the_path_of_the_history(home: str, place: str) -> None:
    assert history_path({"XDG_STATE_HOME": home}) == Path(place).expanduser()


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
        terminal.until(lambda lines: any(line.endswith(" s") for line in lines), "the progress")
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
        terminal.send(f"SELECT{ENTER}1;{ENTER}")
        terminal.begins("(1 row)")
        terminal.prompts()
        terminal.send(f".quit{ENTER}")

        assert terminal.leaves() == 0
    assert "\x1b" not in terminal.output, "a dumb terminal would show it"
    assert list(tmp_path.iterdir()) == []
