"""The commands in process: results, keys, exit statuses and messages."""

import io
import json
import os
import re
import socket
import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from runtimeclient import CLIENT_COMMANDS
from tests.corpus import each
from tests.runtimeclient.calling import call
from tests.runtimeclient.remote import (
    API_KEY,
    ONE,
    ONE_TABLE,
    Remote,
    Reply,
    as_reply,
    problem,
    refuse_other_keys,
)

COMPONENTS = [
    {"name": "http", "endpoint": "127.0.0.1:8090", "status": "Ready"},
    {"name": "flight", "endpoint": "127.0.0.1:50051", "status": "Disabled"},
]
ENGINE = {"name": "engine", "endpoint": "unix:engine.sock", "status": "Ready"}
DATASET = {
    "from": "file:flights.parquet",
    "name": "flights",
    "acceleration_enabled": True,
    "status": "Ready",
    "rows": 336_776,
    "refreshed_at": "2026-11-21T03:00:00Z",
    "snapshot": "flights-1",
    "error": None,
    "checked_at": "2026-11-21T04:00:00Z",
    "next_refresh_at": None,
    "age_s": 90,
    "bytes": 12_857_344,
}


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text[:-1]


@pytest.mark.parametrize(
    "fields", [{"status": "Initializing"}, {"status": "Error"}, {"status": "Error", "workers_alive": 0}]
)
def test_status_is_1_when_a_component_is_not_ready(remote: Remote, fields: dict[str, object]) -> None:
    components = [*COMPONENTS, ENGINE | fields]
    remote.on("GET", "/v1/status", as_reply(components))

    done = remote.call("status", "--format", "json")

    assert (done.status, one_line(done.err)) == (1, f"Error: Not ready: engine is {fields['status']}.")
    assert json.loads(done.out) == components


def test_status_shows_what_holds_up_readiness(remote: Remote) -> None:
    refresh = {"name": "refresh", "endpoint": "in-process", "status": "Initializing", "waiting_for": ["a", "b\x1b"]}
    remote.on("GET", "/v1/status", as_reply([refresh]))

    as_table, as_json = (remote.call("status", "--format", format_) for format_ in ("table", "json"))

    assert as_table.out.splitlines()[-1] == r"refresh waits for: a, b\x1b"
    assert json.loads(as_json.out) == [refresh]


def test_status_shows_components_and_worker_counts_and_is_0_when_all_are_ready(remote: Remote) -> None:
    components: list[dict[str, Any]] = [*COMPONENTS, ENGINE | {"workers_alive": 4, "workers_killed": 17}]
    remote.on("GET", "/v1/status", as_reply([{**component, "unknown": 1} for component in components]))

    as_table, as_json, as_csv = (remote.call("status", "--format", format_) for format_ in ("table", "json", "csv"))

    assert as_table.out.splitlines()[2] == " http   | 127.0.0.1:8090   | Ready"
    assert as_table.out.splitlines()[-2:] == ["(3 rows)", "engine workers: 4 alive, 17 killed since the start"]
    assert json.loads(as_json.out) == components
    assert as_csv.out.splitlines()[0] == "name,endpoint,status"
    assert as_csv.out.splitlines()[-1] == "engine,unix:engine.sock,Ready"
    assert [(done.status, done.err) for done in (as_table, as_json, as_csv)] == [(0, "")] * 3


def test_datasets_lists_every_field_as_json_and_csv(remote: Remote) -> None:
    remote.on("GET", "/v1/datasets", as_reply([DATASET]))

    as_json, as_csv = (remote.call("datasets", "--format", name) for name in ("json", "csv"))

    assert json.loads(as_json.out) == [DATASET]
    assert as_csv.out == (
        "from,name,acceleration_enabled,status,rows,refreshed_at,snapshot,error,"
        "checked_at,next_refresh_at,age_s,bytes\n"
        "file:flights.parquet,flights,true,Ready,336776,2026-11-21T03:00:00Z,flights-1,,"
        "2026-11-21T04:00:00Z,,90,12857344\n"
    )
    assert (as_json.status, as_csv.status) == (0, 0)


