"""No key keeps another out: calls that wait for their client make room."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal

import grpc
import pyarrow as pa
import pytest

from authkeys.access import Access
from authkeys.keys import KeySet
from flightapi import calls
from flightapi.errors import CallsBusyError
from flightapi.open_calls import MAX_SILENT_OF_KEY, PATIENCE_S, OpenCalls
from flightapi.protocol import messages
from flightapi.protocol.messages import PATHS
from flightapi.server import SPARE_CALLS
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import KeyLimits, RuntimeConfig
from runtimeconf.secret import Secret
from tests.flightapi.endpoint import Clock, Endpoint, Metadata, Silent, bearer, row_of, serving, upload
from tests.flightapi.test_named_keys import named
from tests.queryengine.publishing import wait_until
from tests.system.harness import K1, K2

SILENT = bearer("silent-key-Zq8vT3mN6bX9cL2pR5sW7y")
#: More calls than there may be at once.
MORE = 4 + 64 + SPARE_CALLS + 40


@pytest.fixture
def crowded(config: RuntimeConfig, engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """An endpoint whose silent calls end only to make room."""
    monkeypatch.setattr("flightapi.service.IDLE_S", 600.0)
    ops = named("ops", SILENT, rights=frozenset({"refresh"}), limits=KeyLimits(requests_per_minute=1, concurrent=1))
    access = Access(key_set=KeySet([Secret(K1), Secret(K2)], b"salt", [ops]))
    with serving(config, engine, access) as running:
        yield running


@contextmanager
def channels(endpoint: Endpoint, number: int) -> Iterator[list[Endpoint]]:
    """Open *number* connections: each has a limit on its calls."""
    address, options = f"127.0.0.1:{endpoint.port}", [("grpc.use_local_subchannel_pool", 1)]
    with ExitStack() as stack:
        opened = [stack.enter_context(grpc.insecure_channel(address, options=options)) for _ in range(number)]
        yield [replace(endpoint, channel=channel) for channel in opened]


OTHER_METHODS = ("GetFlightInfo", "DoAction", "ListActions")


@pytest.mark.parametrize(
    "method",
    ["DoGet", "DoPut", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHER_METHODS)],
)
def test_silent_calls_of_one_key_do_not_keep_another_out(crowded: Endpoint, silent: Silent, method: str) -> None:
    with channels(crowded, 2) as connections:
        begun = []
        for one in connections:
            begun += [silent(one, method, SILENT) for _ in range(MORE // 2)]
            assert one.sql("SELECT 1 AS a").to_pylist() == [{"a": 1}], "the calls before it have arrived"

        for _ in range(20):
            assert crowded.sql("SELECT 1 AS a").to_pylist() == [{"a": 1}]

        wait_until(lambda: sum(not call.done() for call in begun) <= MAX_SILENT_OF_KEY)
        assert {call.code() for call in begun if call.done()} == {grpc.StatusCode.CANCELLED}
        assert all(call.done() for call in begun[: MORE // 4]), "the oldest end first"


def test_a_key_without_a_name_does_not_keep_another_out(crowded: Endpoint, silent: Silent) -> None:
    with channels(crowded, 2) as connections:
        begun = [silent(one, "DoGet", bearer(K2)) for one in connections for _ in range(MORE // 2)]

        assert crowded.sql("SELECT 1 AS a").to_pylist() == [{"a": 1}]

        wait_until(lambda: sum(not call.done() for call in begun) <= MAX_SILENT_OF_KEY)


def test_a_few_silent_calls_stay(crowded: Endpoint, silent: Silent) -> None:
    begun = [silent(crowded, "DoGet", SILENT) for _ in range(MAX_SILENT_OF_KEY)]
    ticks: list[None] = []
    wait_until(lambda: all(not call.done() for call in begun))
    crowded.server.each_tick(lambda: ticks.append(None))

    wait_until(lambda: len(ticks) > 2 + PATIENCE_S / calls.TICK_S)

    assert not any(call.done() for call in begun)


def test_uploads_that_trickle_make_room(crowded: Endpoint, silent: Silent) -> None:
    handle = crowded.prepare("SELECT $1::INTEGER AS a", bearer(K2)).prepared_statement_handle
    first, *_ = upload(handle, row_of(a=pa.array([1])))
    with channels(crowded, 2) as connections:
        begun = [silent(one, "DoPut", bearer(K2), [first]) for one in connections for _ in range(MORE // 2)]

        assert crowded.sql("SELECT 1 AS a").to_pylist() == [{"a": 1}]

        wait_until(lambda: sum(not call.done() for call in begun) <= MAX_SILENT_OF_KEY)


def test_all_messages_of_a_call_share_one_time_limit(
    config: RuntimeConfig, engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch, silent: Silent
) -> None:
    monkeypatch.setattr("flightapi.service.IDLE_S", 2.0)
    is_over = threading.Event()
    with serving(config, engine) as endpoint:
        handle = endpoint.prepare("SELECT $1::INTEGER AS a").prepared_statement_handle
        first, *_ = upload(handle, row_of(a=pa.array([1])))
        nothing = messages.FlightData(app_metadata=b"x").SerializeToString()

        def trickle() -> Iterator[bytes]:
            yield first
            while not is_over.wait(0.1):
                yield nothing

        call = silent(endpoint, "DoPut", bearer(K1), trickle())
        call.add_done_callback(lambda _: is_over.set())
        with pytest.raises(grpc.RpcError) as ended:
            list(call)

        assert ended.value.code() is grpc.StatusCode.CANCELLED


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def without_window(port: int, number: int, path: str, metadata: Metadata) -> socket.socket:
    """Send *number* calls with an empty message over one connection that lets the server send no data at all."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    fields += [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *((key, str(value)) for key, value in metadata),
    ]
    # Literal header fields without indexing and Huffman codes (RFC 7541, 6.2.2).
    head = b"".join(b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in field) for field in fields)
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, (4).to_bytes(2) + (0).to_bytes(4))
    for stream in range(1, 2 * number, 2):
        sent += frame(1, 4, stream, head) + frame(0, 1, stream, bytes(5))
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(sent)
    return connection


