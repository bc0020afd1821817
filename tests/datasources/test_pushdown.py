"""The columns and rows that a `refresh_sql` needs are never underestimated."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasources.loading.pushdown import wanted_by
from datasources.sources.source import Bound, Wanted
from datasources.sql import identifier


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT a, B + 1 AS c FROM d WHERE e IS NULL ORDER BY f", {"a", "b", "e", "f"}),
        ("SELECT t.a FROM main.d AS t", {"t", "a"}),
        ("SELECT s.field.inner, (r).x FROM d", {"s", "field", "inner", "r"}),
        (
            "SELECT sum(a) FILTER (WHERE b), rank() OVER (PARTITION BY c ORDER BY e) FROM d GROUP BY ALL HAVING f > 1",
            set("abcef"),
        ),
        ("SELECT a FROM (SELECT b AS a FROM d) AS t UNION ALL SELECT c FROM d", {"a", "b", "c"}),
        ("WITH x AS (SELECT a FROM d) SELECT a, (SELECT max(b) FROM d) FROM x", {"a", "b"}),
        ("SELECT DISTINCT ON (a) b FROM d QUALIFY c > 1 LIMIT 3", {"a", "b", "c"}),
        ('SELECT "A b""c" FROM d', {'a b"c'}),
        ("SELECT CASE WHEN a THEN b ELSE c END, e BETWEEN f AND g, h IN (1, i) FROM d", set("abcefghi")),
        ("SELECT a.lower(), main.upper(b), d.c.max() OVER (ORDER BY e.f.abs()) FROM d", set("abcdef")),
        ("SELECT d.to_json() FROM d", None),
        ("FROM d", None),
        ("SELECT * EXCLUDE (a) FROM d", None),
        ("SELECT d.* FROM d", None),
        ("SELECT COLUMNS('a.*') FROM d", None),
        ("SELECT a, #1 FROM d", None),
        ("SELECT d FROM d", None),
        ("SELECT t FROM d AS T", None),
        ("SELECT main.d FROM d", None),
        ("SELECT x FROM d AS t(x, y)", None),
        ("WITH x(y) AS (SELECT a FROM d) SELECT y FROM x", None),
        ("WITH x AS (SELECT a FROM d) SELECT x FROM x", None),
        ("SELECT list_transform(l, lambda x: x + a) FROM d", None),
        ("SELECT a FROM d NATURAL JOIN d AS e", None),
        ("SELECT d1.a FROM d AS d1 JOIN d AS d2 USING (b)", None),
        ("SELECT a FROM d, unnest([1]) AS u(v)", None),
        ("SELECT a FROM d USING SAMPLE 10%", None),
        ("SELECT a FROM d TABLESAMPLE 5 ROWS", None),
        ("SELECT a FROM d ORDER BY ALL", None),
        ("SELECT count(*) AS n FROM d", None),
        ("SUMMARIZE d", None),
        ("PIVOT d ON a USING sum(b)", None),
        ("not a statement", None),
        ("SELECT '\ud800' AS n FROM d", None),
        ("SELECT a FROM d; SELECT b FROM d", None),
    ],
)
def test_columns(sql: str, columns: set[str] | None) -> None:
    assert wanted_by(sql).columns == columns


@pytest.mark.parametrize(
    ("where", "bounds"),
    [
        (
            "a > 5 AND B <= -2 AND (c = 1_000 AND e < 2.50)",
            [("a", ">", 5), ("b", "<=", -2), ("c", "=", 1000), ("e", "<", Decimal("2.50"))],
        ),
        ("5 < a AND 5 >= b", [("a", ">", 5), ("b", "<=", 5)]),
        ("a BETWEEN 1 AND 2.5", [("a", ">=", 1), ("a", "<=", Decimal("2.5"))]),
        ("a BETWEEN 1e0 AND 1e3", [("a", ">=", 1.0), ("a", "<=", 1000.0)]),
        # A double makes all three operands doubles: 2^53 + 1 BETWEEN 0e0 AND 2^53 is true.
        ("a BETWEEN 0e0 AND 9007199254740992 AND a BETWEEN b AND 9007199254740992", []),
        ("9007199254740992 BETWEEN a AND b", []),
        ("a = 'it''s' AND b > DATE '2024-02-29'", [("a", "=", "it's"), ("b", ">", date(2024, 2, 29))]),
        ("a > TIMESTAMP '2024-01-01 12:00:00.5'", [("a", ">", datetime.fromisoformat("2024-01-01T12:00:00.5"))]),
        ("a > '2024-01-01 12:00:00+02'::TIMESTAMPTZ", [("a", ">", datetime(2024, 1, 1, 10, tzinfo=UTC))]),
        ("a > 5 AND (b > 1 OR c > 1) AND NOT e > 1", [("a", ">", 5)]),
        ("a <> 1 AND a IN (1, 2) AND a IS NOT DISTINCT FROM 1 AND a > b AND a + 1 > 5 AND d.a > 5 AND -a > 5", []),
        ("a > true AND a > NULL AND a > 1.00000000000000000000000000000000000000001", []),
        ("a > DATE 'infinity' AND a > DATE '20000-01-01' AND a > DATE 'x' AND a > DATE '' AND a > TIME '12:00'", []),
        ("a > TRY_CAST('x' AS DATE) AND a > CAST(5 AS BIGINT) AND a > TIMESTAMP_NS '2024-01-01'", []),
        # A name of the select list, and a row of the table.
        ("x > 5 AND d > 5", []),
    ],
)
def test_bounds(where: str, bounds: list[Any]) -> None:
    assert wanted_by(f"SELECT a + 1 AS x, * FROM d WHERE {where}") == Wanted(
        bounds=tuple(Bound(*bound) for bound in bounds)
    )


@pytest.mark.parametrize(
    ("sql", "is_bound"),
    [
        ("SELECT a, sum(b) FROM d AS t WHERE a > 5 GROUP BY a HAVING sum(b) > 1 ORDER BY a LIMIT 1", True),
        ("SELECT a FROM d WHERE a > 5 AND a > (SELECT 1)", True),
        ("SELECT a, (SELECT count(*) FROM d) FROM d WHERE a > 5", False),
        ("SELECT a FROM d WHERE a > 5 UNION ALL SELECT a FROM d", False),
        ("SELECT a FROM d AS t(b, a) WHERE a > 5", False),
        ("SELECT a FROM d JOIN d AS e USING (a) WHERE a > 5", False),
        ("SELECT a FROM (SELECT a FROM d LIMIT 3) WHERE a > 5", False),
        ("WITH d AS (SELECT 7 AS a) SELECT a FROM d WHERE a > 5", False),
        ("SELECT a FROM d WHERE a > 5 USING SAMPLE 3", False),
        ("SELECT a FROM d TABLESAMPLE 50% WHERE a > 5", False),
        ("SELECT a FROM d QUALIFY a > 5", False),
        ("SELECT a FROM d WHERE a > 5 OR true", False),
    ],
)
def test_only_a_plain_where_over_one_table_bounds_rows(sql: str, is_bound: bool) -> None:
    assert bool(wanted_by(sql).bounds) is is_bound


# --- any SELECT over any table gives the same with what is wanted as with everything ----------------------------------

_NAMES = ["a", "b", "C", "d", "t", "x y"]
_TYPES = [
    "INTEGER",
    "DOUBLE",
    "DECIMAL(6,2)",
    "VARCHAR",
    "DATE",
    "TIMESTAMP",
    "BOOLEAN",
    "STRUCT(a INTEGER, b INTEGER)",
]
_ROWS = """
    SELECT i, i / 2.0, i * 1.25, chr(100 + i), DATE '2024-01-01' + i, TIMESTAMP '2024-01-01' + INTERVAL (i * 12) HOUR,
        i % 2 = 0, {'a': i, 'b': -i} FROM (SELECT unnest(range(-3, 6))::INTEGER AS i)
    UNION ALL SELECT NULL, 'nan'::DOUBLE, NULL, '3', NULL, 'infinity', NULL, NULL
