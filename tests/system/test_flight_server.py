"""Flight SQL as a part of a running system: its start and end, its limits, clients that leave or fall silent."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from flightapi.protocol.messages import PATHS
from supervisor.parts import CANNOT_START
from tests.clients.runtime import FlightServer
from tests.flightapi.endpoint import bearer, table_of, ticket
from tests.system.harness import K1, K2, KEYED, PYTHON, Server, run_program, taken_port, wait_for
from tests.system.processes import MIB, busy_engine_workers, family, memory_bytes

#: More rows than all buffers hold on the way to a client that reads only the first.
MANY_ROWS = "SELECT range AS i FROM range(8000000)"
#: Runs for hours.
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = -1"
#: Rows for hours, faster than most clients take them.
ENDLESS_ROWS = "SELECT range, 'x' || range AS text FROM range(1000000000000)"

#: Asks for rows, says so when the first are there, and takes the rest as it is told.
CLIENT = """
import os, signal, sys, grpc
address, key, ticket = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
call = channel.stream_stream("/arrow.flight.protocol.FlightService/DoGet")
answer = call(iter([ticket]), metadata=[("authorization", "Bearer " + key)])
next(answer)
next(answer)
print("reading", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServer]:
    with FlightServer(tmp_path_factory.mktemp("flight")) as running:
        yield running


def flight_part(server: Server) -> int:
    """Return the process id of the part, once it runs."""

    def find() -> int | None:
        members = family(server.process.pid)
        return next((member for member, command in members.items() if "runflight" in command), None)

    return wait_for(find, "the part")


@contextmanager
def channel_to(server: FlightServer) -> Iterator[grpc.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.flight_port}", options=options) as channel:
        yield channel


def do_get(channel: grpc.Channel, sql: str) -> Any:
    return channel.stream_stream(PATHS["DoGet"])(iter([ticket(sql.encode())]), metadata=bearer(K1))


def rows(server: FlightServer, sql: str) -> Any:
    with channel_to(server) as channel:
        return table_of(do_get(channel, sql)).to_pylist()


def status(server: Server) -> dict[str, Any]:
    return next(component for component in server.listed("/v1/status") if component["name"] == "flight")


def test_a_runtime_without_its_endpoint_is_not_ready(server: FlightServer) -> None:
    expected = {"name": "flight", "endpoint": f"127.0.0.1:{server.flight_port}", "status": "Ready"}
    assert status(server) == expected
    part = flight_part(server)

    os.kill(part, signal.SIGKILL)

    wait_for(lambda: status(server)["status"] == "Error" or flight_part(server) != part, "the loss to be seen")
    wait_for(server.answers, "the endpoint to be back")
    assert flight_part(server) != part
    assert rows(server, "SELECT 1 AS a") == [{"a": 1}]


def test_active_statements_and_cancel_cover_flight(server: FlightServer) -> None:
    with channel_to(server) as channel:
        call = do_get(channel, ENDLESS)
        (statement,) = wait_for(
            lambda: [one for one in server.active() if (one["sql"], one["state"]) == (ENDLESS, "running")],
            "the statement",
        )
        assert server.active(K2) == []

        cancelled = server.request("POST", f"/v1/sql/{statement['id']}/cancel", headers=KEYED)

        assert cancelled.status_code == 200
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert ended.value.code() == grpc.StatusCode.CANCELLED


@pytest.mark.exhaustive
def test_a_client_that_is_stopped_frees_its_place(tmp_path: Path) -> None:
    """Nobody says that it is gone: it only answers no more pings."""
    changes = {"runtime": {"query": {"timeout": "10m", "workers": 1}}}
    with FlightServer(tmp_path, changes=changes) as server:
        arguments = [f"127.0.0.1:{server.flight_port}", K1, ticket(ENDLESS_ROWS.encode()).hex()]
        with subprocess.Popen([PYTHON, "-c", CLIENT, *arguments], stdout=subprocess.PIPE, text=True) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "reading\n"
                wait_for(server.active, "its statement")
                wait_for(lambda: not server.active(), "its place to be free")
            finally:
                client.kill()

        assert rows(server, "SELECT 1 AS a") == [{"a": 1}]


def test_f22_uploads_that_send_nothing_keep_nobody_away(server: FlightServer) -> None:
    silence = threading.Event()

    def nothing() -> Iterator[bytes]:
        silence.wait()
        yield from ()

    with channel_to(server) as channel:
        paths = [PATHS["DoPut"], PATHS["GetFlightInfo"]]
        calls = [channel.stream_stream(path)(nothing(), metadata=bearer(K1)) for path in paths for _ in range(25)]
        try:
            assert rows(server, "SELECT 1 AS a") == [{"a": 1}]
        finally:
            silence.set()
            for call in calls:
                call.cancel()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["Handshake", "GetFlightInfo", "DoPut"])
