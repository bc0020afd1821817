import json
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from datasources import control
from datasources.control import AdmittedSql, DatasetState, RefreshRun, SharingState, is_own
from datasources.errors import (
    AccelerationDisabledError,
    DatasetError,
    DatasetsUnavailableError,
    SchemaChangedError,
    SharedStorageError,
    SnapshotError,
    SourceEmptyError,
    SourceError,
    TimeColumnMissingError,
    UnknownDatasetError,
)
from datasources.refresh import control_socket
from datasources.refresh.control_socket import (
    SOCKET_NAME,
    ControlClient,
    ControlServer,
    ProtocolError,
    Request,
    answer,
    decode_reply,
    decode_request,
    encode,
)
from queryengine.manifest import Manifest, write_manifest
from system.errors import StateDirectoryError
from tests.queryengine.test_manifest import FLIGHTS
from tests.system.harness import wait_for

STATE = DatasetState(
    from_="file:a.csv",
    name="ä",
    acceleration_enabled=True,
    status="Ready",
    rows=1,
    refreshed_at="2026-01-01T00:00:00.000Z",
    snapshot="a-1",
    error=None,
    checked_at="2026-01-01T00:10:00.000Z",
    next_refresh_at=None,
    age_s=90,
    bytes=274432,
)
RUN = RefreshRun(id="1", status="running", requested_at="r", started_at="s")
SHARING = SharingState(node="n", publisher="n", epoch=3, error=None, answered_s=1)


class Fixed:
    """A `DatasetControl` with one answer to everything, or one error."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.generation = 1
        self.missing: tuple[str, ...] = ("a",)
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def sharing(self) -> SharingState | None:
        return SHARING

    def waiting_for(self) -> tuple[str, ...]:
        self._raise()
        return self.missing

    def is_loaded(self) -> bool:
        return not self.waiting_for()

    def datasets(self) -> tuple[DatasetState, ...]:
        self._raise()
        return (STATE,)

    def request_refresh(self, name: str, sql: str | None = None, **more: Any) -> RefreshRun:
        self._raise()
        self.asked.append((name, sql, more))
        return RUN

    def history(self, name: str) -> tuple[RefreshRun, ...]:
        self._raise()
        self.asked.append((name, None, {}))
        return (RUN, RUN)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Fixed]:
    fixed = Fixed()
    server = ControlServer(tmp_path, fixed)
    yield fixed
    server.close()


def send(directory: Path, data: bytes, *, then_close: bool = True) -> bytes:
    """Write *data* to the socket as it is, and return all that comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(directory / SOCKET_NAME))
        connection.sendall(data)
        if then_close:
            connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as stream:
            return stream.read()


def test_the_client_gets_what_the_control_says(tmp_path: Path, served: Fixed) -> None:
    client = ControlClient(tmp_path)

    assert client.sharing() == SHARING
    assert client.waiting_for() == ("a",)
    assert not client.is_loaded()
    served.missing = ()
    assert client.is_loaded()
    assert not ControlClient(tmp_path, generation=2).is_loaded()  # of a refresher that has not taken it yet
    assert client.datasets() == (STATE,)
    assert is_own(served)
    assert [is_own(ControlClient(tmp_path, generation=number)) for number in (0, 1)] == [True, True]
    served.generation = 2
    assert not is_own(ControlClient(tmp_path, generation=1))
    with pytest.raises(DatasetsUnavailableError):
        ControlClient(tmp_path, generation=1).request_refresh("a", AdmittedSql("SELECT 1"))
    assert ControlClient(tmp_path, generation=1).request_refresh("a") == RUN
    served.asked.clear()
    assert client.history("a") == (RUN, RUN)
    assert client.request_refresh("a") == RUN
    assert client.request_refresh('a "\n\ud800ü', AdmittedSql("SELECT\n1")) == RUN
    assert client.request_refresh("a", mode="append", jitter_max_s=2.5, caller="reports") == RUN
    as_declared = {"mode": None, "jitter_max_s": 0.0, "caller": ""}
    assert served.asked == [
        ("a", None, {}),
        ("a", None, as_declared),
        ('a "\n\ud800ü', "SELECT\n1", as_declared),
        ("a", None, {"mode": "append", "jitter_max_s": 2.5, "caller": "reports"}),
    ]


