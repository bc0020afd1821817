"""
One process's connection to a cluster, with the Spark Connect calls.

gRPC does not survive a fork, so only processes that will not fork again may import this module.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import certifi
import grpc
import pyarrow as pa
from grpc.experimental import ChannelOptions

from cluster.config import ClusterConfig
from cluster.errors import UNREACHABLE, translated
from cluster.protocol import messages
from queryengine.encoders.plan import MAX_ROW_BYTES
from queryengine.errors import EngineUnavailableError
from runtimeconf.model import MIB

#: How long the cluster may take to respond to anything except a statement.
CALL_S: Final = 10.0
#: An interrupt is repeated after these times if the cluster does not know the operation, which may be just starting.
_AGAIN_S: Final = (0.2, 1.0, 3.0)
_INTERRUPT_S: Final = 15.0

_USER: Final = "querykeep"
_CLIENT: Final = "querykeep"

_OPTIONS: Final = (
    # Some clusters compress unless a client says that it cannot decompress. Compression takes twenty times as long.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # The default of 16 KiB splits each batch of a large result into dozens of frames, which costs both ends time.
    ("grpc.http2.max_frame_size", 4 * MIB),
    # The thread that waits for a response receives it itself, instead of being woken by another thread.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
    ("grpc.max_receive_message_length", MAX_ROW_BYTES + 16 * MIB),
    ("grpc.max_send_message_length", MAX_ROW_BYTES),
    ("grpc.enable_http_proxy", 0),
    # Otherwise a new connection would have to wait for the retry delay of an earlier failed connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.min_reconnect_backoff_ms", 500),
)


class Connection:
    """
    The calls to *cluster*. Thread-safe.

    Methods that wait raise a QueryError (such as EngineUnavailableError if the cluster cannot be reached) or
    SessionLostError.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        target = f"{cluster.address}"
        if cluster.uses_tls:
            authorities = certifi.contents().encode() if cluster.tls_ca is None else cluster.tls_ca.read_bytes()
            credentials = grpc.ssl_channel_credentials(root_certificates=authorities)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._metadata = [("authorization", f"Bearer {cluster.token}")] if cluster.token else []
        self._condition = threading.Condition()
        self._interrupts = 0
        self._is_closed = False

    def option(self, session_id: str, key: str) -> str | None:
        """Return the value of a session setting, starting the session if it does not exist."""
        operation = messages.ConfigRequest.Operation(get_option=messages.ConfigRequest.GetOption(keys=[key]))
        pairs = self._config(session_id, operation)
        return next((pair.value for pair in pairs if pair.HasField("value")), None)

    def options(self, session_id: str, prefix: str) -> dict[str, str]:
        """Return the session settings that begin with *prefix*, with the prefix removed."""
        operation = messages.ConfigRequest.Operation(get_all=messages.ConfigRequest.GetAll(prefix=prefix))
        return {pair.key.removeprefix(prefix): pair.value for pair in self._config(session_id, operation)}

    def set_options(self, session_id: str, values: Mapping[str, str]) -> None:
        """Change session settings."""
        self._config(session_id, _set(values))

    def announce(self, session_id: str, key: str, value: str) -> None:
        """Change a session setting. Does not wait."""
        request = messages.ConfigRequest(**self._identified(session_id), operation=_set({key: value}))
        call = self._call("Config", messages.ConfigResponse)
        with suppress(ValueError):  # The channel has been closed.
            # A call without references is cancelled.
            call.future(request, timeout=CALL_S, metadata=self._metadata).add_done_callback(lambda _: None)

    def unset_option(self, session_id: str, key: str) -> None:
        """Remove a session setting."""
        self._config(session_id, messages.ConfigRequest.Operation(unset=messages.ConfigRequest.Unset(keys=[key])))

    def row_type(
        self,
        session_id: str,
        relation: Any,
        attach: Callable[[Callable[[], None]], None] = lambda _: None,
        *,
        sql: str = "",
    ) -> Any:
        """Return the row type of *relation*. *attach* receives a function that stops the wait."""
        plan = messages.Plan(root=relation)
        request = messages.AnalyzePlanRequest(
            **self._identified(session_id),
            schema=messages.AnalyzePlanRequest.Schema(plan=plan),
        )
        timeout_s = None if sql else CALL_S  # A waiting caller can stop the wait for a statement.
        return self._answer("AnalyzePlan", request, attach=attach, timeout_s=timeout_s, sql=sql).schema.schema

    def command(self, session_id: str, command: Any) -> None:
        """Run a command until it ends."""
        for _ in self._responses(session_id, messages.Plan(command=command), 6 * CALL_S):
            pass

    def rows(self, session_id: str, sql: str) -> list[dict[str, Any]]:
        """Return the rows of an internal query, which are few."""
        found = []
        plan = messages.Plan(root=messages.Relation(sql=messages.SQL(query=sql)))
        for response in self._responses(session_id, plan, CALL_S):
            if response.HasField("arrow_batch"):
                with pa.ipc.open_stream(response.arrow_batch.data) as stream:
                    found += stream.read_all().to_pylist()
        return found

    def execute(
        self, session_id: str, plan: Any, operation_id: str, tags: Sequence[str], *, timeout_s: float | None = None
    ) -> Any:
        """Begin an operation, and return the call with its responses. It raises gRPC errors."""
        reattachable = messages.ReattachOptions(reattachable=True)
        request = messages.ExecutePlanRequest(
            **self._identified(session_id),
            operation_id=operation_id,
            plan=plan,
            tags=tags,
            request_options=[messages.ExecutePlanRequest.RequestOption(reattach_options=reattachable)],
        )
        return self._stream("ExecutePlan", request, timeout_s)

    def reattach(self, session_id: str, operation_id: str, last_response_id: str) -> Any:
        """Continue an operation after the response with this id. See `execute`."""
        request = messages.ReattachExecuteRequest(
            **self._identified(session_id), operation_id=operation_id, last_response_id=last_response_id
        )
        return self._stream("ReattachExecute", request, None)

    def release(self, session_id: str, operation_id: str) -> None:
        """Let the cluster forget an operation whose responses have all arrived."""
        release_all = messages.ReleaseExecuteRequest.ReleaseAll()
        request = messages.ReleaseExecuteRequest(
            **self._identified(session_id), operation_id=operation_id, release_all=release_all
        )
        self._answer("ReleaseExecute", request)

    def interrupt(self, session_id: str, **which: str) -> None:
        """End the operation with this `operation_id`, or all operations with this `operation_tag`. Does not wait."""
        kinds = messages.InterruptRequest.InterruptType
        kind = kinds.Value("INTERRUPT_TYPE_TAG" if "operation_tag" in which else "INTERRUPT_TYPE_OPERATION_ID")
        request = messages.InterruptRequest(**self._identified(session_id), interrupt_type=kind, **which)
        with self._condition:
            self._interrupts += 1
        self._interrupt(request, iter(_AGAIN_S))

    def release_session(self, session_id: str) -> None:
        """End the session."""
        identified = self._identified(session_id)
        self._answer("ReleaseSession", messages.ReleaseSessionRequest(**identified), timeout_s=1.0)

    def close(self, timeout_s: float = 1.0) -> None:
        """Close the connection when the pending interrupts have responses or after *timeout_s* seconds."""
        with self._condition:
            self._condition.wait_for(lambda: not self._interrupts, timeout_s)
            self._is_closed = True
        self._channel.close()

    def _interrupt(self, request: Any, pauses: Iterator[float]) -> None:
        def again(future: Any) -> None:
            has_ended = future.exception() is None and future.result().interrupted_ids
            pause_s = None if has_ended or self._is_closed else next(pauses, None)
            if pause_s is None:
                with self._condition:
                    self._interrupts -= 1
                    self._condition.notify_all()
                return
            timer = threading.Timer(pause_s, self._interrupt, (request, pauses))
            timer.daemon = True
            timer.start()

        call = self._call("Interrupt", messages.InterruptResponse)
        with suppress(ValueError):  # The channel has been closed.
            call.future(request, timeout=_INTERRUPT_S, metadata=self._metadata).add_done_callback(again)

    def _responses(self, session_id: str, plan: Any, timeout_s: float) -> Iterator[Any]:
        operation_id = str(uuid.uuid4())
        try:
            yield from self.execute(session_id, plan, operation_id, (), timeout_s=timeout_s)
        except grpc.RpcError as error:
            raise translated(error) from error
        self.release(session_id, operation_id)

    def _config(self, session_id: str, operation: Any) -> Any:
        request = messages.ConfigRequest(**self._identified(session_id), operation=operation)
        return self._answer("Config", request).pairs

    def _answer(
        self,
        name: str,
        request: Any,
        *,
        attach: Callable[[Callable[[], None]], None] = lambda _: None,
        timeout_s: float | None = CALL_S,
        sql: str = "",
    ) -> Any:
        response = getattr(messages, f"{name}Response")
        try:
            future = self._call(name, response).future(request, timeout=timeout_s, metadata=self._metadata)
            attach(future.cancel)
            return future.result()
        except grpc.RpcError as error:
            raise translated(error, sql) from error
        except (grpc.FutureCancelledError, ValueError) as error:  # ValueError: this process closed the connection.
            raise EngineUnavailableError(UNREACHABLE) from error

    def _call(self, name: str, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/{messages.SERVICE}/{name}",
            request_serializer=_serialised,
            response_deserializer=response.FromString,
        )

    def _stream(self, name: str, request: Any, timeout_s: float | None) -> Any:
        call = self._channel.unary_stream(
            f"/{messages.SERVICE}/{name}",
            request_serializer=_serialised,
            response_deserializer=messages.ExecutePlanResponse.FromString,
        )
        return call(request, timeout=timeout_s, metadata=self._metadata)

    @staticmethod
    def _identified(session_id: str) -> Mapping[str, Any]:
        return {
            "session_id": session_id,
            "user_context": messages.UserContext(user_id=_USER),
            "client_type": _CLIENT,
        }


def _set(values: Mapping[str, str]) -> Any:
    pairs = [messages.KeyValue(key=key, value=value) for key, value in values.items()]
    return messages.ConfigRequest.Operation(set=messages.ConfigRequest.Set(pairs=pairs))


def _serialised(message: Any) -> bytes:
    return bytes(message.SerializeToString())
