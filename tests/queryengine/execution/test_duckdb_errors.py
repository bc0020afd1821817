import inspect
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from queryengine.errors import (
    EngineUnavailableError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
    StatementNotAllowedError,
)
from queryengine.execution.duckdb_errors import (
    BY_KIND,
    ENGINE_ERRORS,
    Fault,
    fault_of,
    is_about_parameters,
    kind_of,
    sentence,
    translate,
)
from runtimeconf.model import QueryConfig
from tests.corpus import each

STATE = Path("/var/lib/runtime/state")

DUCKDB_ERRORS = [error for _, error in inspect.getmembers(duckdb, inspect.isclass) if issubclass(error, duckdb.Error)]


def test_every_exception_of_duckdb_is_judged() -> None:
    assert {error for error in DUCKDB_ERRORS if kind_of(error) not in BY_KIND} == {duckdb.Error}
    for error in DUCKDB_ERRORS:
        assert isinstance(translate(error("Some Error: text"), QueryConfig(), STATE), QueryError)


@each(
    ("exc", "expected"),
    [
        pytest.param(pa.ArrowInvalid("Invalid Input Error: no"), Fault.SQL, id="ArrowInvalid"),
        pytest.param(pa.ArrowMemoryError("malloc of size 5 failed"), Fault.RESOURCES, id="Arrow's memory"),
        pytest.param(MemoryError(), Fault.RESOURCES, id="MemoryError"),
        pytest.param(
            duckdb.IOException("IO Error: Corrupt temporary file: failed to decompress block (not enough memory)"),
            Fault.RESOURCES,
            id="memory for a spilled block",
        ),
        pytest.param(OSError("IO Error: write: No space left on device"), Fault.RESOURCES, id="disk full"),
        pytest.param(OSError("Corrupt database file: checksum"), Fault.DATA, id="damaged under way"),
        pytest.param(duckdb.Error("Corrupt database file: checksum"), Fault.DATA, id="damaged"),
        pytest.param(duckdb.Error("Parameter not supported in ORDER BY clause"), Fault.SQL, id="parameter"),
        pytest.param(OSError("something else"), Fault.OTHER, id="no kind"),
        pytest.param(OSError("Brand New Error: text"), Fault.OTHER, id="unknown kind"),
        pytest.param(RuntimeError("x"), Fault.OTHER, id="not DuckDB's"),
        pytest.param(
            duckdb.TransactionException("TransactionContext Error: transaction is launched in read-only mode"),
            Fault.NOT_ALLOWED,
            id="write",
        ),
        pytest.param(type("New", (duckdb.DataError,), {})("x"), Fault.SQL, id="a new exception, by its base"),
        *(
            pytest.param(OSError(f"{written} Error: text"), fault, id=f"the kind {written}")
            for kind, fault in BY_KIND.items()
            for written in (kind.title(), kind.upper())
        ),
    ],
)
def test_a_failure_is_judged_by_class_or_text(exc: BaseException, expected: Fault) -> None:
    assert fault_of(exc) is expected


MORE_MEMORY = "The statement needs more memory than is available (limit: 1 GiB): request less data at once."
MORE_SPACE = "The statement needs more temporary space than is available (limit: 1500 MiB): request less data at once."
FAILED = "The engine failed on this statement and is restarting. Other statements are not affected."


@each(
    ("name", "text", "error", "message"),
    [
        ("Parser", "Parser Error: at", SqlSyntaxError, "at"),
        ("Binder", "Binder Error: no a", SqlError, "no a"),
        ("Permission", "Permission Error: no", StatementNotAllowedError, "no"),
        ("OutOfMemory", "Out of Memory Error: failed to allocate", ResourceLimitError, MORE_MEMORY),
        ("OutOfMemory", "Out of Memory Error: limit of 'max_temp_directory_size'", ResourceLimitError, MORE_SPACE),
        ("Interrupt", "INTERRUPT Error: x", QueryTimeoutError, "The query was cancelled after 30 s, its time limit."),
        ("Internal", "INTERNAL Error: /src/x.cpp:12", EngineUnavailableError, FAILED),
        ("Internal", "INTERNAL Error: Memory allocation failure", ResourceLimitError, MORE_MEMORY),
        ("IO", "IO Error: /var/x", EngineUnavailableError, "The data could not be read: try again."),
        ("Connection", "Connection Error: /x", QueryError, "The engine could not run this statement."),
    ],
)
def test_an_error_is_a_sentence(name: str, text: str, error: type[QueryError], message: str) -> None:
    exc = getattr(duckdb, f"{name}Exception")(text)

    translated = translate(exc, QueryConfig(temp_directory_limit_bytes=1500 * 2**20), STATE)

    assert (type(translated), str(translated)) == (error, message)


