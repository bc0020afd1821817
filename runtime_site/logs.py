"""
What a log line looks like, text for people or one JSON object per line (`LOG_FORMAT=json`), and how it gets out.

A record's structured values are in its attribute `fields` (`extra={"fields": {...}}`). Whatever they hold, a line is
one line of printable text: no caller can forge a second one, send codes to a terminal, turn the direction of the text,
or fill the disk with one value. Every request and every statement has a line, so making one is kept cheap.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

#: Formats that `LOG_FORMAT` may name; the first is the default.
LOG_FORMATS = ("text", "json")

#: The longest value, message and traceback of a line, in characters; what is longer loses its middle.
MAX_VALUE_CHARACTERS = 1000
MAX_MESSAGE_CHARACTERS = 8000
MAX_TRACEBACK_CHARACTERS = 20_000

#: The members of every JSON line: a field of such a name is written with an underscore after it.
_RESERVED = frozenset({"time", "level", "logger", "message", "traceback"})

#: Texts that stand in a text line as they are; most do, and this is the quickest way to know.
_is_plain = re.compile(r"[!#-<>-~]{1,200}").fullmatch

#: Types whose text is plain.
_NUMBERS = frozenset({int, float, bool})

# What no line shows, no record needs to know (the manual of `logging` names these switches, under "Optimization").
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
logging._srcfile = None  # noqa: SLF001 (there is no other)


def escaped(text: str) -> str:
    """Return *text* with everything that is not printable written as an escape, on one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bounded(text: str, limit: int) -> str:
    """Return *text*, or its beginning and end and how much is left out, when it has more than *limit* characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}...({len(text) - limit // 2 * 2} characters)...{text[-(limit // 2) :]}"


class _Clock:
    """Writes times as ISO 8601 in UTC with milliseconds; the part that changes once a second is kept."""

    def __init__(self) -> None:
        self._kept = (-1, "")

    def text(self, created: float) -> str:
        second = int(created)
        kept = self._kept  # One reference: another thread may set it between two looks.
        if kept[0] != second:
            kept = self._kept = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{kept[1]}.{int((created - second) * 1000):03d}Z"


def _fields(record: logging.LogRecord) -> Mapping[Any, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class TextFormatter(logging.Formatter):
    """`TIME LEVEL logger: message name=value ...`, one line; a traceback follows on lines of its own, indented."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = _Clock()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for *record*."""
        message = escaped(bounded(record.getMessage(), MAX_MESSAGE_CHARACTERS))
        line = f"{self._clock.text(record.created)} {record.levelname} {record.name}: {message}"
        line += "".join([_name(name) + _quoted(value) for name, value in _fields(record).items()])
        if record.exc_info:
            for part in _traceback(self, record).splitlines():
                line += f"\n    {escaped(part)}"
        return line


@lru_cache(maxsize=256)
def _name(name: object) -> str:
    # Names are constants of the code: the cache makes them free, and a stray one can do no harm.
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
    return encode_basestring_ascii(text) if needs_quotes else text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, then the record's fields, then `traceback`."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = _Clock()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for *record*."""
        # Twice as fast as json.dumps: every value here is a scalar.
        message = encode_basestring_ascii(bounded(record.getMessage(), MAX_MESSAGE_CHARACTERS))
        line = (
            f'{{"time": "{self._clock.text(record.created)}", "level": "{record.levelname}"'
            f', "logger": {_string(record.name)}, "message": {message}'
        )
        for name, value in _fields(record).items():
            line += _member(name) + _scalar(value)
        if record.exc_info:
            line += f', "traceback": {encode_basestring_ascii(_traceback(self, record))}'
        return line + "}"


@lru_cache(maxsize=256)
def _string(name: str) -> str:
    return encode_basestring_ascii(name)


@lru_cache(maxsize=256)
def _member(name: object) -> str:
    text = bounded(str(name), MAX_VALUE_CHARACTERS)
    return f", {encode_basestring_ascii(f'{text}_' if text in _RESERVED else text)}: "


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(bounded(value, MAX_VALUE_CHARACTERS))
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if isfinite(value) else "null"
    return encode_basestring_ascii(bounded(str(value), MAX_VALUE_CHARACTERS))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return bounded(formatter.formatException(record.exc_info), MAX_TRACEBACK_CHARACTERS)  # type: ignore[arg-type]


class StandardErrorHandler(logging.Handler):
    """
    Writes each line to standard error with one system call, so that lines of several processes do not mix.

    It never raises, and takes no lock: a closed pipe or a full disk loses lines, not answers, and a record that cannot
    be formatted leaves a line that says so. *notice* is written as a warning before the first line.
    """

    def __init__(self, notice: str | None = None) -> None:
        # Whoever starts a program without standard error gives its descriptor to the next file that is opened.
        self._descriptor = sys.__stderr__.fileno() if sys.__stderr__ is not None else None
        self._notice = notice
        self._is_torn = False
        super().__init__()

    def createLock(self) -> None:  # noqa: N802 (its name in the base class)
        """Make none: a line is one write."""
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
        except Exception:  # noqa: BLE001 (a faulty record must not fail the request that it is about)
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
    Return the `LOGGING` setting: everything from INFO on to standard error, in the format of `LOG_FORMAT`.

    An unknown format is text, and the log begins with a warning. Django's own request and server loggers are silent:
    they would name raw paths, and every request has its line in the access log already.
    """
    asked = environ.get("LOG_FORMAT", "").strip().lower() or LOG_FORMATS[0]
    notice = None
    if asked not in LOG_FORMATS:
        notice = f"LOG_FORMAT is not one of {', '.join(LOG_FORMATS)}: the log is {LOG_FORMATS[0]}"
    formatter = JsonFormatter if asked == "json" else TextFormatter
    # A handler that does nothing: with none at all, Python's handler of last resort prints warnings.
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
            "httpx": {"level": "WARNING"},  # the client's library: it would name each URL
        },
    }
