"""
Translates the errors of a cluster into errors for callers.

A cluster's message may contain host names, paths, plans and stack traces. Only its first line is useful to the
statement's author. The line is passed on if the cluster says that the statement caused the error, and if every path and
address in the line occurs in the statement.
"""

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from cluster.protocol import messages
from queryengine.errors import (
    DatasetNotLoadedError,
    EngineUnavailableError,
    QueryError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
)

logger = logging.getLogger(__name__)

UNREACHABLE: Final = "The cluster cannot be reached: try again."
BUSY: Final = "The cluster did not respond in time because it is busy or hangs: try again."
CUT: Final = "The cluster ended the statement before its result was complete: try again."

_DETAILS_KEY = "grpc-status-details-bin"
_MESSAGE_CHARACTERS: Final = 500

#: `[ERROR_CLASS.SUBCLASS] Sentence. SQLSTATE: 42703; line 1 pos 7`
_ERROR_CLASS = re.compile(r"\A\s*(?:[A-Z][a-z ]+: )?\[([A-Z][A-Z0-9_.]+)\]\s*")
_SQL_STATE = re.compile(r"\s*SQLSTATE: ([0-9A-Z]{5})\b;?")
#: Text that does not help the statement's author: a position in the generated text, and a setting.
_USELESS = re.compile(
    r";? line \d+ pos \d+|;? \(line \d+, pos \d+\)| at \d+:\d+(?= expected )"
    r"| If necessary set \"spark\.[^.]+\.[^\"]*\" to [^.]*\."
)
#: A URL, an absolute path, an IPv4 address, a host with a port, or a Java class.
_PLACES = re.compile(
    r"\w+:/{1,3}[^\s'\"`\])]+|(?<![\w/<.])/[\w.-]+/[^\s'\"`\])]*|\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?"
    r"|\b[\w-]+(?:\.[\w-]+)*:\d{2,5}\b|\b(?:org|java|scala|com)\.[a-z]\w*\.[\w.$]+"
)

#: Error classes that mean that the session no longer exists.
_LOST = re.compile(r"INVALID_HANDLE\.SESSION_|SESSION_NOT_|session \S+ is not running", re.IGNORECASE)
#: Errors not caused by the statement's author, by error class, or by message if there is no class.
_BY_TEXT: Final[tuple[tuple[re.Pattern[str], type[QueryError], str], ...]] = (
    (re.compile(r"OPERATION_CANCELED|OPERATION_ABANDONED|\bcancell?ed\b"), QueryError, CUT),
    (
        re.compile(r"OutOfMemory|OUT_OF_MEMORY|Resources exhausted|DISK_FULL|No space left"),
        ResourceLimitError,
        "The cluster does not have enough memory or disk space for the statement.",
    ),
    (
        re.compile(
            r"PATH_NOT_FOUND|FAILED_READ_FILE|FILE_NOT_EXIST|UNABLE_TO_INFER_SCHEMA|DELTA_|[Oo]bject ?[Ss]tore"
            r"|No such file|Path does not exist|NoSuchBucket|AccessDenied"
        ),
        DatasetNotLoadedError,
        "The cluster cannot read the data of a dataset at the moment.",
    ),
)
#: SQLSTATE classes of statement errors: cardinality, data, constraints, syntax, limits of the language, and
#: `raise_error`.
_STATES = ("21", "22", "23", "42", "0A", "54", "P0")
_BY_STATEMENT = re.compile(
    r"AnalysisException|ParseException|IllegalArgumentException|NumberFormatException|ArithmeticException"
    r"|DateTimeException|UnsupportedOperationException|ArrayIndexOutOfBounds"
)

_REFUSED_CODES = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


class SessionLostError(Exception):
    """The session on the cluster has ended, or the cluster has lost its definitions."""


def translated(error: grpc.RpcError, sql: str = "") -> Exception:
    """Translate *error* into a `QueryError` for the author of *sql*, or into a `SessionLostError`."""
    code, text = error.code(), str(error.details() or "")
    if code is grpc.StatusCode.UNAVAILABLE:
        return EngineUnavailableError(UNREACHABLE)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return EngineUnavailableError(BUSY)
    if code in _REFUSED_CODES:
        logger.error("the cluster rejected the runtime's token")
        return EngineUnavailableError("The cluster rejected the runtime: its token is missing or wrong.")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return ResourceLimitError("A part of the result is larger than the runtime accepts from the cluster.")
    if _LOST.search(text):
        return SessionLostError()
    return _of_statement(text, _info(error), sql)


def _of_statement(text: str, info: Mapping[str, str], sql: str) -> QueryError:
    """Translate an error with the message *text* and the metadata *info* for the author of *sql*."""
    named = _ERROR_CLASS.match(text)
    error_class = info.get("errorClass") or (named[1] if named else "")
    for pattern, kind, sentence in _BY_TEXT:
        if pattern.search(error_class or text):
            logger.warning("a statement failed on the cluster", extra={"fields": {"error": _first_line(text)}})
            return kind(sentence)
    classes, state = info.get("classes", ""), info.get("sqlState") or _state_in(text)
    if "ParseException" in classes or error_class == "PARSE_SYNTAX_ERROR":
        return SqlSyntaxError(_sentence(text, error_class, sql))
    if state.startswith(_STATES) or (not state and _BY_STATEMENT.search(classes)):
        return SqlError(_sentence(text, error_class, sql))
    logger.warning("a statement failed on the cluster", extra={"fields": {"error": _first_line(text)}})
    return QueryError("The statement failed on the cluster.")


def _sentence(text: str, error_class: str, sql: str) -> str:
    line = _USELESS.sub("", _SQL_STATE.sub("", _first_line(_ERROR_CLASS.sub("", text, count=1))))
    if any(place not in sql for place in _PLACES.findall(line)):
        return f"The cluster rejected the statement: {error_class or 'no reason given'}."
    if len(line) > _MESSAGE_CHARACTERS:
        line = line[:_MESSAGE_CHARACTERS] + "…"
    return f"{line[:1].upper()}{line[1:]}".rstrip(" ;")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[: 4 * _MESSAGE_CHARACTERS]


def _state_in(text: str) -> str:
    found = _SQL_STATE.search(text)
    return found[1] if found else ""


def _info(error: grpc.RpcError) -> dict[str, str]:
    """Return the metadata of the cluster's ErrorInfo; empty if there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            with suppress(DecodeError):
                status: Any = messages.ErrorStatus.FromString(value)
                for detail in status.details:
                    if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                        return dict(messages.ErrorInfo.FromString(detail.value).metadata)
    return {}