@each(
    ("text", "kept"),
    [
        pytest.param("Binder Error: no\n\nLINE 1: SELECT a\n  ^", "no\n\nLINE 1: SELECT a\n  ^", id="excerpt"),
        pytest.param('IO Error: Not "/var/lib/runtime/state/tmp/1/x.tmp": no', 'Not "<file>": no', id="path"),
        pytest.param("Table _s0123456789ab.main.flights has 3 columns", "Table flights has 3 columns", id="attachment"),
        pytest.param('Table "_s0123456789ab".main."flights" has', 'Table "flights" has', id="quoted attachment"),
        pytest.param(f"Table _catalog.s{'0' * 32}.tables has", "Table information_schema.tables has", id="catalog"),
        pytest.param("no\n\nPlease try installing and loading the x extension:\nINSTALL x;", "no", id="extension"),
        pytest.param("no\n\nPossible solutions:\n* Reducing the number of threads", "no", id="settings advice"),
        pytest.param(
            'Binder Error: Too deep. Use "SET max_expression_depth TO x" to increase it.\n\nLINE 1: SELECT a',
            "Too deep.\n\nLINE 1: SELECT a",
            id="advice on one line",
        ),
        pytest.param(
            "Divide by Zero Error: Division by zero in expression (1 // TRY(CASE WHEN (e = 'a\nb') THEN 1 END))",
            "Division by zero: TRY(...) gives null instead.",
            id="an expression, which may be that of a mask",
        ),
        pytest.param(
            "Conversion Error: Cannot cast list with length 8386096808448783725 to array with length 3",
            "Cannot cast list to array with length 3",
            id="a length that may be memory of another statement",
        ),
        pytest.param("Error: text", "Error: text", id="no kind"),
    ],
)
def test_a_sentence_keeps_what_concerns_the_caller(text: str, kept: str) -> None:
    assert sentence(duckdb.Error(text), STATE) == kept


def test_lines_are_counted_in_the_callers_statement() -> None:
    for number, shown in ((3, 1), (4, 2), (1, 1)):
        text = f"Binder Error: no\n\nLINE {number}: SELECT"
        assert sentence(duckdb.Error(text), STATE, lines_before=2) == f"no\n\nLINE {shown}: SELECT"


def test_a_limit_is_shown_in_the_largest_unit_that_is_exact() -> None:
    for size, shown in ((1023, "1023 B"), (2048, "2 KiB"), (1025 * 1024, "1025 KiB"), (2**40, "1024 GiB")):
        error = translate(duckdb.OutOfMemoryException(""), QueryConfig(memory_limit_bytes=size), STATE)
        assert shown in str(error)


def test_what_is_about_parameters_is_told_apart() -> None:
    assert is_about_parameters(duckdb.InvalidInputException("Invalid Input Error: Python integer too large"))
    assert is_about_parameters(duckdb.NotImplementedException("Unable to transform python value"))
    assert not is_about_parameters(duckdb.InvalidInputException("Invalid Input Error: Failed to parse"))
    assert not is_about_parameters(duckdb.BinderException("Binder Error: parameter"))


@each(
    ("message", "expected"),
    [
        (b"SECRET \xe5", QueryError("The engine could not run this statement.")),
        (b"Invalid Input Error: no option \xc3", SqlError("no option \N{REPLACEMENT CHARACTER}")),
        (
            b"INTERNAL Error: SECRET \xc3",
            EngineUnavailableError(
                "The engine failed on this statement and is restarting. Other statements are not affected."
            ),
        ),
    ],
)
def test_a_message_that_is_no_text_is_read_as_any_other(message: bytes, expected: QueryError) -> None:
    exc = UnicodeDecodeError("utf-8", message, len(message) - 1, len(message), "unexpected end of data")

    assert isinstance(exc, ENGINE_ERRORS)
    error = translate(exc, QueryConfig(), STATE)
    assert (type(error), str(error)) == (type(expected), str(expected))
