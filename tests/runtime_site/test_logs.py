"""Log lines: one line each, escaped, text or JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_site.logs import JsonFormatter, TextFormatter, escaped, logging_config


def record(message: str, fields: dict[str, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("room.module", logging.INFO, __file__, 1, message, None, None)
    made.created = 0.0
    if fields is not None:
        made.fields = fields
    return made


def test_text_line_has_time_level_logger_message_and_fields() -> None:
    line = TextFormatter().format(record("request", {"status": 200, "route": "/v1/sql", "none": None, "said": "a b"}))

    assert line == ('1970-01-01T00:00:00.000Z INFO room.module: request status=200 route=/v1/sql none=- said="a b"')


def test_json_line_is_one_object() -> None:
    line = json.loads(JsonFormatter().format(record("request", {"status": 200})))

    assert line == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "INFO",
        "logger": "room.module",
        "message": "request",
        "status": 200,
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_traceback_is_kept(formatter: logging.Formatter) -> None:
    made = record("failed")
    made.exc_info = (ValueError, ValueError("the reason"), None)

    assert "ValueError: the reason" in formatter.format(made)


@given(st.text(), st.dictionaries(st.just("said"), st.text()))
def test_no_text_breaks_the_line(message: str, fields: dict[str, object]) -> None:
    made = record("%s", fields)
    made.args = (message,)
    text, as_json = TextFormatter().format(made), JsonFormatter().format(made)

    for line in (text, as_json):
        assert len(line.splitlines()) == 1
        assert line.isprintable()
    assert json.loads(as_json)["message"] == message


@given(st.text())
def test_escaping_leaves_printable_text_alone(text: str) -> None:
    assert (escaped(text) == text) is text.isprintable()


@pytest.mark.parametrize(
    ("environ", "formatter"),
    [({}, TextFormatter), ({"LOG_FORMAT": "json"}, JsonFormatter), ({"LOG_FORMAT": "TEXT"}, TextFormatter)],
)
def test_log_format_chooses_the_formatter(environ: dict[str, str], formatter: type) -> None:
    assert logging_config(environ)["formatters"]["line"]["()"] is formatter


def test_djangos_own_loggers_print_nothing() -> None:
    script = (
        "import logging, logging.config\n"
        "from runtime_site.logs import logging_config\n"
        "logging.config.dictConfig(logging_config({}))\n"
        "for name in ('django.request', 'django.server', 'django.security.DisallowedHost'):\n"
        "    logging.getLogger(name).error('Unauthorized: /raw-path')\n"
    )

    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert finished.stdout + finished.stderr == ""