def test_only_a_process_that_leaves_a_request_open_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "_TIMEOUT_S", 0.1)
    client = ControlClient(tmp_path)
    assert client.is_answered()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        assert client.is_answered()
        listener.listen(0)
        assert not client.is_answered()  # It accepts nothing.
        assert not client.is_answered()  # Its queue is full.


def test_a_control_that_waits_for_a_lock_gives_no_answer(
    tmp_path: Path, served: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "_TIMEOUT_S", 1.0)
    client, lock = ControlClient(tmp_path), threading.Lock()

    def wait() -> None:
        with lock:
            pass

    monkeypatch.setattr(served, "_raise", wait)
    assert client.is_answered()

    with lock:
        assert not client.is_answered()

    assert client.is_answered()


def test_a_process_that_starts_during_a_reload_goes_by_the_published_data(tmp_path: Path, served: Fixed) -> None:
    write_manifest(tmp_path, Manifest(generation=1, snapshots=(FLIGHTS,)))
    served.generation = 2

    assert ControlClient(tmp_path, ["flights"], generation=1).is_loaded()
    assert not ControlClient(tmp_path, ["flights", "a"], generation=1).is_loaded()
    assert not ControlClient(tmp_path, ["flights"], generation=2).is_loaded()


def test_the_socket_is_private_replaces_a_dead_one_and_goes_with_the_server(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET_NAME))
    server = ControlServer(tmp_path, Fixed())
    mode = (tmp_path / SOCKET_NAME).stat().st_mode

    assert ControlClient(tmp_path).datasets() == (STATE,)
    server.close()

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert list(tmp_path.iterdir()) == []


ERRORS: list[Exception] = [
    UnknownDatasetError("x"),
    AccelerationDisabledError("x"),
    TimeColumnMissingError("x"),
    DatasetsUnavailableError(),
    SnapshotError("No space."),
    SharedStorageError("It does not answer."),
    SourceError("No file."),
    SchemaChangedError("b is gone."),
    SourceEmptyError("b is gone."),
    DatasetError("Failed."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_the_class_it_was(tmp_path: Path, served: Fixed, error: Exception) -> None:
    served.error = error

    with pytest.raises(type(error)) as caught:
        ControlClient(tmp_path).request_refresh("x")

    assert type(caught.value) is type(error)
    assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


def test_readiness_that_gets_stale_with_time_is_asked_for_again(
    tmp_path: Path, served: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "RECHECK_S", 1000.0)
    write_manifest(tmp_path, Manifest(generation=1, snapshots=(FLIGHTS,)))
    client = ControlClient(tmp_path, ["flights"], generation=1, gets_stale=True)
    served.missing = ("flights",)
    assert not client.is_loaded()
    served.missing = ()
    assert client.is_loaded()

    monkeypatch.setattr(control, "RECHECK_S", 0.05)
    served.missing = ("flights",)
    wait_for(lambda: not client.is_loaded(), "the end of readiness")
    served.error = DatasetsUnavailableError()
    assert not client.is_loaded()


def test_every_class_of_error_is_tried_here() -> None:
    def tree(cls: type[Exception]) -> set[type[Exception]]:
        return {cls}.union(*map(tree, cls.__subclasses__()))

    assert tree(DatasetError) <= {type(error) for error in ERRORS}


def test_an_unexpected_error_is_logged_and_reported_without_detail(
    tmp_path: Path, served: Fixed, caplog: pytest.LogCaptureFixture
) -> None:
    served.error = RuntimeError("secret")

    with pytest.raises(DatasetError, match=r"^The refresher failed; see the runtime log\.$"):
        ControlClient(tmp_path).datasets()

    assert "A control request failed" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b'{"call": "datasets"}',
        b"null\n",
        b"[]\n",
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b'{"call": "drop"}\n',
        b'{"call": ["datasets"]}\n',
        b'{"call": "history", "name": 1}\n',
        b'{"call": "refresh", "name": "a", "refresh_sql": "SELECT 1"}\n',  # which nobody has checked
        b'{"call": "refresh", "name": "a", "admitted_sql": 1}\n',
        b'{"call": "refresh", "name": "a", "mode": "both"}\n',
        b'{"call": "refresh", "name": "a", "jitter_max_s": "1s"}\n',
        b'{"call": "refresh", "name": "a", "jitter_max_s": -1}\n',
        b'{"call": "refresh", "name": "a", "caller": null}\n',
        b'{"call": "refresh", "name": "a", "caller": "' + b"x" * 1001 + b'"}\n',
        b'{"call": "refresh", "name": "a", "jitter_max_s": NaN}\n',
        b'{"call": "datasets", "more": 1}\n',
    ],
)
def test_an_invalid_request_is_answered_with_an_error(tmp_path: Path, served: Fixed, data: bytes) -> None:
    reply = json.loads(send(tmp_path, data))

    assert reply["error"]["code"] == "protocol_error"
    assert served.asked == []
    assert ControlClient(tmp_path).datasets() == (STATE,)


