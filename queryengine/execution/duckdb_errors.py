"""
Translates DuckDB's errors to those of this package, with one table for exceptions and messages.

An error before the first rows is a DuckDB exception. A later error comes from the Arrow stream as an `OSError` with
only DuckDB's message, which begins with the kind of error, such as `Conversion Error: ...`. So does one whose message
is not valid text, as a `UnicodeDecodeError`.
"""

import logging
import re
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path

import duckdb
import pyarrow as pa

from queryengine.errors import (
    LENGTH_OF_LIST,
    WANT_OF_MEMORY,
    EngineUnavailableError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)
from runtimeconf.model import QueryConfig

logger = logging.getLogger(__name__)

#: The exceptions that a statement in DuckDB can raise. A DuckDB message that is not valid text cannot be decoded.
ENGINE_ERRORS = (duckdb.Error, pa.ArrowException, OSError, MemoryError, UnicodeDecodeError)


class Fault(Enum):
    """The meaning of a failure for the caller and for the engine."""

    SYNTAX = auto()
    SQL = auto()
    NOT_ALLOWED = auto()
    RESOURCES = auto()
    INTERRUPTED = auto()
    DATA = auto()  # the snapshot could not be read
    BROKEN = auto()  # the instance can no longer be trusted
    OTHER = auto()


_KINDS: Mapping[Fault, str] = {
    Fault.SYNTAX: "parser, syntax",
    Fault.SQL: "binder, catalog, constraint, conversion, data, decimal, dependency, divide by zero, executor, "
    "expression, integrity, invalid input, invalid type, mismatch type, not implemented, not supported, out of range, "
    "parameter not allowed, programming, sequence, type mismatch",
    Fault.NOT_ALLOWED: "http, permission",
    Fault.RESOURCES: "memory, out of memory",
    Fault.INTERRUPTED: "interrupt",
    Fault.DATA: "io",
    Fault.BROKEN: "fatal, internal",
    Fault.OTHER: "connection, database, operational, resource in use, serialization, transaction",
}
#: The faults by lower-case kind of error: the words in the class name, or the words before "Error:" in the message.
BY_KIND: Mapping[str, Fault] = {kind: fault for fault, kinds in _KINDS.items() for kind in kinds.split(", ")}

#: The faults caused by the statement. Its author gets DuckDB's own message.
_AT_FAULT: Mapping[Fault, type[StatementError]] = {
    Fault.SYNTAX: SqlSyntaxError,
    Fault.SQL: SqlError,
    Fault.NOT_ALLOWED: StatementNotAllowedError,
}

_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])")
_KIND = re.compile(r"\A(?P<kind>[A-Za-z][A-Za-z ]{1,30}?) Error: ")
#: The excerpt of the statement that follows the message.
_LINE = re.compile(r"\n\nLINE (?P<number>\d+):")
_PARAMETER = re.compile(r"\bpython\b|Failed to cast value|\bparameters?\b", re.IGNORECASE)
#: Our attachments, which do not appear in the caller's statement.
_ATTACHMENT = re.compile(r'(?P<quote>"?)(?:_s[0-9a-f]{12}|_copies)(?P=quote)\."?main"?\.')
#: A key's database, which stands for `runtime`.
_KEY_CATALOG = re.compile(r"\b_k[0-9a-f]{12}(?:_list)?(?=\.)")
_CATALOG_VIEW = re.compile(r"\b_catalog\.s[0-9a-f]{32}\.(?=tables\b|columns\b|schemata\b)")
#: Advice that callers cannot follow, because extensions are not installed and settings are locked.
_ADVICE = re.compile(
    r'\s*\n+(?:Please try installing and loading|Possible solutions:|See also https?:).*| Use "SET \w+ TO [^\n]*',
    re.DOTALL,
)
#: What follows is the expression as the optimizer left it: with the text of a mask, simplified by what it knows about
#: hidden values.
_DIVIDED = re.compile(r"\A(Division by zero) in expression .*", re.DOTALL)
_NO_SPACE = re.compile(
    r"max_temp_directory_size|No space left|Disk quota exceeded|could not allocate disk|Failed to create directory",
    re.IGNORECASE,
)
#: If the class and the kind are not specific enough, the message decides.
_BY_TEXT = (
    (Fault.OTHER, re.compile(r"\ACorrupt database file"), Fault.DATA),
    (Fault.OTHER, re.compile(r"\AParameter not (?:allowed|resolved|supported)\b"), Fault.SQL),
    (Fault.OTHER, re.compile(r"launched in read-only mode"), Fault.NOT_ALLOWED),
    (Fault.DATA, _NO_SPACE, Fault.RESOURCES),
    (Fault.DATA, WANT_OF_MEMORY, Fault.RESOURCES),  # for a block that is read back from disk
)


