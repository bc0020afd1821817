"""
What a log line looks like: text for people, or one JSON object per line (`LOG_FORMAT=json`).

A record's structured values are in its attribute `fields` (`extra={"fields": {...}}`). Control characters are escaped,
so that no caller can forge a line or send codes to a terminal.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

#: Formats that `LOG_FORMAT` may name.
LOG_FORMATS = ("text", "json")


def escaped(text: str) -> str:
    """Return *text* with everything that is not printable written as an escape, on one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return dict(fields) if isinstance(fields, dict) else {}


class TextFormatter(logging.Formatter):
    """`TIME LEVEL logger: message name=value ...`, one line; a traceback follows on lines of its own, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for *record*."""
        values = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}{values}"
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            line += "".join(f"\n    {escaped(part)}" for part in traceback.splitlines())
        return line


def _quoted(value: object) -> str:
    text = "-" if value is None else str(value)
    return json.dumps(text) if not text or '"' in text or " " in text or not text.isprintable() else text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, then the record's fields, then `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for *record*."""
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def logging_config(environ: dict[str, str] | os._Environ[str]) -> dict[str, Any]:
    """
    Return the `LOGGING` setting: everything from INFO on to standard error, in the format of `LOG_FORMAT`.

    Django's own request and server loggers are silent: they would name raw paths, and every request has its line in
    the access log already.
    """
    log_format = environ.get("LOG_FORMAT", "text").lower()
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    # A handler that does nothing: with none at all, Python's handler of last resort prints warnings.
    silent = {"handlers": ["nothing"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
            "nothing": {"class": "logging.NullHandler"},
        },
        "root": {"handlers": ["stderr"], "level": "INFO"},
        "loggers": {
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            "django.request": silent,
            "django.server": silent,
            "django.security": silent,
            "httpx": {"level": "WARNING"},  # the client's library: it would name each URL
        },
    }