def test_a_request_that_is_too_long_is_refused(tmp_path: Path, served: Fixed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "MAX_REQUEST_BYTES", 100)

    reply = json.loads(send(tmp_path, encode(msgspec.to_builtins(Request(call="refresh", name="a" * 100)))))

    assert reply["error"]["code"] == "protocol_error"
    assert served.asked == []


def test_a_silent_client_blocks_no_other(tmp_path: Path, served: Fixed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "_TIMEOUT_S", 1.0)

    assert send(tmp_path, b"", then_close=False) == b""
    assert ControlClient(tmp_path).datasets() == (STATE,)


def test_many_clients_at_once_are_answered(tmp_path: Path, served: Fixed) -> None:
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda _: ControlClient(tmp_path).datasets(), range(100)))

    assert answers == [(STATE,)] * 100


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\n",
        b"{}\n",
        b'{"result": 1}\n',
        b'{"result": [1]}\n',
        b'{"result": [{}]}\n',
        b'{"result": {"id": 1, "status": "queued", "requested_at": ""}}\n',
        encode({"result": [{**asdict(STATE), "status": "Odd"}]}),
        b'{"error": "x"}\n',
        b'{"error": {"code": "x"}}\n',
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.datasets(),
        lambda client: client.history("a"),
        lambda client: client.request_refresh("a"),
    ],
)
def test_an_invalid_reply_counts_as_no_answer(
    tmp_path: Path, reply: bytes, call: Callable[[ControlClient], Any]
) -> None:
    def impostor() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(reply)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()
        thread = threading.Thread(target=impostor)
        thread.start()

        with pytest.raises(DatasetsUnavailableError):
            call(ControlClient(tmp_path))

        thread.join()


def test_a_socket_that_cannot_be_created_is_reported_and_not_answered_for(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir()

    with pytest.raises(StateDirectoryError, match=r"^The control socket cannot be created in the state directory"):
        ControlServer(directory, Fixed())
    with pytest.raises(DatasetsUnavailableError):
        ControlClient(directory).datasets()


texts = st.text(st.characters(), max_size=50)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = ["call", "name", "admitted_sql", "mode", "jitter_max_s", "result", "error", "x"]
fields = st.dictionaries(st.sampled_from(names), values)
lines = st.one_of(
    st.binary(max_size=100),
    st.binary(max_size=100).map(lambda data: data + b"\n"),
    fields.map(lambda data: json.dumps(data).encode() + b"\n"),
    st.fixed_dictionaries({"error": st.fixed_dictionaries({"code": values, "message": values})}).map(
        lambda data: json.dumps(data).encode() + b"\n"
    ),
)


@given(
    st.builds(
        Request,
        call=st.sampled_from(["datasets", "waiting_for", "history", "refresh"]),
        name=texts,
        admitted_sql=texts,
        mode=st.sampled_from([None, "full", "append"]),
        jitter_max_s=st.floats(0, 1e8),
        caller=st.text(max_size=1000),
    )
)
def test_any_request_survives_the_wire(request: Request) -> None:
    assert decode_request(encode(msgspec.to_builtins(request))) == request


@given(lines)
def test_no_line_makes_a_decoder_fail_otherwise_and_every_line_gets_one_back(line: bytes) -> None:
    with suppress(ProtocolError):
        assert isinstance(decode_request(line).name, str)
    try:
        decode_reply(line, "a")
    except (ProtocolError, DatasetError):
        pass
    else:
        assert b'"result"' in line
    reply = answer(Fixed(), line)
    assert reply.count(b"\n") == 1
    assert json.loads(reply).keys() in ({"result"}, {"error"})
