"""
Formats log lines, as text or as one JSON object per line (`LOG_FORMAT=json`), and writes them to standard error.

The attribute `fields` of a record holds its structured values (`extra={"fields": {...}}`). Regardless of their content,
a record is one line of printable text, so no caller can forge another line, send control codes to a terminal, change
the text direction, or fill the disk with one value. Every request and statement is logged, so formatting is kept cheap.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from json import JSONEncoder
from math import isfinite
from typing import Any

#: The values of `LOG_FORMAT`. The first is the default.
LOG_FORMATS = ("text", "json")

#: The maximum lengths of values, messages and tracebacks, in characters. Longer text loses its middle.
MAX_VALUE_CHARACTERS = 1000
MAX_MESSAGE_CHARACTERS = 8000
MAX_TRACEBACK_CHARACTERS = 20_000

#: The members of every JSON line. A field with such a name gets an underscore appended.
_RESERVED = frozenset({"time", "level", "logger", "message", "traceback"})

#: Matches values that need no quoting in a text line. Most match, and this check is fast.
_is_plain = re.compile(r"[!#-<>-~]{1,200}").fullmatch

#: Writes a JSON string.
_json = JSONEncoder().encode

#: Types whose text needs no quoting.
_NUMBERS = frozenset({int, float, bool})


def skip_unused_values() -> None:
    """
    Skip record values that our lines do not show, as described under "Optimization" in the `logging` manual.

    This affects the whole process, so call it only where no other program logs. gunicorn shows the process id.
    """
    logging.logThreads = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 (documented there, despite its name)


def escaped(text: str) -> str:
    """Return *text* on one line, with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bounded(text: str, limit: int) -> str:
    """Return *text*, or if it is longer than *limit*, its beginning, the number of omitted characters, and its end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}...({len(text) - limit // 2 * 2} characters)...{text[-(limit // 2) :]}"


def _time(created: float) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds."""
    second = int(created)
    return f"{_second(second)}.{int((created - second) * 1000):03d}Z"


@lru_cache(maxsize=1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _fields(record: logging.LogRecord) -> Mapping[Any, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class TextFormatter(logging.Formatter):
    """One line, `TIME LEVEL logger: message name=value ...`, followed by an indented traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for *record*."""
        message = escaped(bounded(record.getMessage(), MAX_MESSAGE_CHARACTERS))
        line = f"{_time(record.created)} {record.levelname} {record.name}: {message}"
        line += "".join([_name(name) + _quoted(value) for name, value in _fields(record).items()])
        if record.exc_info:
            for part in _traceback(self, record).splitlines():
                line += f"\n    {escaped(part)}"
        return line


@lru_cache(maxsize=256)
def _name(name: object) -> str:
    # Field names are constants of the code, so the cache makes them free. The limit contains any others.
    return f" {_quoted(name)}="


def _quoted(value: object) -> str:
    if type(value) in _NUMBERS:
        return str(value)
    if value is None:
        return "-"
    text = str(value)
    if _is_plain(text) and text != "-":
        return text
    text = bounded(text, MAX_VALUE_CHARACTERS)
    needs_quotes = not text.isprintable() or text in {"", "-"} or any(mark in text for mark in ' "=')
    return _json(text) if needs_quotes else text


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, the fields of the record, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for *record*."""
        # Twice as fast as json.dumps of a whole object, because every value is a scalar.
        message = _json(bounded(record.getMessage(), MAX_MESSAGE_CHARACTERS))
        line = (
            f'{{"time": "{_time(record.created)}", "level": "{record.levelname}"'
            f', "logger": {_string(record.name)}, "message": {message}'
        )
        for name, value in _fields(record).items():
            line += _member(name) + _scalar(value)
        if record.exc_info:
            line += f', "traceback": {_json(_traceback(self, record))}'
        return line + "}"


@lru_cache(maxsize=256)
def _string(name: str) -> str:
    return _json(name)


@lru_cache(maxsize=256)
def _member(name: object) -> str:
    text = bounded(str(name), MAX_VALUE_CHARACTERS)
    return f", {_json(f'{text}_' if text in _RESERVED else text)}: "


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return _json(bounded(value, MAX_VALUE_CHARACTERS))
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if isfinite(value) else "null"
    return _json(bounded(str(value), MAX_VALUE_CHARACTERS))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return bounded(formatter.formatException(record.exc_info), MAX_TRACEBACK_CHARACTERS)  # type: ignore[arg-type]


class StandardErrorHandler(logging.Handler):
    """
    Writes each line to standard error with one system call, so that lines of different processes do not mix.

    It never raises and takes no lock. A closed pipe or full disk loses log lines but not responses, and a record that
    cannot be formatted produces a line that says so. *notice* is logged as a warning before the first line.
    """

    def __init__(self, notice: str | None = None) -> None:
        # In a program started without standard error, descriptor 2 belongs to the next file that is opened.
        self._descriptor = sys.__stderr__.fileno() if sys.__stderr__ is not None else None
        self._notice = notice
        self._is_torn = False
        super().__init__()

    def createLock(self) -> None:  # noqa: N802 (its name in the base class)
        """Create no lock, because a line is one write."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write *record*."""
        if self._notice is not None:
            notice, self._notice = self._notice, None
            self._write(self._line(logging.makeLogRecord({**_NOTICE, "msg": notice})))
        self._write(self._line(record))
        return True

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 (a faulty record must not fail its request)
            fault = {**_NOTICE, "msg": "a record could not be formatted", "fields": {"of": record.name}}
            text = self.format(logging.makeLogRecord(fault))
        return text.encode("utf-8", "backslashreplace") + b"\n"

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            return
        line = b"\n" + line if self._is_torn else line
        written = 0
        with suppress(OSError):
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        if written:
            self._is_torn = written < len(line)


_NOTICE = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}


def logging_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the `LOGGING` setting: everything from INFO up goes to standard error in the format of `LOG_FORMAT`.

    For an unknown format, the log is text and begins with a warning. Django's request and server loggers are silenced
    because they would log raw paths, and the access log already has every request.
    """
    asked = environ.get("LOG_FORMAT", "").strip().lower() or LOG_FORMATS[0]
    notice = None
    if asked not in LOG_FORMATS:
        notice = f"LOG_FORMAT is not one of {', '.join(LOG_FORMATS)}: the log is {LOG_FORMATS[0]}"
    formatter = JsonFormatter if asked == "json" else TextFormatter
    # Without any handler, Python's handler of last resort would print warnings.
    silent = {"handlers": ["nothing"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {
            "stderr": {"()": StandardErrorHandler, "notice": notice, "formatter": "line"},
            "nothing": {"class": "logging.NullHandler"},
        },
        "root": {"handlers": ["stderr"], "level": "INFO"},
        "loggers": {
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            "django.request": silent,
            "django.server": silent,
            "django.security": silent,
            "httpx": {"level": "WARNING"},  # The client's library would log each URL.
        },
    }