def test_f19_a_large_message_without_a_key_takes_no_memory(server: FlightServer, name: str) -> None:
    part = flight_part(server)
    rows(server, "SELECT 1")
    Path(f"/proc/{part}/clear_refs").write_text("5")  # The peak begins anew (proc(5)).
    before = memory_bytes(part, "VmRSS")

    with channel_to(server) as channel, pytest.raises(grpc.RpcError) as refused:
        list(channel.stream_stream(PATHS[name])(iter([bytes(300 * MIB)])))

    # On a busy machine one that takes long makes room for the others.
    refusals = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED}
    assert refused.value.code() in refusals
    assert memory_bytes(part, "VmHWM") < before + 60 * MIB


@pytest.mark.exhaustive
def test_f19_handshakes_as_large_as_messages_may_be_keep_no_memory(server: FlightServer) -> None:
    part = flight_part(server)
    rows(server, "SELECT 1")
    before = memory_bytes(part, "VmRSS")

    with channel_to(server) as channel:
        for _ in range(3):
            calls = [channel.stream_stream(PATHS["Handshake"])(iter([bytes(15 * MIB)])) for _ in range(12)]
            for call in calls:
                with pytest.raises(grpc.RpcError) as refused:
                    list(call)
                # On a busy machine one that takes long makes room for the others.
                assert refused.value.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.CANCELLED}

    assert memory_bytes(part, "VmRSS") < before + 100 * MIB


@pytest.mark.exhaustive
def test_p02_statements_under_way_end_in_order(tmp_path: Path) -> None:
    with FlightServer(tmp_path) as server, channel_to(server) as channel:
        calls = [do_get(channel, MANY_ROWS) for _ in range(2)]
        first = [next(call) for call in calls]
        assert len(server.active()) == 2
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not server.answers(), "the runtime not to be ready")
        with channel_to(server) as another, pytest.raises(grpc.RpcError) as refused:
            list(do_get(another, "SELECT 1"))

        tables = [table_of([head, *call]) for head, call in zip(first, calls, strict=True)]

        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert tables[0].equals(tables[1])
        assert tables[0].num_rows == 8_000_000
        assert server.process.wait(60) == 0


@pytest.mark.exhaustive
def test_p04_statements_longer_than_the_stop_have_errors(tmp_path: Path) -> None:
    changes = {"runtime": {"shutdown_timeout": "4s", "query": {"timeout": "10m", "workers": 2}}}
    with (
        FlightServer(tmp_path, changes=changes) as server,
        channel_to(server) as channel,
        ThreadPoolExecutor() as pool,
    ):
        over_http = pool.submit(server.sql, ENDLESS, K2)
        over_flight = do_get(channel, ENDLESS)
        wait_for(lambda: len(busy_engine_workers(server.process.pid)) == 2, "the statements to run")
        began = time.monotonic()

        assert server.stop() == 0

        assert time.monotonic() - began < 30
        assert (over_http.result().status_code, over_http.result().json()["code"]) == (503, "engine_unavailable")
        with pytest.raises(grpc.RpcError) as ended:
            list(over_flight)
        assert ended.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS}


def part_alone(server: FlightServer) -> tuple[int, str]:
    """Start the part by hand, expect its end, and return its code and what it said."""
    server.write()
    done = run_program("manage.py", "runflight", "--config", str(server.file))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.exhaustive
def test_a_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with taken_port() as port:
        server = FlightServer(tmp_path, flight_port=port)
        code, output = server.refuses_to_start()
        alone, said_alone = part_alone(server)

    said = f"Cannot listen on 127.0.0.1:{server.flight_port}: process {os.getpid()} has the port."
    assert code == 1
    assert f"{said} Stop that server, or change runtime.flight.bind." in output
    assert alone == CANNOT_START
    assert f"process {os.getpid()} has the port." in said_alone


@pytest.mark.exhaustive
def test_the_part_alone_is_one(tmp_path: Path, server: FlightServer) -> None:
    document = yaml.safe_load(server.file.read_text())
    document["runtime"]["flight"]["bind"] = "127.0.0.1:0"
    document["runtime"]["state_dir"] = str(server.directory / ".runtime")
    second = FlightServer(tmp_path, text=yaml.safe_dump(document))

    code, output = part_alone(second)

    assert code == CANNOT_START
    assert f"is already served by process {flight_part(server)}" in output
    assert status(server)["status"] == "Ready"


def test_the_part_alone_is_not_started_when_flight_is_off(tmp_path: Path) -> None:
    code, output = part_alone(FlightServer(tmp_path, changes={"runtime": {"flight": {"enabled": False}}}))

    assert code == CANNOT_START
    assert "runtime.flight is not enabled" in output
