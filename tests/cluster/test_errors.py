import grpc
import pytest

from cluster.errors import SessionLostError, translated
from cluster.protocol import messages
from queryengine.errors import (
    DatasetNotLoadedError,
    EngineUnavailableError,
    QueryError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
)


class CallError(grpc.RpcError):  # type: ignore[misc] # grpcio has no types
    """An error as gRPC raises it for a call."""

    def __init__(self, code: grpc.StatusCode, details: str, **metadata: str) -> None:
        info = messages.ErrorInfo(metadata=metadata).SerializeToString()
        detail = messages.ErrorDetail(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info)
        self._values = code, details, messages.ErrorStatus(details=[detail]).SerializeToString()

    def code(self) -> grpc.StatusCode:
        return self._values[0]

    def details(self) -> str:
        return self._values[1]

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return (("date", b"x"), ("grpc-status-details-bin", self._values[2]))


ANALYSIS = '["org.apache.spark.sql.AnalysisException"]'
PARSE = '["org.apache.spark.sql.catalyst.parser.ParseException"]'
TASK = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times (TID 9) (10.1.2.3 executor 1): "
    "java.lang.IllegalStateException\n\tat org.apache.spark.X.y(X.scala:1)"
)


@pytest.mark.parametrize(
    ("text", "metadata", "error", "message"),
    [
        (
            "[UNRESOLVED_COLUMN] A column `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project",
            {},
            SqlError,
            "A column `x` cannot be resolved.",
        ),
        ("Table not found: [TABLE_OR_VIEW_NOT_FOUND] No x", {"classes": ANALYSIS}, SqlError, "No x"),
        ("\n[PARSE_SYNTAX_ERROR] Error at 'x'. SQLSTATE: 42601 (line 1, pos 0)", {}, SqlSyntaxError, "Error at 'x'."),
        ("found x", {"classes": PARSE}, SqlSyntaxError, "Found x"),
        (
            "[CAST_INVALID_INPUT] The value 'hdfs://name/node' cannot be cast. SQLSTATE: 22018",
            {},
            SqlError,
            "The cluster rejected the statement: CAST_INVALID_INPUT.",
        ),
        ("[CAST_INVALID_INPUT] The value 'a/b' is bad. SQLSTATE: 22018", {}, SqlError, "The value 'a/b' is bad."),
        (
            "invalid argument: found QUALIFY at 50:57 expected '(', or end of input",
            {"classes": ANALYSIS},
            SqlError,
            "Invalid argument: found QUALIFY expected '(', or end of input",
        ),
        ("[USER_RAISED_EXCEPTION] no rows SQLSTATE: P0001", {}, SqlError, "No rows"),
        ("invalid argument: see 10.1.2.3:7077", {"classes": ANALYSIS}, SqlError, "no reason given."),
        ("x" * 900, {"classes": ANALYSIS}, SqlError, "xxx…"),
        (TASK, {"classes": '["org.apache.spark.SparkException"]'}, QueryError, "The statement failed on the cluster."),
        ("[OPERATION_CANCELED] It is canceled. SQLSTATE: HY008", {}, QueryError, "before its result was complete"),
        ("java.lang.OutOfMemoryError: Java heap space", {}, ResourceLimitError, "not have enough memory"),
        ("[PATH_NOT_FOUND] No file:/x. SQLSTATE: 42K03", {}, DatasetNotLoadedError, "cannot read the data"),
        ("", {}, QueryError, "The statement failed on the cluster."),
    ],
)  # fmt: skip
def test_an_error_of_a_statement(text: str, metadata: dict[str, str], error: type[QueryError], message: str) -> None:
    found = translated(CallError(grpc.StatusCode.INTERNAL, text, **metadata))

    assert type(found) is error
    assert message in str(found)


def test_what_stands_in_the_statement_may_stand_in_the_error() -> None:
    text = "[CAST_INVALID_INPUT] The value 'hdfs://name/node' cannot be cast. SQLSTATE: 22018"

    found = translated(CallError(grpc.StatusCode.INTERNAL, text), "SELECT CAST('hdfs://name/node' AS INT)")

    assert str(found) == "The value 'hdfs://name/node' cannot be cast."


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, EngineUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, EngineUnavailableError),
        (grpc.StatusCode.UNAUTHENTICATED, EngineUnavailableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceLimitError),
    ],
)
def test_an_error_of_the_connection_shows_nothing_of_its_text(code: grpc.StatusCode, error: type[Exception]) -> None:
    found = translated(CallError(code, "ipv4:10.1.2.3:15002 refused"))

    assert type(found) is error
    assert "10.1.2.3" not in str(found)


def test_a_cluster_that_is_late_is_not_called_unreachable() -> None:
    assert str(translated(CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))).startswith(
        "The cluster did not respond in time because it is busy or hangs"
    )


@pytest.mark.parametrize(
    "text", ["[INVALID_HANDLE.SESSION_CLOSED] The handle x is invalid.", "invalid argument: session x is not running"]
)
def test_a_session_that_has_ended_is_no_error_of_the_statement(text: str) -> None:
    assert isinstance(translated(CallError(grpc.StatusCode.INTERNAL, text)), SessionLostError)
