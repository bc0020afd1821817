import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtimeclient import argv
from runtimeclient.argv import hide_api_keys
from tests.corpus import each
from tests.runtimeclient.calling import call
from tests.runtimeclient.conftest import MANAGE, clean_environment, run_python
from tests.runtimeclient.remote import API_KEY, Remote, Reply, Request, refuse_other_keys


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["sql", f"--api-key={API_KEY}", "SELECT 1"], id="X01 one word"),
        pytest.param(["sql", "SELECT 1", "--api-key", "another", "--api-key", API_KEY], id="X01 twice"),
    ],
)
def test_x01_the_key_is_gone_from_the_command_line_before_the_first_request(
    remote: Remote, arguments: list[str]
) -> None:
    started = threading.Event()
    seen: list[bytes] = []

    def look(request: Request) -> Reply:
        assert started.wait(60)
        seen.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        return refuse_other_keys(Reply(body=b"[]"))(request)

    remote.on_sql(look)
    process = subprocess.Popen(
        [*MANAGE, *arguments, "--format", "json", "--http-endpoint", remote.url],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    started.set()

    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (0, b"[]\n", b"")
    assert len(seen) == 1
    assert API_KEY.encode() not in seen[0]
    assert b"another" not in seen[0]
    assert b"*" * len(API_KEY) in seen[0]
    assert seen[0].endswith(f"--format\0json\0--http-endpoint\0{remote.url}\0".encode())


def test_x01_a_key_that_cannot_be_hidden_is_a_warning(remote: Remote) -> None:
    remote.on("GET", "/v1/status", refuse_other_keys(Reply(body=b"[]")))
    # Started like this, sys.argv differs from the command line that others see.
    program = (
        f"import runpy, sys; sys.argv[1:] = ['status', '--api-key', '{API_KEY}', '--http-endpoint', '{remote.url}']"
    )

    done = run_python(f"{program}; runpy.run_path({MANAGE[1]!r}, run_name='__main__')")

    assert done.stderr.startswith("Warning: other users of this machine can see the API key")
    assert "RUNTIME_API_KEY" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--api_key", API_KEY], [f"--api-ke={API_KEY}"], ["-api-key", API_KEY], [f"-apikey={API_KEY}"], ["-k" + API_KEY]],
)
def test_x01_a_misspelt_option_does_not_show_the_key(arguments: list[str]) -> None:
    done = call("status", *arguments)

    assert (done.status, done.out) == (2, "")
    assert "unknown option -" in done.err
    assert API_KEY not in done.err


@each(
    ("arguments", "hidden"),
    [
        (["manage.py", "sql", "--api-key", "K1"], ["K1"]),
        (["manage.py", "sql", "--api-key=K1", "K2"], ["K1"]),
        (["--api_key", "K1", "-apikey", "K2", "--API-KEY=K3"], ["K1", "K2", "K3"]),
        (["--api-key-file", "F", "--api-key-file=F", "--api", "x", "--format", "csv"], []),
        (["--api-key"], []),
        (["--api-key", ""], []),
        (["--api-key="], []),
        (["SELECT '--api-key'", "x"], []),
    ],
)
def test_finds_only_keys(arguments: list[str], hidden: list[str]) -> None:
    line = "\0".join(arguments)

    spans = argv._key_spans([argument.encode() for argument in arguments])

    assert [line[offset : offset + length] for offset, length in spans] == hidden


def fake_proc(folder: Path, line: bytes, memory: bytes) -> None:
    """Imitate /proc of a process whose arguments start at address 4."""
    folder.joinpath("cmdline").write_bytes(line)
    folder.joinpath("stat").write_text("1 (a) b) " + "0 " * 45 + "4 0 0")
    folder.joinpath("mem").write_bytes(memory)


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param(b"", id="no memory there"),
        pytest.param(b"\0\0\0\0something else that is long enough", id="other memory"),
        pytest.param(b"\0\0\0\0manage.py\0--api-key\0K1\0", id="what is shown does not change"),
    ],
)
def test_reports_a_key_that_stays_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bytes) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "--api-key", "K1"])
    monkeypatch.setattr(argv, "_PROC", tmp_path)

    assert not hide_api_keys()  # There is no /proc at all.
    fake_proc(tmp_path, b"manage.py\0--api-key\0K1\0", memory)
    assert not hide_api_keys()
    monkeypatch.setattr(sys, "argv", ["manage.py", "status"])
    assert hide_api_keys()


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    code = "import os; from runtimeclient import argv; argv.prepare_process(); print(os.memfd_create('x') > 2)"

    shown = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", code], stdout=subprocess.PIPE, check=True
    )

    assert shown.stdout == b"True\n"
