"""Callers with the first key that ask all the time, over all protocols, on kept connections and new ones."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import httpx
import pyarrow.flight

from tests.clients.runtime import FlightServer, adbc_connection, adbc_table, flight_table
from tests.system.harness import KEYED, NO_ROOTS, PATIENCE_S

#: A result of about a megabyte.
LARGE_ROWS = 20_000
LARGE = f"SELECT range AS n, md5(range::VARCHAR) AS m FROM range({LARGE_ROWS})"

SUM = "SELECT sum(id)::BIGINT AS s FROM orders"
SUM_ROWS = [{"s": 499_500}]

Ask = Callable[[], object]


@dataclass
class Seen:
    """How many right answers each kind of caller got, and what else happened to it."""

    answers: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def new_connections(server: FlightServer) -> Iterator[Ask]:
    yield lambda: check(
        httpx.post(f"{server.url}/v1/sql", content=SUM, headers=KEYED, verify=NO_ROOTS, timeout=PATIENCE_S)
    )


@contextmanager
def a_kept_connection(server: FlightServer) -> Iterator[Ask]:
    # Without retries: a connection that the server closes fails.
    with httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as client:
        yield lambda: check(client.post("/v1/sql", content=SUM, headers=KEYED))


@contextmanager
def streams(server: FlightServer) -> Iterator[Ask]:
    with httpx.Client(base_url=server.url, verify=NO_ROOTS, timeout=PATIENCE_S) as client:

        def ask() -> None:
            with client.stream("POST", "/v1/sql", content=LARGE, headers=KEYED) as answer:
                assert answer.status_code == 200
                assert b"".join(answer.iter_bytes()).count(b'"m"') == LARGE_ROWS

        yield ask


@contextmanager
def adbc(server: FlightServer) -> Iterator[Ask]:
    with adbc_connection(server) as connection:
        yield lambda: check_rows(adbc_table(connection, LARGE).num_rows)


@contextmanager
def pyarrow_client(server: FlightServer) -> Iterator[Ask]:
    with pyarrow.flight.connect(server.uri) as client:
        yield lambda: check_rows(flight_table(client, LARGE).num_rows)


def check(answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
    assert answer.json() == SUM_ROWS


def check_rows(rows: int) -> None:
    assert rows == LARGE_ROWS


#: The callers, and the seconds between two of their requests.
CALLERS = (
    (new_connections, 0.05),
    (a_kept_connection, 0.05),
    (a_kept_connection, 0.3),
    (streams, 0.2),
    (adbc, 0.2),
    (pyarrow_client, 0.2),
)


@contextmanager
def asking(server: FlightServer) -> Iterator[Seen]:
    """Let all callers ask until the end of the block."""
    seen, stop = Seen(), threading.Event()

    def ask(caller: Callable[[FlightServer], AbstractContextManager[Ask]], pause_s: float) -> None:
        with caller(server) as once:
            while not stop.wait(pause_s):
                try:
                    once()
                    seen.answers[caller.__name__] += 1
                except Exception as error:  # noqa: BLE001 (whatever it is, it counts)
                    seen.failures.append((caller.__name__, f"{type(error).__name__}: {error}"[:300]))

    threads = [threading.Thread(target=ask, args=caller) for caller in CALLERS]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