def test_refresh_without_wait_ends_after_the_request(remote: Remote) -> None:
    remote.on_refreshes("flights")
    options = ("--refresh-sql", "SELECT 'ä'", "--refresh-mode=full", "--refresh-jitter-max=9s")

    done = remote.call("refresh", "flights", *options)

    assert (done.status, done.out, done.err) == (0, "Dataset refresh triggered for flights.\n", "")
    assert list(json.loads(remote.requests[0].body).values()) == ["SELECT 'ä'", "full", "9s"]
    assert remote.requests[0].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"rows": 336_776, "duration_ms": 1234}, "Loaded 336,776 rows in 1.2 s."),
        ({"rows": 1, "duration_ms": 1}, "Loaded 1 row in 1 ms."),
        ({}, "Loaded an unknown number of rows."),
        ({"rows": 2, "duration_ms": 1, "unchanged": True}, "Nothing new: 2 rows as before."),
    ],
)
def test_refresh_waits_for_its_run(remote: Remote, fields: dict[str, int], line: str) -> None:
    remote.on_refreshes("flights", {"id": "7", "status": "running"}, {"id": "7", "status": "succeeded"} | fields)
    out = io.StringIO()

    call_command("refresh", "flights", wait=True, http_endpoint=remote.url, stdout=out)

    assert out.getvalue() == f"Dataset refresh triggered for flights.\n{line}\n"
    assert [(request.method, request.body) for request in remote.requests] == [
        ("POST", b""),
        ("GET", b""),
        ("GET", b""),
    ]


def test_the_endpoint_flag_wins_over_the_environment(remote: Remote) -> None:
    remote.on("GET", "/v1/status", as_reply([]))

    won = call("status", "--http-endpoint", remote.url, environ={"RUNTIME_HTTP_ENDPOINT": "http://127.0.0.1:1"})
    empty = call("status", "--http-endpoint", "", environ={"RUNTIME_HTTP_ENDPOINT": remote.url})

    assert (won.status, empty.status) == (0, 2)


@pytest.mark.parametrize("command", [("sql", "SELECT 1"), ("status",), ("datasets",), ("refresh", "a", "--wait")])
def test_x03_a_wrong_key_is_4_and_a_server_down_is_3(remote: Remote, command: tuple[str, ...]) -> None:
    refusal = refuse_other_keys(Reply())
    for method, path in (
        ("POST", "/v1/sql"),
        ("GET", "/v1/status"),
        ("GET", "/v1/datasets"),
        ("POST", "/v1/datasets/a/acceleration/refresh"),
    ):
        remote.on(method, path, refusal)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"

    wrong = remote.call(*command, "--api-key", "a-wrong-key")
    with pytest.raises(CommandError, match="requires an API key") as missing:
        call_command(*command, http_endpoint=remote.url)
    down = call(*command, "--api-key", API_KEY, "--http-endpoint", nobody)

    assert (wrong.status, missing.value.returncode, down.status) == (4, 4, 3)
    assert one_line(wrong.err) == f"Error: The runtime at {remote.url} refused the API key."
    assert "is the runtime running" in one_line(down.err)
    assert wrong.out == down.out == ""
    assert "a-wrong-key" not in wrong.err


@each(
    ("arguments", "said"),
    [
        pytest.param("sql SELECT --format xml", "invalid choice: 'xml'", id="X15 unknown format"),
        pytest.param("sql --bogus SELECT", "unknown option --bogus", id="X15 unknown option"),
        pytest.param("sql SELECT 1", "quote text that contains spaces", id="X15 too many arguments"),
        pytest.param("sql SELECT -f x", "only one of", id="X15 query and file"),
        pytest.param("sql SELECT -c SELECT", "only one of", id="X15 query and -c"),
        pytest.param("sql -c SELECT -f x", "only one of", id="X15 -c and file"),
        pytest.param("sql -f absent.sql", "absent.sql cannot be read: No such file", id="X15 no such file"),
        pytest.param("sql -f .", "cannot be read: Is a directory", id="X15 a directory"),
        pytest.param("sql --api-key-file -", "The API key is read from standard input", id="X15 input twice"),
        pytest.param("sql -f - --api-key-file -", "key is read from standard input", id="X15 input twice, by -f"),
        pytest.param("sql --http http://127.0.0.1:1", "unknown option --http", id="X15 no abbreviations"),
        pytest.param("sql x --max-rows -1", "must be a whole number from 0", id="X15 negative rows"),
        pytest.param("sql x --max-rows x", "must be a whole number from 0", id="X15 rows that are not a number"),
        pytest.param("sql x --param a", "NAME=VALUE", id="X15 a parameter without a value"),
        ("sql x --x a", "Error: --x and --y need --chart or --chart-file."),
        ("sql x --chart bar --format csv", "Error: --format cannot be combined with a chart"),
        ("sql x --chart-file a.svg --output b", "Error: Use only one of --chart-file and --output."),
        ("sql x --chart bar --output a.svg", "Error: a.svg has an unknown extension"),
        ("sql x --chart bar --output a.csv", "Error: A text chart needs an --output with the extension .txt or none."),
        ("sql x --chart-file a.gif", "Error: A chart file has the extension .svg, .png, .html."),
        pytest.param("status --timeout 0", "must be a number of seconds", id="X15 zero seconds"),
        pytest.param("status --timeout nan", "must be a number of seconds", id="X15 no number"),
        pytest.param("status --connect-timeout x", "must be a number of seconds", id="X15 not a number"),
        pytest.param("status --http-endpoint 127.0.0.1:1", "did you mean http://127.0.0.1:1?", id="X15 no scheme"),
        pytest.param("status --api-key-file absent", "absent cannot be read", id="X15 no key file"),
        pytest.param(
            "status --http-endpoint https://127.0.0.1:1 --tls-root-certificate-file absent",
            "absent cannot be used",
            id="X15 no root certificate",
        ),
    ],
)
def test_x15_usage_errors_exit_2_with_one_line(remote: Remote, arguments: str, said: str) -> None:
    done = call(*arguments.split(), environ={"RUNTIME_HTTP_ENDPOINT": remote.url})

    assert (done.status, done.out) == (2, "")
    assert said in one_line(done.err)
    assert remote.requests == []


