"""`status --wait`, `refresh` of several datasets, `queries` and `cancel`."""

import json
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from tests.runtimeclient.calling import Called, Screen, call
from tests.runtimeclient.remote import Remote, Reply, Request, as_reply, problem

READY = Reply(body=b"ready", content_type="text/plain")
NOT_READY = Reply(503, b"not ready", "text/plain")
RUN: dict[str, Any] = {"id": "7", "rows": None, "duration_ms": None, "error": None}
DATASET = {"from": "file:a", "acceleration_enabled": True, "status": "Ready"}


def in_turn(*replies: Reply) -> Any:
    """Give one reply after the other, and the last one from then on."""
    following: Iterator[Reply] = chain(replies, repeat(replies[-1]))
    return lambda _: next(following)


def components(status: str) -> Reply:
    return as_reply([{"name": "http", "endpoint": "x", "status": status}])


def test_status_waits_until_the_runtime_is_ready_even_behind_a_proxy(remote: Remote) -> None:
    busy, gone = problem(503, "busy", "Busy."), [Reply(code, b"<html>", "text/html") for code in (502, 503, 504)]
    remote.on("GET", "/v1/ready", in_turn(*gone, NOT_READY, READY))
    remote.on("GET", "/v1/status", in_turn(*gone, busy, components("Initializing"), components("Ready")))

    once, done = remote.call("status"), remote.call("status", "--wait", "1e300", "--connect-timeout", "1e300")

    assert (once.status, once.err) == (
        3,
        f"Error: {remote.url} responds (502 Bad Gateway): a proxy gets no response from the runtime.\n",
    )
    assert (done.status, done.err) == (0, "")
    assert "Ready" in done.out


def test_status_reports_the_last_obstacle_after_the_time_limit(remote: Remote) -> None:
    remote.on("GET", "/v1/ready", NOT_READY)

    done = remote.call("status", "--wait", "0.01")

    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("Error: The runtime is not ready: ")
    assert call("status", "--wait", "0.01", "--http-endpoint", "http://127.0.0.1:1").status == 3
    assert remote.call("status", "--wait", "0").status == 2


def test_status_is_1_when_a_dataset_is_in_error(remote: Remote) -> None:
    def dataset(name: str, status: str, error: str | None = None) -> dict[str, Any]:
        return DATASET | {"name": name, "status": status, "error": error}

    remote.on("GET", "/v1/ready", READY)
    remote.on("GET", "/v1/status", components("Ready"))
    fine = [dataset("a", "Ready"), dataset("b", "Initializing"), dataset("c", "Refreshing"), dataset("d", "Disabled")]
    failed = [dataset("e", "Error", "No file."), dataset("f", "Refreshing", "No file."), dataset("g", "Error")]
    many = [dataset(f"d{number}", "Error", "No.") for number in range(7)]

    for datasets, line, said in (
        ([], None, ""),
        (fine, "datasets: 4, 0 in error", ""),
        (fine + failed, "datasets: 7, 3 in error", "3 of 7 datasets are in error (e, f, g)"),
        (failed[:1], "datasets: 1, 1 in error", "1 of 1 dataset is in error (e)"),
        (many, "datasets: 7, 7 in error", "7 of 7 datasets are in error (d0, d1, d2, d3, d4 and 2 more)"),
    ):
        remote.on("GET", "/v1/datasets", as_reply(datasets))
        for arguments in ((), ("--wait",), ("--format", "json"), ("--format", "csv")):
            done = remote.call("status", *arguments)
            assert done.status == (1 if said else 0)
            assert done.err == (f"Error: {said}: querykeep datasets shows why.\n" if said else "")
            if "--format" not in arguments:
                assert done.out.splitlines()[4:] == ([line] if line else [])


def test_status_shows_the_components_if_the_datasets_cannot_be_listed(remote: Remote) -> None:
    remote.on("GET", "/v1/datasets", problem(503, "not_ready", "Not yet."))
    remote.on("GET", "/v1/status", in_turn(components("Error"), components("Ready")))

    both, only = remote.call("status"), remote.call("status")

    assert (both.status, both.err) == (1, "Error: Not ready: http is Error.\n")
    assert (only.status, only.err) == (1, "Error: Not yet. [not_ready, request r-1]\n")
    assert "http" in both.out
    assert "http" in only.out


@pytest.mark.parametrize(
    ("path", "reply", "status"),
    [
        ("/v1/ready", Reply(body=b"<html>", content_type="text/html", status=404), 3),
        ("/v1/status", problem(401, "unauthorized", "No."), 4),
        ("/v1/status", problem(400, "bad", "No."), 1),
    ],
)
def test_waiting_ends_at_a_permanent_error(remote: Remote, path: str, reply: Reply, status: int) -> None:
    remote.on("GET", "/v1/ready", READY)
    remote.on("GET", path, reply)

    assert remote.call("status", "--wait").status == status


def test_refresh_of_several_reports_each_and_counts_failures(remote: Remote) -> None:
    remote.on_refreshes("a", RUN | {"status": "succeeded", "rows": 2, "duration_ms": 1500})
    remote.on_refreshes("b", RUN | {"status": "failed", "error": "No file."})
    remote.on("POST", "/v1/datasets/c/acceleration/refresh", problem(404, "dataset_not_found", "There is no c."))

    done = remote.call("refresh", "a", "b", "c", "a", "--wait")

    assert done == Called(
        1,
        "Dataset refresh triggered for a.\nDataset refresh triggered for b.\na: Loaded 2 rows in 1.5 s.\n",
        "Error: There is no c. [dataset_not_found]\n"
        "Error: The refresh of b failed: No file.\n"
        "Error: 2 of 3 refreshes failed.\n",
    )