"""

_names = st.sampled_from(_NAMES).map(identifier)
_columns = st.one_of(_names, _names.map("d.{}".format), _names.map("t.{}".format))
_literals = st.sampled_from(
    [
        *("0", "3", "-2", "1.5", "1e1", "'3'", "'b'", "NULL", "true", "DATE '2024-01-03'", "'2024-01-02'"),
        *("TIMESTAMP '2024-01-02 12:00:00'", "'2024-01-03'::DATE"),
    ]
)
_comparisons = st.one_of(
    st.tuples(_columns, st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), _literals).map(" ".join),
    st.tuples(_literals, st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), _columns).map(" ".join),
    st.tuples(_columns, _literals, _literals).map(lambda parts: "{} BETWEEN {} AND {}".format(*parts)),
    _columns.map("{} IS NOT NULL".format),
)
_conditions = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda parts: "({} AND {})".format(*parts)),
        st.tuples(inner, inner).map(lambda parts: "({} OR {})".format(*parts)),
        inner.map("NOT ({})".format),
    ),
    max_leaves=4,
)
_items = st.one_of(
    _columns,
    st.tuples(_columns, _names).map(" AS ".join),
    st.tuples(_columns, _names).map("::VARCHAR || 'z' AS ".join),
    st.sampled_from(
        [
            *("*", "d.*", "* EXCLUDE (a)", "COLUMNS('[a-c]')", "d", "count(*) OVER ()", "(SELECT count(*) FROM d)"),
            *("max(a) OVER (ORDER BY b)", "t", "[y + 1 FOR y IN [1, 2]]", "#1"),
        ]
    ),
)
_tables = st.sampled_from(["d", "main.d", "d AS t", "d AS a", "(SELECT * FROM d) AS t", "d AS t(b, a)", "d, d AS t"])
_selects = st.tuples(
    st.lists(_items, min_size=1, max_size=3).map(", ".join),
    _tables,
    st.one_of(st.just(""), _conditions.map(" WHERE {}".format)),
).map(lambda parts: "SELECT {} FROM {}{}".format(*parts))
_statements = st.one_of(
    _selects,
    st.tuples(_selects, _selects).map(" UNION ALL ".join),
    _selects.map("WITH x AS ({}) SELECT * FROM x".format),
    _selects.map("WITH x AS ({}) SELECT a FROM x WHERE a = 1".format),
    _conditions.map("SELECT count(*) AS n, count(a) AS m FROM d WHERE {}".format),
    st.tuples(_names, _conditions).map(
        lambda parts: "SELECT {} AS k, count(*) AS n FROM d WHERE {} GROUP BY ALL".format(*parts)
    ),
)


@settings(suppress_health_check=list(HealthCheck))
@given(sql=_statements, kinds=st.permutations(_TYPES))
def test_unread_columns_and_rows_do_not_change_the_result(sql: str, kinds: list[str]) -> None:
    types = dict(zip(_NAMES, kinds, strict=False))
    with duckdb.connect() as connection:
        every = ", ".join(f"c{index}" for index in range(len(_TYPES)))
        columns = ", ".join(f"c{_TYPES.index(kind)}::{kind} AS {identifier(name)}" for name, kind in types.items())
        connection.execute(f"CREATE TABLE everything AS SELECT {columns} FROM ({_ROWS}) r({every})")
        expected = answer(connection, sql, "SELECT * FROM everything")
        if expected is None:
            return

        wanted = wanted_by(sql)

        chosen = [name for name in types if wanted.columns is None or name.lower() in wanted.columns] or list(types)
        folded = {name.lower(): kind for name, kind in types.items()}
        bounds = [bound for bound in wanted.bounds if is_judged(bound, folded.get(bound.column))]
        where = " AND ".join(["true", *(f"{identifier(bound.column)} {bound.operator} ?" for bound in bounds)])
        part = f"SELECT {', '.join(map(identifier, chosen))} FROM everything WHERE {where}"
        connection.execute(f"CREATE TABLE part AS {part}", [bound.value for bound in bounds])
        assert answer(connection, sql, "SELECT * FROM part") == expected


def answer(connection: duckdb.DuckDBPyConnection, sql: str, content: str) -> list[str] | None:
    connection.execute(f"CREATE OR REPLACE VIEW d AS {content}")
    try:
        rows = connection.execute(sql)
        names = [column[0] for column in rows.description or ()]
        return [repr(names), *sorted(map(repr, rows.fetchall()))]
    except duckdb.Error:
        return None


def is_judged(bound: Bound, kind: str | None) -> bool:
    """Say what a source can judge as the engine does: numbers by numbers, times by times."""
    if kind in {"INTEGER", "DECIMAL(6,2)", "DOUBLE"}:
        return isinstance(bound.value, int | float | Decimal)
    if kind in {"DATE", "TIMESTAMP"}:
        return isinstance(bound.value, date)
    return kind == "VARCHAR" and isinstance(bound.value, str) and bound.operator == "="
