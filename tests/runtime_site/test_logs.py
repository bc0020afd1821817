"""Log lines: one line each, escaped, text or JSON."""

import json
import logging
import os
import subprocess
import sys
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_site.logs import JsonFormatter, TextFormatter, bounded, logging_config


def record(message: str, fields: dict[Any, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("room.module", logging.INFO, __file__, 1, message, None, None)
    made.created = 0.0
    if fields is not None:
        made.fields = fields
    return made


def test_a_line_has_time_level_logger_message_fields_and_traceback() -> None:
    made = record("request", {"status": 200, "route": "/v1/sql", "none": None, "said": "a b"})
    line, as_json = TextFormatter().format(made), json.loads(JsonFormatter().format(made))

    assert line == '1970-01-01T00:00:00.000Z INFO room.module: request status=200 route=/v1/sql none=- said="a b"'
    members = {"time": "1970-01-01T00:00:00.000Z", "level": "INFO", "logger": "room.module", "message": "request"}
    assert as_json == members | {"status": 200, "route": "/v1/sql", "none": None, "said": "a b"}
    made.exc_info = (ValueError, ValueError("the reason"), None)
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "ValueError: the reason" in formatter.format(made)


@pytest.mark.parametrize(
    ("value", "text", "as_json"),
    [
        (None, "-", None),
        ("-", '"-"', "-"),
        ("", '""', ""),
        (True, "True", True),
        (200, "200", 200),
        (12.4, "12.4", 12.4),
        (float("nan"), "nan", None),
        (float("inf"), "inf", None),
        ("/v1/sql/{query_id}/cancel", "/v1/sql/{query_id}/cancel", "/v1/sql/{query_id}/cancel"),
        ("é", "é", "é"),
        ("a b", '"a b"', "a b"),
        ("a=b", '"a=b"', "a=b"),
        ('a"b', r'"a\"b"', 'a"b'),
        ("a\nb", r'"a\nb"', "a\nb"),
        ("\x1b[2J", r'"\u001b[2J"', "\x1b[2J"),
        ("\x7f", r'"\u007f"', "\x7f"),
        ("\u2028", r'"\u2028"', "\u2028"),
        ("\u202egpj", r'"\u202egpj"', "\u202egpj"),
        ("\ud800", r'"\ud800"', "\ud800"),
        (("a", 1), "\"('a', 1)\"", "('a', 1)"),
        (Path("/x"), "/x", "/x"),
        (HTTPStatus.GONE, "410", 410),
    ],
)
def test_a_value(value: object, text: str, as_json: object) -> None:
    made = record("request", {"said": value, "status": 200})

    assert TextFormatter().format(made).endswith(f" request said={text} status=200")
    assert json.loads(JsonFormatter().format(made))["said"] == as_json


def test_a_field_cannot_replace_a_standard_member() -> None:
    made = record("request", {"message": "forged", "level": "CRITICAL", "a b": 1, 7: "seven", "x\ny=": 2})

    line = json.loads(JsonFormatter().format(made))

    expected = ("request", "INFO", "forged", "CRITICAL")
    assert (line["message"], line["level"], line["message_"], line["level_"]) == expected
    assert (line["a b"], line["7"], line["x\ny="]) == (1, "seven", 2)
    assert TextFormatter().format(made).endswith(r' "a b"=1 7=seven "x\ny="=2')


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_long_values_lose_their_middle(formatter: logging.Formatter) -> None:
    made = record("a" * 100_000 + "z", {"said": "b" * 10**6, "k" * 10**6: 1})
    made.exc_info = (ValueError, ValueError("c" * 10**6 + "the end"), None)

    line = formatter.format(made)

    assert len(line) < 40_000
    assert "aaa...(92001 characters)...aaa" in line
    assert "bbb...(999000 characters)...bbb" in line
    assert "ccc" in line
    assert "the end" in line
    assert bounded("x" * 1001, 1000) == "x" * 500 + "...(1 characters)..." + "x" * 500
    assert bounded("x" * 1000, 1000) == "x" * 1000


@given(st.text(), st.dictionaries(st.text(), st.text() | st.floats() | st.integers()))
def test_no_text_breaks_the_line(message: str, fields: dict[str, object]) -> None:
    made = record("%s", fields)
    made.args = (message,)
    text, as_json = TextFormatter().format(made), JsonFormatter().format(made)

    for line in (text, as_json):
        assert len(line.splitlines()) == 1
        assert line.isprintable()
    parsed = json.loads(as_json)
    assert parsed["message"] == message
    for name, value in fields.items():
        # A field with the name of a standard member is renamed.
        assert not isinstance(value, str) or value in (parsed.get(name), parsed.get(f"{name}_"))


@given(st.floats(0, 4e9))
def test_times_are_those_of_the_clock(created: float) -> None:
    formatter = TextFormatter()
    made = record("x")
    made.created = created

    for _ in range(2):
        shown = datetime.fromisoformat(formatter.format(made).split(" ", 1)[0])
        assert abs(shown.timestamp() - created) < 0.0011


@pytest.mark.parametrize(
    ("environ", "formatter"),
    [
        ({}, TextFormatter),
        ({"LOG_FORMAT": ""}, TextFormatter),
        ({"LOG_FORMAT": "json"}, JsonFormatter),
        ({"LOG_FORMAT": " JSON"}, JsonFormatter),
        ({"LOG_FORMAT": "TEXT"}, TextFormatter),
    ],
)
def test_log_format_chooses_the_formatter(environ: dict[str, str], formatter: type) -> None:
    config = logging_config(environ)

    assert config["formatters"]["line"]["()"] is formatter
    assert config["handlers"]["stderr"]["notice"] is None


LOGGING = """
import logging, logging.config, os, sys
from runtime_site.logs import logging_config
logging.config.dictConfig(logging_config(os.environ))
log = logging.getLogger("a.room")
"""


def run_logging(script: str, shell: str = '"$@"', **environ: str) -> subprocess.CompletedProcess[str]:
    """Run *script* in a process that logs as a runtime does; *shell* redirects its streams."""
    return subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-c", LOGGING + script],
        env={**os.environ, "LOG_FORMAT": "text", **environ}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip


def test_an_unknown_log_format_is_reported_once_before_the_first_line() -> None:
    lines = run_logging("log.info('one'); log.info('two')", LOG_FORMAT="xml").stderr.splitlines()

    assert [line.split(" ", 1)[1] for line in lines] == [
        "WARNING runtime_site.logs: LOG_FORMAT is not one of text, json: the log is text",
        "INFO a.room: one",
        "INFO a.room: two",
    ]
    assert run_logging("", LOG_FORMAT="xml").stderr == ""


def test_non_ascii_text_is_utf8_in_any_locale() -> None:
    assert "é" in run_logging("log.info(chr(233))", LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii").stderr


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param('"$@" 2>/dev/full', id="full disk"),
        pytest.param('"$@" 2>&-', id="closed"),
        pytest.param('{ "$@" 2>&1 >&3 3>&- | true; } 3>&1', id="closed pipe"),
    ],
)
def test_a_broken_standard_error_breaks_nothing(shell: str) -> None:
    script = """
opened = open(sys.executable, "rb")
for number in range(3000):
    log.warning("x" * 1000)
print("done")
"""
    done = run_logging(script, shell)

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_closed_standard_error_is_not_mistaken_for_another_file(tmp_path: Path) -> None:
    file = tmp_path / "data"
    script = f"opened = open({str(file)!r}, 'wb'); log.warning('a line'); print(opened.fileno())"

    done = run_logging("import logging\n" + script, '"$@" 2>&-')

    assert done.stdout == "2\n"
    assert file.read_bytes() == b""


def test_a_line_after_a_partial_write_is_complete(tmp_path: Path) -> None:
    """The disk is full in the middle of a line; later it has space again."""
    script = """
import resource, signal, sys
sys.dont_write_bytecode = True  # it would be cut off
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
log.warning("x" * 1000)
log.warning("lost")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.warning("there")
log.warning("again")
"""
    log = tmp_path / "log"
    run_logging(script, f'"$@" 2>"{log}"')

    torn, *whole = log.read_text().splitlines()
    assert len(torn) == 100
    assert [line.split(" ", 1)[1] for line in whole] == ["WARNING a.room: there", "WARNING a.room: again"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_record_that_cannot_be_formatted_is_reported(log_format: str) -> None:
    script = "log.info('%d', 'secret'); log.info('x', extra={'fields': {'a': 10**5000}}); log.info('after')"

    lines = run_logging(script, LOG_FORMAT=log_format).stderr.splitlines()

    assert len(lines) == 3
    assert all("a record could not be formatted" in line and "a.room" in line for line in lines[:2])
    assert "after" in lines[2]
    assert "secret" not in "".join(lines)


def test_lines_of_several_processes_and_threads_do_not_mix() -> None:
    script = """
import threading
for _ in range(3):
    os.fork()
def work():
    for _ in range(50):
        log.info("request", extra={"fields": {"said": "x" * 900, "pid": os.getpid()}})
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
try:
    while True: os.wait()
except ChildProcessError: pass
"""
    lines = [json.loads(line) for line in run_logging(script, LOG_FORMAT="json").stderr.splitlines()]

    assert len(lines) == 8 * 4 * 50
    assert len({line["pid"] for line in lines}) == 8
    assert {line["said"] for line in lines} == {"x" * 900}


def test_djangos_own_loggers_print_nothing() -> None:
    script = """
for name in ('django.request', 'django.server', 'django.security.DisallowedHost'):
    logging.getLogger(name).error('Unauthorized: /raw-path')
"""
    done = run_logging(script)

    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("process", "shown"), [("uncaught.capture()", "(unknown file) None"), ("", "<string> MainThread")]
)
def test_only_a_process_of_the_runtime_alone_skips_what_its_lines_do_not_show(process: str, shown: str) -> None:
    """A project with these settings has lines of its own, and gunicorn shows the process id."""
    script = f"""
from runtime_site import settings, uncaught
{process}
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(pathname)s %(threadName)s %(process)d"))
log.propagate = False
log.addHandler(handler)
log.warning("a line")
print(os.getpid())
"""
    done = run_logging(script)

    assert done.stderr == f"{shown} {done.stdout}"
