"""A process killed in the middle of a result, behind each proxy of `deploy/`: the result never looks complete."""

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.clients.runtime import FlightServer, bearer, plain_flight
from tests.deploy.fronts import LARGE, STARTED, Front
from tests.system.harness import K1, PATIENCE_S, wait_for
from tests.system.processes import busy_engine_workers, part

#: As many bytes over Flight SQL, which is read by batches.
LARGE_FLIGHT = "SELECT repeat('x', 999) AS text, range AS i FROM range(300000)"
FORMATS = ("text/csv", "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream", "text/csv")


def engine(runtime: FlightServer) -> list[int]:
    """The engine worker that runs the statement."""
    return busy_engine_workers(runtime.process.pid)


def web(runtime: FlightServer) -> list[int]:
    """The web workers, one of which sends the result."""
    return part(runtime.process.pid, "web")[1:]


def kill(runtime: FlightServer, victims: Callable[[FlightServer], list[int]]) -> None:
    found = wait_for(lambda: victims(runtime), "a process to kill")
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def curl(front: Front, version: str, accept: str) -> list[str]:
    return [
        "curl", "--silent", "--show-error", f"--http{version}", "--cacert", str(front.entry.trust), "--noproxy", "*",
        "--header", f"X-API-Key: {K1}", "--header", f"Accept: {accept}", "--data-binary", LARGE,
        f"{front.entry.url}/v1/sql",
    ]  # fmt: skip


def looks_complete(
    front: Front, runtime: FlightServer, victims: Callable[[FlightServer], list[int]], version: str, accept: str
) -> bool:
    """Read the beginning of a result, kill *victims*, and return whether curl is content with what follows."""
    command = curl(front, version, accept)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        assert len(client.stdout.read(STARTED)) == STARTED, client.stderr.read()
        kill(runtime, victims)
        rest = len(client.stdout.read())
    assert STARTED + rest < 300_000 * 1000, "the result was over before the kill"
    runtime.wait_until_up()
    return client.returncode == 0


@pytest.mark.parametrize(
    "kills", [4, pytest.param(16, marks=pytest.mark.exhaustive), pytest.param(50, marks=pytest.mark.soak)]
)
def test_a_result_that_breaks_off_never_looks_complete(front: Front, runtime: FlightServer, kills: int) -> None:
    ways = [(victims, version) for victims in (engine, web) for version in ("1.1", "2")]

    seen = [
        looks_complete(front, runtime, *ways[number % len(ways)], FORMATS[number % len(FORMATS)])
        for number in range(kills)
    ]

    assert seen == [False] * kills


@pytest.mark.parametrize("name", ["engine", "flight"])
def test_a_flight_result_that_breaks_off_is_an_error(front: Front, runtime: FlightServer, name: str) -> None:
    victims = engine if name == "engine" else lambda runtime: part(runtime.process.pid, "flight")
    with plain_flight(front.entry) as client:
        info = client.get_flight_info(pa.flight.FlightDescriptor.for_command(LARGE_FLIGHT.encode()), bearer(K1))
        reader = client.do_get(info.endpoints[0].ticket, bearer(K1))
        assert reader.read_chunk().data.num_rows

        kill(runtime, victims)

        with pytest.raises(pa.ArrowException):
            reader.read_all()
    runtime.wait_until_up()


def test_http_1_0_which_has_no_sign_of_the_end_gets_no_result(front: Front) -> None:
    refused = http_1_0(front, "POST /v1/sql", "SELECT 1")

    assert refused.partition(b" ")[2].startswith(b"505 ")
    assert b"\nContent-Type: application/problem+json\r\n" in refused
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["code"] == "http_version_not_supported"
    assert http_1_0(front, "GET /health").endswith(b"ok\n")  # A load balancer's check may use it.


def http_1_0(front: Front, route: str, body: str = "") -> bytes:
    """Return the answer to a request over HTTP/1.0."""
    context = ssl.create_default_context(cafile=front.entry.trust)
    with (
        socket.create_connection(("127.0.0.1", front.entry.port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        head = f"{route} HTTP/1.0\r\nHost: localhost\r\nX-API-Key: {K1}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        return connection.makefile("rb").read()