def test_x15_a_refusal_is_1_and_a_cut_answer_is_3(remote: Remote) -> None:
    remote.on_sql(
        lambda request: (
            problem(403, "statement_not_allowed", "DROP is not allowed.\x1b[2J")
            if b"DROP" in request.body
            else Reply(body=b'[{"a":1}', is_cut=True)
        )
    )

    refused = remote.call("sql", "DROP TABLE a", "--format", "json")
    cut = remote.call("sql", "SELECT 1", "--format", "json")

    assert (refused.status, refused.out) == (1, "")
    assert one_line(refused.err) == r"Error: DROP is not allowed.\x1b[2J [statement_not_allowed]"
    assert (cut.status, cut.out) == (3, '[{"a":1}')
    assert "cut off" in one_line(cut.err)


def test_x09_a_query_may_be_silent_for_longer_than_a_connection(remote: Remote) -> None:
    def late(_: object) -> Reply:
        # Longer than the connect timeout, whatever the speed of the machine: nothing sets this event.
        threading.Event().wait(2.5)
        return ONE

    remote.on_sql(late)

    done = remote.call("sql", "SELECT 1", "--connect-timeout", "2", "--timeout", "30")

    assert (done.status, done.out) == (0, ONE_TABLE)


@each("command", CLIENT_COMMANDS)
def test_help_has_examples_and_no_options_of_django(command: str) -> None:
    shown = load_command_class("runtimeclient", command).create_parser("manage.py", command).format_help()

    assert "examples:" in shown
    assert "exit status: 0 done" in shown
    assert f"manage.py {command}" in shown
    options = set(re.findall(r"--[a-z-]+", shown))
    of_django = {"--settings", "--pythonpath", "--traceback", "--force-color", "--verbosity", "--skip-checks"}
    assert options & of_django == set()


def test_commands_work_through_call_command(remote: Remote) -> None:
    remote.on_sql(refuse_other_keys(ONE))
    remote.on("GET", "/v1/datasets", refuse_other_keys(as_reply([DATASET])))
    out = io.StringIO()

    call_command("sql", "SELECT 1", api_key=API_KEY, http_endpoint=remote.url, stdout=out)
    call_command("datasets", "--format=csv", api_key=API_KEY, http_endpoint=remote.url, stdout=out)

    assert out.getvalue().startswith(ONE_TABLE)
    assert out.getvalue().count("\n") == 6


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("sql", "SELECT 1", "--api-key="), 2),
        (("sql", "SELECT 1", "--bogus"), 2),
        (("status",), 3),
    ],
)
def test_call_command_raises_with_the_exit_status(remote: Remote, arguments: tuple[str, ...], status: int) -> None:
    remote.on_sql(refuse_other_keys(ONE))

    with pytest.raises(CommandError) as caught:
        call_command(*arguments, http_endpoint=remote.url)

    assert caught.value.returncode == status
    assert os.linesep not in str(caught.value)