def test_refresh_of_all_requests_accelerated_datasets(remote: Remote) -> None:
    datasets = [DATASET | {"name": "a"}, DATASET | {"name": "b", "acceleration_enabled": False}]
    remote.on("GET", "/v1/datasets", as_reply(datasets))
    remote.on_refreshes("a", RUN | {"status": "succeeded", "rows": None})

    done = remote.call("refresh", "--all", "--wait", "--quiet")

    assert done == Called(0, "a: Loaded an unknown number of rows.\n", "")


def test_refresh_needs_a_dataset(remote: Remote) -> None:
    remote.on("GET", "/v1/datasets", Reply(body=b"[]"))

    assert "Name the dataset" in remote.call("refresh", "").err
    for arguments in ((), ("--all", "a")):
        assert "Name the datasets to refresh, or use --all." in call("refresh", *arguments).err
    assert "nothing to refresh" in remote.call("refresh", "--all").err


def test_refresh_shows_progress_on_a_terminal(remote: Remote) -> None:
    screen = Screen()
    path = "/v1/datasets/a/acceleration/refresh"
    remote.on("POST", path, Reply(201, b'{"message":"Triggered.","refresh":{"id":"7","status":"queued"}}'))

    def look(_: Request) -> Reply:
        """Go on until the line has been seen."""
        status = "succeeded" if ": \\x1bloading, 12.3 MB" in screen.getvalue() else "running"
        under_way = {"status": status, "rows": 1, "phase": "\x1bloading", "bytes": 12_340_000}
        return as_reply([RUN | under_way])

    remote.on("GET", path, look)

    assert remote.call("refresh", "a", "--wait", err=screen).status == 0
    assert "a: running for " in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_queries_are_listed_with_age_and_start_of_the_statement(remote: Remote) -> None:
    query = {"id": "9f", "started": "2013-01-01T00:00:00Z", "state": "running", "sql": "SELECT\n " + "x" * 100}
    remote.on("GET", "/v1/sql/active", as_reply([query]))

    table = remote.call("queries").out.splitlines()

    assert table[0].split() == ["id", "|", "state", "|", "for", "|", "sql"]
    assert table[2].endswith("| SELECT " + "x" * 70 + "...")
    assert json.loads(remote.call("queries", "--format", "json").out) == [query]


def test_queries_of_spice_are_listed_too(remote: Remote) -> None:
    query = {"query_id": "9f", "started_at_ms": 1356998400500, "sql_preview": "SELECT 1"}
    remote.on("GET", "/v1/sql/active", as_reply({"queries": [query]}))

    done = remote.call("queries", "--format", "csv")

    assert done.out == "id,started,state,sql\n9f,2013-01-01T00:00:00.500Z,running,SELECT 1\n"


@pytest.mark.parametrize("number", ["9" * 25, "9" * 400])
@pytest.mark.parametrize(
    ("path", "body", "arguments"),
    [
        ("/v1/sql/active", '{"queries":[{"query_id":"a","started_at_ms":N}]}', ("queries",)),
        # In 64 bits, but beyond the calendar.
        ("/v1/sql/active", '{"queries":[{"query_id":"a","started_at_ms":999999999999999999}]}', ("queries",)),
        (
            "/v1/datasets",
            '[{"from":"f","name":"n","acceleration_enabled":true,"status":"Ready","age_s":N,"bytes":N}]',
            ("datasets",),
        ),
    ],
)
def test_a_number_beyond_64_bits_is_not_from_a_runtime(
    remote: Remote, path: str, body: str, arguments: tuple[str, ...], number: str
) -> None:
    remote.on("GET", path, Reply(body=body.replace("N", number).encode()))

    done = remote.call(*arguments)

    assert (done.status, done.out) == (3, "")
    assert done.err.endswith("has the wrong type: is this a runtime?\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"message":"Query is being cancelled."}', "Query is being cancelled."),
        (b"{}", "Query a/b is being cancelled."),
    ],
)
def test_cancel_names_the_query(remote: Remote, body: bytes, said: str) -> None:
    remote.on("POST", "/v1/sql/a%2Fb/cancel", Reply(body=body))

    assert remote.call("cancel", "a/b") == Called(0, f"{said}\n", "")
    assert remote.call("cancel", "").status == 2


def test_the_table_of_datasets_shows_their_age(remote: Remote) -> None:
    dataset = DATASET | {"name": "a", "rows": 1, "refreshed_at": "2013-01-01T00:00:00Z", "error": "No \x07."}
    known = dataset | {"age_s": 90, "bytes": 12_345}
    remote.on("GET", "/v1/datasets", as_reply([dataset, DATASET | {"name": "b"}, known]))

    lines = remote.call("datasets").out.splitlines()

    assert [cell.strip() for cell in lines[0].split(" | ")[3:5]] == ["size", "age"]
    assert " d" in lines[2].split(" | ")[4]
    assert r"No \x07." in lines[2]
    assert [cell.strip() for cell in lines[3].split(" | ")[3:5]] == ["NULL", "NULL"]
    assert [cell.strip() for cell in lines[4].split(" | ")[3:5]] == ["12.3 kB", "1 min 30 s"]
