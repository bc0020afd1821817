"""Nothing that Python itself would print leaves the format of the log."""

import json
from pathlib import Path

import pytest

from tests.system.harness import Server, example_config, free_port, run_program, write_orders

PROGRAM = """
import os, sys, threading, warnings
os.environ["DJANGO_SETTINGS_MODULE"] = "runtime_site.settings"
from runtime_site.uncaught import begin_logging
begin_logging()
warnings.warn("careful\\nnow", RuntimeWarning)
def fail(): raise ValueError("of a thread")
thread = threading.Thread(target=fail, name="worker")
thread.start(); thread.join()
ending = threading.Thread(target=sys.exit)
ending.start(); ending.join()
class Bad:
    def __del__(self): raise ValueError("of a destructor")
Bad()
raise ValueError("of the process")
"""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_warnings_and_exceptions_are_lines(tmp_path: Path, log_format: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    done = run_program(str(tmp_path / "program.py"), PYTHONPATH=".", LOG_FORMAT=log_format)

    assert done.returncode == 1
    if log_format == "text":
        lines = [line for line in done.stderr.splitlines() if not line.startswith("    ")]
        assert [line.split()[1:3] for line in lines] == [
            [level, "runtime_site.uncaught:"] for level in ("WARNING", "ERROR", "ERROR", "CRITICAL")
        ]
        return
    warning, thread, destructor, process = map(json.loads, done.stderr.splitlines())
    assert (warning["category"], warning["warning"]) == ("RuntimeWarning", "careful\nnow")
    assert thread["thread"] == "worker"
    reasons = ("of a thread", "of a destructor", "of the process")
    for line, reason in zip((thread, destructor, process), reasons, strict=True):
        assert f"ValueError: {reason}" in line["traceback"]


def test_an_interrupt_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace('ValueError("of the process")', "KeyboardInterrupt"))

    assert "ended the process" not in run_program(str(tmp_path / "program.py"), PYTHONPATH=".").stderr


@pytest.mark.exhaustive
def test_lines_of_gunicorn_have_the_format_from_the_first_one_on(tmp_path: Path) -> None:
    """Here the arbiter, which has no application, says that the address is taken."""
    port = free_port()
    with Server(tmp_path, mode="gunicorn", port=port, environ={"LOG_FORMAT": "json"}) as server:
        other = tmp_path / "other"
        other.mkdir()
        write_orders(other / "orders.parquet")
        (other / "runtime.yaml").write_text(json.dumps(example_config(port)))
        (other / "runtime.yaml").chmod(0o600)
        done = run_program(
            "-m", "gunicorn", "runtime_site.wsgi", RUNTIME_CONFIG=str(other / "runtime.yaml"), LOG_FORMAT="json"
        )
        assert server.answers()

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["logger"] for line in lines} == {"gunicorn.error"}
    assert any("in use" in line["message"] for line in lines)
    assert all(json.loads(line) for line in server.output().splitlines())
