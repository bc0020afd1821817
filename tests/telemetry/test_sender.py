"""What a process sends, whoever listens, and what reaches the collector."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from msgspec.structs import astuple, replace

import telemetry.collector
import telemetry.state
from telemetry import sender
from telemetry.collector import Collector
from telemetry.errors import TelemetryUnavailableError
from telemetry.events import (
    AuthenticationFailuresEvent,
    DroppedEvent,
    EmptiedEvent,
    Event,
    Question,
    RefreshEvent,
    RequestsEvent,
    StatementEvent,
    WorkerLostEvent,
    decode,
    decode_all,
    encode,
)
from telemetry.sender import WATCH_SOCKET, Sender, SocketLink
from tests.system.harness import PATIENCE_S, REPOSITORY, wait_for

STATEMENT = StatementEvent(
    "q1", "r1", "http", "f1", "app", "ok", 1.5, 10.0, 1.0, 2.0, 3.0, 0.5, 7, 700, "miss", "s1", 'SELECT "\n"', "t1"
)
QUESTION = Question("history", "f1", 10)
EVENTS: list[Event] = [
    STATEMENT,
    RequestsEvent("/v1/sql", 200, 0.5, [1] + [0] * 15),
    AuthenticationFailuresEvent("unknown_key", 3),
    WorkerLostEvent("time", -14, "q1"),
    RefreshEvent("orders", "failed", 2.5, 0.25, None),
    EmptiedEvent("orders"),
    DroppedEvent(4),
]


class Recorder:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def take(self, events: Sequence[Event]) -> None:
        self.events += events


class Faulty:
    """Fails on every event."""

    def take(self, events: Sequence[Event]) -> None:
        raise RuntimeError("on purpose")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def collector(tmp_path: Path, recorder: Recorder) -> Iterator[Collector]:
    def answer(question: Question) -> list[str]:
        if question.about != "history":
            raise LookupError
        return [event.query_id for event in recorder.events if isinstance(event, StatementEvent)][: question.limit]

    made = Collector(tmp_path / WATCH_SOCKET, [Faulty(), recorder], answer)
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    telemetry.state.disconnect()  # A test of another file may have connected this process: it stays connected.
    yield
    telemetry.state.disconnect()


def as_json(event: Event) -> bytes:
    """Return *event* as a line of the JSON module, which writes any number."""
    return json.dumps([event.__struct_config__.tag, *astuple(event)]).encode()


#: What no process sends: each would leave the history without an answer, or a counter that falls or is no number.
_OUT_OF_RANGE: list[Event] = [
    *(replace(STATEMENT, started=at) for at in (float("nan"), float("inf"), -1.0, 1e30, 10**400)),
    *(replace(STATEMENT, total_ms=time_ms) for time_ms in (float("nan"), float("inf"), -0.5, 10**400)),
    *(replace(STATEMENT, rows=rows) for rows in (-1, 10**30)),
    *(RequestsEvent("/v1/sql", 200, 0.5, buckets) for buckets in ([], [1] * 15, [-1] * 16)),
    RequestsEvent("/v1/sql", 200, 0.5, ["1"] * 16),  # type: ignore[list-item]
    RequestsEvent("/v1/sql", 200, 0.5, [True] * 16),
    RequestsEvent("/v1/sql", -200, 0.5, [1] * 16),
    AuthenticationFailuresEvent("unknown_key", -3),
    RefreshEvent("orders", "failed", 2.5, float("nan"), None),
    DroppedEvent(-1),
]


@pytest.mark.parametrize("event", _OUT_OF_RANGE, ids=repr)
def test_an_event_with_numbers_that_nobody_can_count_is_none(event: Event) -> None:
    with pytest.raises(ValueError, match=r"\$\[\d+\]|NaN|malformed"):
        decode(as_json(event))


def test_a_digest_from_a_worker_cannot_forge_events() -> None:
    forged = encode(replace(STATEMENT, query_id="forged", fingerprint="of another key")).decode()

    line = encode(replace(STATEMENT, statement=f's1",null,"","statement"]\n{forged}["'))

    assert line.count(b"\n") == 1
    assert decode(line).query_id == "q1"  # type: ignore[union-attr]


def test_half_a_character_from_a_worker_loses_no_event() -> None:
    line = encode(replace(STATEMENT, statement="s\ud8001", code="\udfff"))

    assert decode(line) == replace(STATEMENT, statement="s?1", code="?")


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_survives_its_line(event: Event) -> None:
    line = encode(event)

    assert line.count(b"\n") == 1
    assert decode(line) == event


def test_events_of_every_kind_arrive_in_order_though_another_aggregate_fails(
    tmp_path: Path, collector: Collector, recorder: Recorder
) -> None:
    link = SocketLink(tmp_path / WATCH_SOCKET)

    for event in EVENTS * 100:
        link.put(event)

    wait_for(lambda: len(recorder.events) >= len(EVENTS) * 100, "the events")
    assert recorder.events == EVENTS * 100
    link.close()


def test_requests_and_failures_are_added_up(tmp_path: Path, collector: Collector, recorder: Recorder) -> None:
    telemetry.state.connect(tmp_path, has_thread=False)
    for seconds in (0.0005, 0.3, 100.0):
        telemetry.state.count_request("/v1/sql", 200, seconds)
    telemetry.state.count_request("/health", 200, 0.0)
    for _ in range(3):
        telemetry.state.count_failure("missing_key")

    telemetry.state.flush()

    wait_for(lambda: len(recorder.events) == 3, "the sums")
    sql, health, failures = recorder.events
    assert isinstance(sql, RequestsEvent)
    assert (sql.route, sql.status) == ("/v1/sql", 200)
    assert sql.seconds == pytest.approx(100.3005)
    assert (sum(sql.buckets), sql.buckets[0], sql.buckets[-1]) == (3, 1, 1)
    assert isinstance(health, RequestsEvent)
    assert failures == AuthenticationFailuresEvent("missing_key", 3)


def test_a_thread_sends_the_sums_by_itself(tmp_path: Path, collector: Collector, recorder: Recorder) -> None:
    telemetry.state.connect(tmp_path)
    telemetry.state.count_failure("missing_key")

    wait_for(lambda: recorder.events, "the sum")

    assert recorder.events == [AuthenticationFailuresEvent("missing_key", 1)]
    telemetry.state.connect(tmp_path, keeps_sql=True)
    assert telemetry.state.keeps_sql()


def test_what_was_sent_before_a_kill_arrives(tmp_path: Path, collector: Collector, recorder: Recorder) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from msgspec.structs import replace
import telemetry.state
from tests.telemetry.test_sender import STATEMENT
telemetry.state.connect(Path({str(tmp_path)!r}))
for number in range(50):
    telemetry.state.send(replace(STATEMENT, query_id=str(number)))
print("sent", flush=True)
import time; time.sleep(600)
"""
    with Popen([sys.executable, "-c", program], stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"
        process.send_signal(signal.SIGKILL)

    wait_for(lambda: len(recorder.events) >= 50, "the events of the dead")
    assert [event.query_id for event in recorder.events if isinstance(event, StatementEvent)] == [
        str(number) for number in range(50)
    ]


def test_events_wait_for_a_collector_that_starts_later_or_again(tmp_path: Path) -> None:
    link = SocketLink(tmp_path / WATCH_SOCKET)
    link.put(STATEMENT)

    for _ in range(2):
        recorder = Recorder()
        collector = Collector(tmp_path / WATCH_SOCKET, [recorder], lambda _: None)
        collector.start()
        link.flush()
        wait_for(lambda events=recorder.events: events, "the event")  # type: ignore[misc]
        assert recorder.events == [STATEMENT]
        collector.stop()
        link.put(STATEMENT)
        if link._socket is not None:  # The system took it before it noticed the end.
            link.put(STATEMENT)
            link._unsent.clear()
            link.put(STATEMENT)
    link.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a collector that reads when the test does."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / WATCH_SOCKET))
        made.listen()
        yield made


@pytest.fixture
def link(tmp_path: Path, listener: socket.socket) -> Iterator[SocketLink]:
    made = SocketLink(tmp_path / WATCH_SOCKET)
    yield made
    made.close()


def test_what_has_no_room_is_kept_up_to_a_bound_and_the_rest_is_counted(
    link: SocketLink, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_UNSENT_BYTES", 4096)
    connection, _ = listener.accept()
    connection.setblocking(False)
    events: list[Event] = []
    while link._dropped < 10:
        link.put(STATEMENT)
        events.append(STATEMENT)
    assert len(link._unsent) <= 4096

    events[-10:] = [DroppedEvent(10), STATEMENT]
    received = b""
    with connection:
        while received.count(b"\n") < len(events):
            try:
                received += connection.recv(1 << 20)
            except BlockingIOError:
                if link._unsent or link._dropped:
                    link.flush()
                else:
                    link.put(STATEMENT)

    assert list(decode_all(received)) == events


def test_what_was_kept_goes_with_the_next_event_once_there_is_room(link: SocketLink, listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.setblocking(False)
    sent = 0
    while len(link._unsent) < 10_000:
        link.put(STATEMENT)
        sent += 1

    received = b""
    with connection:
        while received.count(b"\n") < sent:
            try:
                received += connection.recv(1 << 20)
            except BlockingIOError:
                assert link._dropped == 0, "kept, and not sent"
                link.put(STATEMENT)
                sent += 1

    assert list(decode_all(received)) == [STATEMENT] * sent


def test_a_line_that_was_cut_by_the_end_of_a_connection_is_sent_again(
    link: SocketLink, listener: socket.socket
) -> None:
    first, _ = listener.accept()
    while not link._unsent:
        link.put(replace(STATEMENT, sql="x" * 1000))
    link.put(STATEMENT)
    kept = bytes(link._unsent)
    first.close()
    link.flush()  # finds out
    link.flush()  # connects and sends
    second, _ = listener.accept()

    with second:
        assert second.recv(1 << 20) == kept


def test_without_a_receiver_nothing_happens(tmp_path: Path) -> None:
    telemetry.state.send(STATEMENT)
    telemetry.state.count_failure("missing_key")
    telemetry.state.count_request("/health", 200, 0.0)
    telemetry.state.flush()

    assert not telemetry.state.is_on()
    assert not telemetry.state.keeps_sql()
    with pytest.raises(TelemetryUnavailableError):
        telemetry.state.ask(QUESTION)


def test_questions_are_answered_with_what_was_sent_before(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry.state.connect(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(telemetry.state, "TIMEOUT_S", PATIENCE_S)
        for number in range(3):
            telemetry.state.send(replace(STATEMENT, query_id=str(number)))
            assert telemetry.state.ask(replace(QUESTION, limit=number + 1)) == [str(one) for one in range(number + 1)]
    for unknown in (Question("statistics", "f1", 1), Question("history", "f1", -1), replace(QUESTION, limit="x")):
        with pytest.raises(TelemetryUnavailableError):
            telemetry.state.ask(unknown)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_long_answer_waits_for_its_reader_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    monkeypatch.setattr(telemetry.collector, "ANSWER_S", PATIENCE_S if is_read else 0.1)
    text = "\n\x85\u2028\U0001f600" + "x" * (12 * 1024 * 1024)
    asked: list[Question] = []

    def answer(question: Question) -> str:
        asked.append(question)
        return text

    made = Collector(tmp_path / WATCH_SOCKET, [], answer)
    made.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(tmp_path / WATCH_SOCKET))
        client.sendall(encode(QUESTION) * 1000)
        wait_for(lambda: asked, "the question")
        if not is_read:
            wait_for(lambda: "answer" not in {thread.name for thread in threading.enumerate()}, "the end of its time")
        received = b"".join(iter(lambda: client.recv(1 << 20), b""))
    made.stop()

    assert (received == json.dumps(text, ensure_ascii=False).encode()) == is_read
    assert asked == [QUESTION]


def test_a_single_process_counts_and_answers_itself(recorder: Recorder) -> None:
    def answer(question: Question) -> object:
        assert question == QUESTION
        raise LookupError

    telemetry.state.deliver_to(lambda event: recorder.take([event]), answer)
    telemetry.state.send(STATEMENT)
    telemetry.state.count_failure("missing_key")

    telemetry.state.flush()

    assert recorder.events == [STATEMENT, AuthenticationFailuresEvent("missing_key", 1)]
    with pytest.raises(TelemetryUnavailableError):
        telemetry.state.ask(QUESTION)


def test_many_threads_lose_and_mix_nothing(tmp_path: Path, collector: Collector, recorder: Recorder) -> None:
    link = SocketLink(tmp_path / WATCH_SOCKET)
    sums = Sender(link, has_thread=False)

    def work(number: int) -> None:
        for _ in range(200):
            link.put(replace(STATEMENT, query_id=f"q{number}"))
            sums.count_request("/v1/sql", 200, 0.01)
            sums.count_failure("missing_key")

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sums.flush()

    wait_for(lambda: len(recorder.events) >= 802, "the events")
    ids = [event.query_id for event in recorder.events if isinstance(event, StatementEvent)]
    assert sorted(ids) == sorted(f"q{number}" for number in range(4) for _ in range(200))
    assert {sum(event.buckets) for event in recorder.events if isinstance(event, RequestsEvent)} == {800}
    link.close()


def test_the_collector_survives_nonsense_and_a_clean_up(
    tmp_path: Path, collector: Collector, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / WATCH_SOCKET
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        for nonsense in (b"not json", b"[" * 60_000, b'["of another release", "soon"]', b"[]", b"7"):
            client.sendall(nonsense + b"\n")
        of_other_types = json.loads(encode(STATEMENT))
        of_other_types[5:8] = None, 1.0, "soon"
        client.sendall(json.dumps(of_other_types).encode() + b"\n" + encode(STATEMENT))
        wait_for(lambda: recorder.events, "the event between the nonsense")
        client.sendall(b"x" * 70_000)
        assert client.recv(1) == b""
    assert [one.getMessage() for one in caplog.records if "another release" in one.getMessage()] == [
        "events from another release are ignored"
    ]
    assert recorder.events == [STATEMENT]

    tmp_path.rename(tmp_path.with_name("moved"))
    wait_for(lambda: "cannot be recreated" in caplog.text, "the report")
    tmp_path.mkdir()
    wait_for(path.exists, "another socket")
    assert path.stat().st_mode & 0o777 == 0o600
    link = SocketLink(path)
    link.put(STATEMENT)
    wait_for(lambda: len(recorder.events) == 2, "the event over the new socket")
    link.close()