def fault_of(exc: BaseException) -> Fault:
    """Classify an exception of DuckDB or its Arrow stream."""
    if isinstance(exc, OSError | pa.ArrowException | UnicodeDecodeError) and not isinstance(exc, MemoryError):
        match = _KIND.match(_text_of(exc))
        kinds = [match["kind"].lower()] if match else []
    else:
        kinds = [kind_of(base) for base in type(exc).__mro__]
    fault = next((BY_KIND[kind] for kind in kinds if kind in BY_KIND), Fault.OTHER)
    for listed, pattern, meant in _BY_TEXT:
        if fault is listed and pattern.search(_text_of(exc)):
            return meant
    return fault


def _text_of(exc: BaseException) -> str:
    """
    Return DuckDB's message. It may cut the text of the statement within a character, and then cannot be decoded.

    Python 3.11.2, at least, raises the error without its message then.
    """
    if isinstance(exc, UnicodeDecodeError):
        return exc.object.decode(errors="replace")
    return str(exc) or ("The engine's message is not valid text." if isinstance(exc, duckdb.Error) else "")


def kind_of(error: type) -> str:
    """Return the kind of an exception class: `type mismatch` for `TypeMismatchException`."""
    return _WORD_START.sub(" ", re.sub("(Exception|Error)$", "", error.__name__)).lower()


def is_about_parameters(exc: duckdb.Error) -> bool:
    """Return whether DuckDB refused a parameter value: too large, not UTF-8, or of an unknown type."""
    kinds = duckdb.InvalidInputException | duckdb.NotImplementedException
    return isinstance(exc, kinds) and _PARAMETER.search(str(exc)) is not None


def lacks_line(exc: BaseException) -> bool:
    """Return whether DuckDB's message lacks the line of the statement that DuckDB could not plan."""
    return isinstance(exc, duckdb.BinderException | duckdb.CatalogException) and not _LINE.search(str(exc))


def translate(exc: BaseException, limits: QueryConfig, state_dir: Path, *, lines_before: int = 0) -> QueryError:
    """
    Return the error for the caller. A failure that is not the caller's fault is logged here with its message.

    *lines_before* is the number of lines that we put before the caller's statement.
    """
    fault = fault_of(exc)
    if fault in _AT_FAULT:
        return _AT_FAULT[fault](sentence(exc, state_dir, lines_before=lines_before))
    if fault is Fault.RESOURCES or (fault is Fault.BROKEN and WANT_OF_MEMORY.search(_text_of(exc))):
        what, limit = "memory", limits.memory_limit_bytes
        if _NO_SPACE.search(_text_of(exc)):
            what, limit = "temporary space", limits.temp_directory_limit_bytes
        message = (
            f"The statement needs more {what} than is available (limit: {_size(limit)}): request less data at once."
        )
        return ResourceLimitError(message)
    if fault is Fault.INTERRUPTED:  # by DuckDB's own timeout; other interrupts raise their reason before
        return QueryTimeoutError(limits.timeout_s)
    logger.error("engine failure", exc_info=exc, extra={"fields": {"fault": fault.name.lower()}})
    if fault is Fault.DATA:
        return EngineUnavailableError("The data could not be read: try again.")
    if fault is Fault.BROKEN:
        return EngineUnavailableError(
            "The engine failed on this statement and is restarting. Other statements are not affected."
        )
    return QueryError("The engine could not run this statement.")


def sentence(exc: BaseException, state_dir: Path, *, lines_before: int = 0) -> str:
    """Return DuckDB's message without the kind of error, our paths and the names of our attachments."""
    text = _KIND.sub("", _text_of(exc), count=1)
    text = _DIVIDED.sub(r"\1: TRY(...) gives null instead.", text)
    text = LENGTH_OF_LIST.sub(r"\1 ", _ADVICE.sub("", text))
    text = re.sub(rf"{re.escape(str(state_dir))}[^\s'\"]*", "<file>", text)
    text = _LINE.sub(lambda match: f"\n\nLINE {max(1, int(match['number']) - lines_before)}:", text)
    text = _KEY_CATALOG.sub("runtime", _ATTACHMENT.sub("", text))
    return _CATALOG_VIEW.sub("information_schema.", text).strip()


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or count % 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"
