"""The constructs of `constructs.txt`, the tables that they read, and answers as plain values that can be compared."""

import datetime as dt
import decimal
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

HERE: Final = Path(__file__).parent
ANSWERS: Final = HERE / "answers.json"

#: The tables as queries that mean the same to both engines.
TABLES: Final = {
    "trips": """
        SELECT CAST(id AS BIGINT) AS id, city, CAST(fare AS DOUBLE) AS fare, CAST(seats AS BIGINT) AS seats,
          CAST(day AS DATE) AS day, CAST(began AS TIMESTAMP) AS began, tags, paid
        FROM (VALUES
          (1, 'Berlin', 12.55, 1, '2024-01-01', '2024-01-01 08:15:00', ['fast', 'night'], true),
          (2, 'Bonn', 4.25, 2, '2024-01-01', '2024-01-01 17:40:10', ['fast'], false),
          (3, 'Berlin', NULL, 4, '2024-01-02', '2024-01-02 23:59:59', [], true),
          (4, NULL, 30.0, 2, '2024-02-10', '2024-02-10 06:00:00', ['slow', 'fast'], true),
          (5, 'Paris', 7.75, 3, '2024-02-11', '2024-02-11 12:30:00', ['day'], false)
        ) AS v(id, city, fare, seats, day, began, tags, paid)
    """,
    "cities": """
        SELECT * FROM (VALUES ('Berlin', 'Germany'), ('Paris', 'France'), ('Rome', 'Italy')) AS v(city, country)
    """,
}

#: Only lists of functions and settings are longer.
_MOST_ROWS: Final = 12

_STATEMENT: Final = re.compile(r"(?:WITH|VALUES|FROM|SHOW|DESCRIBE|EXPLAIN|TABLE) ")


@dataclass(frozen=True, slots=True)
class Construct:
    """One line of the list. `reason` says why the answer differs; empty if it is the same."""

    theme: str
    text: str
    reason: str

    @property
    def sql(self) -> str:
        """The statement to run."""
        return self.text if _STATEMENT.match(self.text) else f"SELECT {self.text}"


def constructs() -> Iterator[Construct]:
    """Read the list."""
    theme = text = reason = ""
    for line in (HERE / "constructs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            reason = line.strip()
            continue
        if text:
            yield Construct(theme, text, reason)
        theme, text, reason = line[3:] if line.startswith("## ") else theme, "" if line.startswith("#") else line, ""
    if text:
        yield Construct(theme, text, reason)


def answer(table: pa.Table) -> dict[str, Any]:
    """Return the names, types and first rows of *table* as JSON can hold them."""
    columns = [_plain_column(column) for column in table.columns]
    return {
        "names": table.column_names,
        "types": [str(field.type) for field in table.schema],
        "rows": [list(row) for row in zip(*columns, strict=True)][:_MOST_ROWS],
    }


def is_same(one: Any, other: Any) -> bool:
    """Compare values of `answer`: numbers by value, an instant with its zone or without, everything else exactly."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(is_same, one.values(), other.values()))
    return bool(one == other)


def _plain_column(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):  # Python holds microseconds.
        column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None), safe=False)
    elif pa.types.is_time64(kind):
        column = column.cast(pa.time64("us"), safe=False)
    elif pa.types.is_duration(kind):
        column = column.cast(pa.duration("us"), safe=False)
    return [_plain(value) for value in column.to_pylist()]


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one return for each type
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case decimal.Decimal():
            return int(value) if value == int(value) else float(value)
        case bytes():
            return value.hex()
        case dt.datetime():
            return value.replace(tzinfo=None).isoformat()
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return f"{value.total_seconds():g} s"
        case pa.MonthDayNano():
            return f"{value.months} months {value.days} days {value.nanoseconds} ns"
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value
