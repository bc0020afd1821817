"""A caller reads its last statements, and what they have taken."""

import csv
import io

import pytest
from msgspec.structs import replace

import runtimeconf.state
import telemetry.state
from runtimeconf.model import HistoryConfig, RuntimeConfig
from telemetry import history, statistics
from telemetry.memory import Memory
from tests.sqlapi.harness import WITH_KEY, Header, call, sql
from tests.system.harness import K1, K2

HISTORY, STATISTICS = "/v1/sql/history", "/v1/sql/statistics"
WITH_OTHER_KEY: Header = ("X-API-Key", K2)


@pytest.mark.usefixtures("memory")
def test_a_key_reads_its_own_statements_newest_first() -> None:
    done, failed, refused = sql("SELECT 41 + 1 AS n"), sql("SELECT error('no')"), sql("DROP TABLE orders")
    sql("SELECT 'of another key'", key=K2)

    rows = call("GET", HISTORY, WITH_KEY).json()
    as_csv = call("GET", f"{HISTORY}?format=csv&limit=2", WITH_KEY).body.decode()

    ids = [answer.headers["X-Query-Id"] for answer in (refused, failed, done)]
    assert [row["id"] for row in rows] == ids
    assert [row["outcome"] for row in rows] == ["statement_not_allowed", "sql_error", "ok"]
    assert [row["statement"] is None for row in rows] == [True, False, False]
    assert tuple(rows[2]) == history.COLUMNS
    assert (rows[2]["rows"], rows[2]["bytes"], rows[2]["sql"]) == (1, len(done.body), None)
    assert rows[2]["request_id"] == done.headers["X-Request-Id"]
    assert all(0 <= row["parse_ms"] <= row["total_ms"] for row in rows)
    assert [row["id"] for row in csv.DictReader(io.StringIO(as_csv))] == ids[:2]
    assert as_csv.splitlines()[0] == ",".join(history.COLUMNS)
    assert len(call("GET", HISTORY, WITH_OTHER_KEY).json()) == 1


@pytest.mark.usefixtures("memory")
def test_statements_that_differ_in_values_are_counted_together() -> None:
    for number in range(3):
        sql(f"SELECT count(*) FROM orders WHERE id IN ({number}, {number + 5})")
    sql("select COUNT(*) from orders where id in (9) -- another one")
    sql("SELECT error('a')")
    sql("SELECT 1", key=K2)

    found = call("GET", STATISTICS, WITH_KEY).json()
    as_csv = call("GET", f"{STATISTICS}?format=csv", WITH_KEY).body.decode()

    counted = sorted((row["calls"], row["errors"], row["rows"]) for row in found["statements"])
    assert counted == [(1, 1, 0), (4, 0, 4)]
    assert list(found) == ["since", "evicted", "statements"]
    assert found["evicted"] == 0
    assert tuple(found["statements"][0]) == statistics.COLUMNS
    assert [int(row["calls"]) for row in csv.DictReader(io.StringIO(as_csv))] == [
        row["calls"] for row in found["statements"]
    ]
    assert len(call("GET", f"{STATISTICS}?limit=1", WITH_KEY).json()["statements"]) == 1


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("route", [HISTORY, STATISTICS])
def test_if_nobody_remembers_that_is_said(route: str, runtime: RuntimeConfig) -> None:
    unavailable = call("GET", route, WITH_KEY)
    runtimeconf.state.set_config(replace(runtime, history=HistoryConfig(enabled=False)))
    disabled = call("GET", route, WITH_KEY)

    assert (unavailable.status, unavailable.code) == (503, "telemetry_unavailable")
    assert (disabled.status, disabled.code) == (404, "history_disabled")
    assert call("GET", route).status == 401


def test_the_text_is_kept_as_long_as_the_configuration_wants_it(memory: Memory, runtime: RuntimeConfig) -> None:
    def texts() -> list[str | None]:
        rows = call("GET", HISTORY, WITH_KEY).json() + call("GET", STATISTICS, WITH_KEY).json()["statements"]
        return [row["sql"] for row in rows]

    telemetry.state.deliver_to(memory.put, memory.answer, keeps_sql=True)
    memory.adopt(HistoryConfig(sql=True))
    sql(f"SELECT '{'é' * 2000}'")
    kept = texts()
    memory.adopt(HistoryConfig(sql=False))
    sql("SELECT 'during the change'")

    assert kept == [f"SELECT '{'é' * 992}"] * 2
    assert {*texts()} == {None}


def test_a_reload_changes_what_is_remembered(memory: Memory, runtime: RuntimeConfig) -> None:
    for _ in range(3):
        sql("SELECT 1")

    memory.adopt(HistoryConfig(max_entries=2))
    fewer = call("GET", HISTORY, WITH_KEY).json()
    memory.adopt(HistoryConfig(enabled=False))
    none = call("GET", HISTORY, WITH_KEY)
    memory.adopt(runtime.history)

    assert len(fewer) == 2
    assert none.code == "telemetry_unavailable"
    assert call("GET", HISTORY, WITH_KEY).json() == []
    assert K1 not in str(fewer)