def test_calls_whose_answers_nobody_reads_do_not_keep_another_out(crowded: Endpoint) -> None:
    connections = [without_window(crowded.port, MORE // 2, PATHS["ListActions"], SILENT) for _ in range(2)]
    wait_until(lambda: len(crowded.server.open_calls) > MORE - 50)

    for _ in range(20):
        assert crowded.sql("SELECT 1 AS a").to_pylist() == [{"a": 1}]

    for connection in connections:
        connection.close()
    wait_until(lambda: len(crowded.server.open_calls) == 0)


class Call:
    """A call whose wait a test sets."""

    def __init__(self, key: str, waits_for: Literal["", "message", "reader"] = "message", began: float = 0.0) -> None:
        self.key = key
        self.began = self.waits_since = began
        self.waits_for = waits_for
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def enter(stack: ExitStack) -> Callable[[OpenCalls, Call], Call]:
    def enter(open_calls: OpenCalls, call: Call) -> Call:
        stack.enter_context(open_calls.enter(call))
        return call

    return enter


Enter = Callable[[OpenCalls, Call], Call]


def test_the_oldest_silent_call_of_the_largest_key_makes_room(enter: Enter) -> None:
    open_calls = OpenCalls(4, Clock())
    working, oldest, newer = (enter(open_calls, Call("many", kind)) for kind in ("", "message", "message"))
    other = enter(open_calls, Call("few"))

    enter(open_calls, Call("few"))

    assert [call.is_ended for call in (working, oldest, newer, other)] == [False, True, False, False]
    assert len(open_calls) == 4


def test_a_key_makes_room_for_itself(enter: Enter) -> None:
    open_calls = OpenCalls(3, Clock())
    own = [enter(open_calls, Call("many")) for _ in range(2)]
    other = enter(open_calls, Call("few"))

    enter(open_calls, Call("many"))

    assert [call.is_ended for call in (*own, other)] == [True, False, False]


def test_readers_make_room_for_keys_with_fewer_calls_only(enter: Enter) -> None:
    open_calls = OpenCalls(3, Clock())
    later, since_long, working = (
        enter(open_calls, Call("many", "reader", 2.0)),
        enter(open_calls, Call("many", "reader", 1.0)),
        enter(open_calls, Call("many", "")),
    )

    with pytest.raises(CallsBusyError):
        enter(open_calls, Call("many"))
    enter(open_calls, Call("few"))

    assert [call.is_ended for call in (later, since_long, working)] == [False, True, False]


def test_calls_that_work_never_make_room(enter: Enter) -> None:
    open_calls = OpenCalls(2, Clock())
    working = [enter(open_calls, Call("many", "")) for _ in range(2)]

    with pytest.raises(CallsBusyError):
        enter(open_calls, Call("few"))

    assert not any(call.is_ended for call in working)
    assert len(open_calls) == 2


def test_many_keys_with_one_silent_call_each_do_not_keep_another_out(enter: Enter) -> None:
    clock = Clock()
    open_calls = OpenCalls(2, clock)
    silent = [enter(open_calls, Call(key)) for key in "ab"]

    with pytest.raises(CallsBusyError):
        enter(open_calls, Call("few"))
    clock.now = PATIENCE_S
    enter(open_calls, Call("few"))

    assert [call.is_ended for call in silent] == [True, False]


def test_of_one_key_only_so_many_calls_stay_silent(enter: Enter) -> None:
    clock = Clock()
    open_calls = OpenCalls(1000, clock)
    silent = [enter(open_calls, Call("many")) for _ in range(MAX_SILENT_OF_KEY + 2)]
    reading = enter(open_calls, Call("many", "reader"))
    clock.now = PATIENCE_S
    young = enter(open_calls, Call("many", began=clock.now))

    open_calls.trim()

    assert [call.is_ended for call in silent] == [True] * 2 + [False] * MAX_SILENT_OF_KEY
    assert not reading.is_ended
    assert not young.is_ended


def test_nothing_is_left_of_calls_that_ended() -> None:
    open_calls = OpenCalls(1, Clock())

    with ExitStack() as stack:
        stack.enter_context(open_calls.enter(Call("a")))
        stack.enter_context(open_calls.enter(Call("a")))

    assert len(open_calls) == 0
    with open_calls.enter(Call("b", "")):
        assert len(open_calls) == 1
