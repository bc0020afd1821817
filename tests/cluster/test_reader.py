"""What a reader makes of streams that end as those of Spark and Sail do."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest

from cluster import connection as module
from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.errors import SessionLostError
from cluster.protocol import messages
from cluster.reader import RemoteReader
from queryengine.cancellation import Interruption
from queryengine.errors import EngineUnavailableError, QueryError, SqlError
from system.addresses import Address

#: The end of a stream: with an error, or just so.
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE, "Socket closed"
UNKNOWN_OPERATION = grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.OPERATION_NOT_FOUND] The handle is invalid."
LOST_SESSION = grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid."
WRONG = grpc.StatusCode.INTERNAL, "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"

Part = Any


def schema() -> Part:
    member = messages.DataType.StructField(name="a", data_type=messages.DataType(long=messages.DataType.Long()))
    row = messages.DataType(struct=messages.DataType.Struct(fields=[member]))
    return messages.ExecutePlanResponse(response_id="s", schema=row)


def rows(*values: int) -> Part:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": pa.array(values, pa.int64())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = messages.ExecutePlanResponse.ArrowBatch(row_count=len(values), data=sink.getvalue().to_pybytes())
    return messages.ExecutePlanResponse(response_id=f"r{values[-1]}", arrow_batch=data)


def end() -> Part:
    return messages.ExecutePlanResponse(response_id="e", result_complete=messages.ExecutePlanResponse.ResultComplete())


class Scripted(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    """A cluster that answers with one stream after the other. `asked` holds where each was taken up."""

    def __init__(self, streams: Sequence[Sequence[Part]]) -> None:
        self._streams = list(streams)
        self.asked: list[str] = []
        self.others: list[str] = []
        self.has_session = True

    def service(self, call: Any) -> Any:
        name = call.method.rpartition("/")[2]
        if name == "ExecutePlan":
            return grpc.unary_stream_rpc_method_handler(lambda _, context: self._stream("", context))
        if name == "ReattachExecute":
            parse = messages.ReattachExecuteRequest.FromString
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._stream(parse(request).last_response_id, context)
            )
        self.others.append(name)
        return grpc.unary_unary_rpc_method_handler(
            lambda _, context: b"" if self.has_session else context.abort(*LOST_SESSION)
        )

    def _stream(self, after: str, context: Any) -> Iterator[bytes]:
        self.asked.append(after)
        for part in self._streams.pop(0):
            if isinstance(part, tuple):
                context.abort(*part)
            yield part.SerializeToString()


@contextmanager
def reading(*streams: Sequence[Part]) -> Iterator[tuple[Scripted, RemoteReader]]:
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AGAIN_S", (0.01, 0.02, 0.03))
        cluster = Scripted(streams)
        server = grpc.server(pool, handlers=[cluster])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with closing(Connection(ClusterConfig(address=Address("127.0.0.1", port)))) as connection:
            yield cluster, RemoteReader(connection, "session", Interruption(), sql="SELECT a")
        server.stop(None).wait()


def values(reader: RemoteReader) -> list[int]:
    with closing(reader):
        reader.start(messages.Plan(), ["tag"])
        return [value for batch in reader for value in batch.column(0).to_pylist()]


def test_a_stream_that_is_closed_for_its_age_is_taken_up_again() -> None:
    with reading([schema(), rows(1)], [rows(2)], [UNAVAILABLE], [rows(3), end()]) as (cluster, reader):
        assert values(reader) == [1, 2, 3]
        assert cluster.asked == ["", "r1", "r2", "r2"]
        assert reader.schema == pa.schema([("a", pa.int64())])


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param([[schema(), rows(1)], [UNKNOWN_OPERATION]], id="interrupted from elsewhere"),
        pytest.param([[schema(), rows(1)], [LOST_SESSION]], id="the session has ended"),
        pytest.param([[schema(), rows(1)], [], [], []], id="taken up again in vain"),
        pytest.param([[schema(), rows(1), UNAVAILABLE], [UNAVAILABLE], [UNAVAILABLE], [UNAVAILABLE]], id="gone"),
    ],
)  # fmt: skip
def test_a_result_without_its_end_is_cut(streams: list[list[Part]]) -> None:
    with reading(*streams) as (_, reader), pytest.raises(QueryError, match="before its result was complete"):
        values(reader)


def test_an_error_of_the_statement_comes_after_its_first_rows() -> None:
    with reading([schema(), rows(1), WRONG]) as (cluster, reader), pytest.raises(SqlError, match="Division by zero"):
        values(reader)

    assert "Interrupt" not in cluster.others


def test_a_cluster_that_is_gone_before_the_first_row_is_out_of_reach() -> None:
    with reading([schema(), UNAVAILABLE], *[[UNAVAILABLE]] * 3) as (_, reader), pytest.raises(EngineUnavailableError):
        values(reader)


@pytest.mark.parametrize("stream", [[], [UNAVAILABLE]])
def test_a_cluster_that_answers_nothing_is_out_of_reach(stream: list[Part]) -> None:
    with reading(stream) as (_, reader), pytest.raises(EngineUnavailableError, match="cannot be reached"):
        values(reader)


def batch(*values: int, **changes: Any) -> Part:
    """As `rows`, with other fields of the message."""
    part = rows(*values)
    for name, value in changes.items():
        setattr(part.arrow_batch, name, value)
    return part


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param([schema(), batch(1, data=rows(1).arrow_batch.data[:40])], id="cut"),
        pytest.param([schema(), batch(1, row_count=2)], id="fewer rows than it says"),
        pytest.param([schema(), batch(1, start_offset=0), batch(2, start_offset=2)], id="one is missing"),
        pytest.param([schema(), batch(1, start_offset=0), batch(1, start_offset=0)], id="one came twice"),
        pytest.param([rows(1), schema()], id="no schema"),
    ],
)
def test_a_batch_that_cannot_be_read_is_a_failure_of_the_cluster(stream: list[Part]) -> None:
    with reading([*stream, end()]) as (_, reader), pytest.raises(QueryError, match="cannot be read"):
        values(reader)


def test_batches_that_say_where_they_belong_are_read() -> None:
    stream = [schema(), batch(1, 2, start_offset=0), batch(3, start_offset=2), end()]
    with reading(stream) as (_, reader):
        assert values(reader) == [1, 2, 3]


def test_a_reader_that_is_closed_early_ends_its_operation() -> None:
    with reading([schema(), rows(1), rows(2), end()]) as (cluster, reader):
        reader.start(messages.Plan(), [])
        reader.close()
        reader.close()

    assert set(cluster.others) == {"Interrupt", "Config"}, "again, as long as the cluster knows no such operation"


def test_a_reader_that_never_began_has_nothing_to_end() -> None:
    with reading() as (cluster, reader):
        reader.interrupt()
        reader.close()

    assert cluster.others == []


def test_the_cluster_forgets_an_operation_that_has_ended() -> None:
    with reading([schema(), rows(1), end()]) as (cluster, reader):
        assert values(reader) == [1]
        assert cluster.others == ["ReleaseExecute"]


def test_a_result_is_not_complete_if_its_session_has_ended() -> None:
    with reading([schema(), end()]) as (cluster, reader):
        cluster.has_session = False
        with pytest.raises(SessionLostError):
            values(reader)

    with reading([schema(), rows(1), end()]) as (cluster, reader):
        cluster.has_session = False
        with pytest.raises(QueryError, match="before its result was complete"):
            values(reader)


def test_a_session_that_ended_before_the_first_row_is_lost() -> None:
    with reading([schema()], [LOST_SESSION]) as (_, reader), pytest.raises(SessionLostError):
        values(reader)
