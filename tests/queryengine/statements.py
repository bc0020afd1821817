"""
Statements for tests of the gate, over the datasets `flights`, `airlines`, `planes` and the view `delays`.

`READS` may run. `FAILING` may run too, but ends with an error, over the datasets of the tests of engines. `REFUSED` may
not run: pairs of the check that names the statement, and the statement.
"""

from pathlib import Path
from typing import Final

_DATA: Final = Path(__file__).parent / "data"

#: The rows of each dataset.
TABLES: Final = {
    "flights": """
        SELECT i AS id, ['UA', 'B6', 'EV'][1 + i % 3] AS carrier, 'N' || i % 5 AS tailnum,
          (i % 40 - 10)::INTEGER AS dep_delay, i * 100 AS distance, DATE '2013-01-01' + (i % 60)::INTEGER AS day,
          TIMESTAMP '2013-01-01 05:00' + i * INTERVAL 1 HOUR AS time_hour, [i, i + 1] AS codes,
          {'origin': 'JFK', 'dest': 'D' || i % 4} AS route, MAP {'gate': i % 7} AS extras,
          CASE WHEN i % 10 = 0 THEN NULL ELSE i / 3 END AS score,
          '{"crew": {"size": ' || i || '}, "tags": ["a", "b"]}' AS notes
        FROM range(240) t(i)
    """,
    "airlines": "SELECT * FROM (VALUES ('UA', 'United'), ('B6', 'JetBlue'), ('EV', 'ExpressJet')) t(carrier, name)",
    "planes": "SELECT 'N' || i AS tailnum, 1990 + i AS year, 100 + 10 * i AS seats FROM range(5) t(i)",
}
VIEWS: Final = {"delays": "SELECT carrier, avg(dep_delay) AS mean_delay FROM flights GROUP BY carrier"}
DECLARED: Final = frozenset({*TABLES, *VIEWS})


def lines(name: str) -> list[str]:
    lines = (_DATA / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


def _refused() -> list[tuple[str, str]]:
    pairs = []
    check = ""
    for line in lines("refused.txt"):
        if line.startswith("["):
            check = line.strip("[]")
        else:
            pairs.append((check, line.replace("\\n", "\n")))
    return pairs


READS: Final = tuple(lines("reads.txt"))
#: Words in statements whose rows differ from run to run. Of two equally frequent values `mode` returns either, and
#: distinct values have no order.
_CHANGING: Final = ("current_timestamp", "USING SAMPLE", "ANALYZE", "mode(", "list(DISTINCT")
#: Those whose rows are always the same.
LASTING: Final = tuple(sql for sql in READS if not any(word in sql for word in _CHANGING))
FAILING: Final = tuple(lines("failing.txt"))
REFUSED: Final = tuple(_refused())
