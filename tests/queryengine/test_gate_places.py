"""A function or table that is not allowed is refused wherever it stands: in each place of the grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from queryengine.errors import StatementError
from queryengine.gate.gate import Gate

_FILE = Path(__file__).parent / "data" / "places.txt"
PLACES = [line for line in _FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("# ")]

HARMLESS = ("(SELECT 1)", "1")
REFUSED = (
    "(SELECT count(*) FROM read_text('/etc/passwd'))",
    "(SELECT count(*) FROM '/etc/passwd')",
    "(SELECT 1 FROM duckdb_secrets())",
    "(SELECT 1 FROM elsewhere)",
    "getenv('HOME')",
    "write_log('x')",
)
RELATIONS = frozenset({"flights"})


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def is_admitted(gate: Gate, place: str, expression: str) -> bool:
    with suppress(StatementError):
        gate.admit(re.sub(r"\bX\b", lambda _: expression, place), RELATIONS)
        return True
    return False


@pytest.mark.parametrize("place", PLACES)
def test_a_place_is_judged(gate: Gate, place: str) -> None:
    assert any(is_admitted(gate, place, expression) for expression in HARMLESS), "the engine has no such place"
    assert not [expression for expression in REFUSED if is_admitted(gate, place, expression)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(id) OVER (v ORDER BY id) FROM flights WINDOW v AS (PARTITION BY id), w AS (v ORDER BY id)",
        'SELECT 1 FROM flights WINDOW w AS (ORDER BY id), "V w" AS (PARTITION BY id) QUALIFY id = 1 OR id = 2 LIMIT 1',
        "WITH a AS (SELECT 1 AS x) SELECT 1 FROM a WINDOW w AS (ORDER BY (SELECT x FROM a), $1)",
        "SELECT 1 WINDOW w AS (ORDER BY (SELECT 1 WINDOW w AS (ORDER BY 1))) UNION SELECT 2 WINDOW w AS ()",
        "FROM flights SELECT id WINDOW w AS (ORDER BY id) USING SAMPLE 1 ROWS",
        "PIVOT (SELECT id, 1 AS one FROM flights WINDOW w AS (ORDER BY one)) ON id",
        "SELECT t.window, 'WINDOW w AS (' FROM (SELECT 1 AS window) t",
    ],
)
def test_windows_that_nothing_uses_are_admitted_as_written(gate: Gate, sql: str) -> None:
    assert gate.admit(sql, RELATIONS).sql == sql
