"""
The text of a rule decides what its names mean, whatever columns the data has, or the rule is refused.

Generated rules run on tables with some columns of a fixed set, and again after columns were added, dropped, or became
text. The text of a value never changes, so if the rule fits both, it must show the same rows.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import duckdb
import pytest

from queryengine.errors import StatementError, StatementNotAllowedError
from queryengine.execution.rule_gate import gate_rule
from queryengine.gate.gate import Gate
from queryengine.gate.rule_names import OUTERMOST
from queryengine.key_catalog import GatedRule
from runtimeconf.model import DatasetRule
from tests.corpus import each
from tests.queryengine import hidden_rows

TABLES = ("orders", "grants", "active")
#: Names of columns, some of which are also names of tables and aliases.
NAMES = ("id", "tenant", "level", "orders", "grants", "g", "a", "x", "tags")
ALIASES = ("a", "g", "x", "h", "orders", "grants")
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN")
ROWS = 4

#: The type and values of each column of each table.
Data = dict[str, dict[str, tuple[str, list[str]]]]

#: Rules that are refused, and what the message says.
_ON, _NAMES, _ALIAS = "joined with ON", "write the names of the columns", "before"
REFUSED = (
    ("tenant IN (WITH g AS (FROM grants) SELECT g.tenant FROM g)", _ON),
    ("tenant IN (WITH RECURSIVE g AS (SELECT 'a' AS t UNION SELECT t FROM g) SELECT t FROM g)", _ON),
    ("tenant IN (SELECT g.tenant FROM (FROM grants) AS g)", _ON),
    ("tenant IN (SELECT g.tenant FROM (grants JOIN active ON true) AS g)", _ON),
    ("tenant IN (SELECT g.tenant FROM grants AS g, LATERAL (SELECT g.level) AS h)", _ON),
    ("tenant IN (SELECT grants.tenant FROM grants NATURAL JOIN active)", _ON),
    ("tenant IN (SELECT g.tenant FROM grants AS g JOIN active AS a ON true JOIN active AS b USING (x))", "USING"),
    ("tenant IN (SELECT g.tenant FROM grants AS g POSITIONAL JOIN active AS a)", _ON),
    ("tenant IN (SELECT g.tenant FROM grants AS g ASOF JOIN active AS a ON g.level >= a.level)", _ON),
    ("tenant IN (SELECT u.a FROM unnest(['acme']) AS u(a))", _ON),
    ("tenant IN (SELECT v.a FROM (VALUES ('acme')) AS v(a))", _ON),
    ("id IN (SELECT range.range FROM range(9))", _ON),
    ("EXISTS (FROM (UNPIVOT (SELECT level FROM grants) ON level INTO NAME n VALUE v) AS p)", _ON),
    ("tenant IN (SELECT p.tenant FROM grants PIVOT (sum(level) FOR kind IN (2) GROUP BY tenant) AS p)", _ON),
    ("tenant IN (SELECT g.b FROM grants AS g(a, b, c))", "t(a, b)"),
    ("tenant IN (SELECT tenant FROM grants UNION SELECT tenant FROM active ORDER BY tenant)", "ORDER BY"),
    ("tenant IN (SELECT lower(tenant) FROM grants UNION BY NAME SELECT tenant FROM active)", "BY NAME"),
    ("tenant = (SELECT lower(tenant) AS tenant FROM grants ORDER BY Tenant LIMIT 1)", "instead of tenant"),
    ("EXISTS (SELECT level AS id FROM grants GROUP BY level HAVING id > 1)", "instead of id"),
    ("level = (SELECT s.level AS level FROM grants ORDER BY level LIMIT 1)", "instead of level"),
    ("level = (SELECT DISTINCT ON (x) g.s.level AS level FROM grants AS g ORDER BY g.x, level)", "instead of level"),
    ("tenant IN (SELECT orders.tenant AS tenant FROM grants ORDER BY tenant)", "instead of tenant"),
    ("#2 = 'acme'", _NAMES),
    ("tenant NOT IN (FROM active)", _NAMES),
    ("tenant IN (TABLE active)", _NAMES),
    ("tenant = ANY(SELECT * EXCLUDE (level) FROM active)", _NAMES),
    ("(1, tenant) IN (SELECT a.* FROM active AS a)", _NAMES),
    ("EXISTS (SELECT grants.* FROM grants)", _NAMES),
    ("EXISTS (SELECT DISTINCT * FROM grants OFFSET 1)", _NAMES),
    ("EXISTS (SELECT * FROM grants ORDER BY ALL)", _NAMES),
    ("EXISTS (SELECT * FROM grants GROUP BY ALL)", _NAMES),
    ("EXISTS (SELECT *, count(*) FROM grants GROUP BY 1)", _NAMES),
    ("EXISTS (SELECT * REPLACE (1 AS level) FROM grants WHERE level = 1)", _NAMES),
    ("tenant IN (SELECT tenant FROM grants UNION ALL FROM active)", _NAMES),
    ("tenant IN (SELECT COLUMNS('tenant') FROM active)", _NAMES),
    ("concat(*COLUMNS(c -> c LIKE 'ten%')) = 'acme'", _NAMES),
    ("tenant IN (SELECT a.tenant FROM active AS a JOIN grants AS g ON kind = 2)", _ALIAS),
    ("tenant IN (SELECT kind::VARCHAR FROM grants, active)", _ALIAS),
    ("id IN (SELECT x FROM grants JOIN active USING (x))", _ALIAS),
    ("EXISTS (FROM grants AS g, active AS G WHERE g.x = 1)", "g occurs twice"),
    ("id = " + "-".join(["id"] * 400), "simpler form"),
    ("EXISTS (FROM active WHERE main.active.level = 1)", "write active.level instead"),
    ("EXISTS (FROM grants JOIN active ON grants.level = a.level JOIN active AS a ON true)", "a is not in the join"),
    ("EXISTS (FROM active AS orders, grants AS b JOIN grants AS c ON orders.x = b.x)", "orders is not in the join"),
    (
        "EXISTS (FROM grants JOIN (active JOIN grants AS g ON EXISTS (FROM active AS a WHERE grants.x = 1)) ON true)",
        "ON",
    ),
    ("lower(tenant.trim()) = 'acme'", "write trim(tenant)"),
    ("EXISTS (FROM grants WHERE pg_catalog.starts_with(orders.tenant))", "write starts_with(pg_catalog)"),
    ("list_contains(list_transform([s], lambda x: x.tenant), 'acme')", "write x['tenant']"),
    ("list_contains([x.tenant for x in [s]], 'acme')", "write x['tenant']"),
    ("len(list_filter([1], lambda x: EXISTS (FROM grants WHERE level = x))) > 0", "subquery"),
    ("alias(tenant) = 'tenant'", "name of a column"),
    ("struct_pack(tenant)::VARCHAR <> ''", "name of a column"),
)


class Rules:
    """Generates data and row filters of `orders`."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.pick = self.random.choice

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def data(self) -> Data:
        return {table: {name: self._column(name) for name in NAMES} for table in TABLES}

    def some(self, data: Data, row_filter: str) -> Data:
        """Return *data* with most columns that *row_filter* contains, and some others."""
        return {
            table: {name: one for name, one in columns.items() if self.chance(0.8 if name in row_filter else 0.1)}
            for table, columns in data.items()
        }

    def changed(self, data: Data, columns: Data, row_filter: str) -> Data:
        """Return *columns* after one to three of them were dropped or added, or became text."""
        found = {table: dict(one) for table, one in columns.items()}
        for _ in range(self.pick((1, 1, 2, 3))):
            table, name = self.pick(TABLES), self.pick([name for name in NAMES if name in row_filter] or NAMES)
            type_, values = found[table].pop(name, (None, []))
            if type_ is None:
                found[table][name] = data[table][name]
            elif type_ == "INTEGER" and self.chance(0.5):
                found[table][name] = "VARCHAR", values
        return found

    def _column(self, name: str) -> tuple[str, list[str]]:
        kind = "list" if name == "tags" else self.pick(("int", "int", "text", "text", "struct", "json"))
        if kind == "struct":
            fields = self.random.sample(NAMES, 2)
            type_ = f"STRUCT({fields[0]} VARCHAR, {fields[1]} INTEGER)"
            return type_, [f"ROW({self.pick(('1', chr(39) + 'b' + chr(39)))}, 1)" for _ in range(ROWS)]
        if kind == "json":
            return "JSON", [f"'{json.dumps({self.pick(NAMES): self.pick(('acme', 1))})}'" for _ in range(ROWS)]
        type_, values = {
            "int": ("INTEGER", ("1", "2", "NULL")),
            "text": ("VARCHAR", ("'acme'", "'b'", "'1'", "NULL")),
            "list": ("VARCHAR[]", ("['acme']", "['b', 'acme']", "[]")),
        }[kind]
        return type_, [self.pick(values) for _ in range(ROWS)]

    def condition(self, seen: list[str], depth: int) -> str:
        """Return a condition that can name the tables *seen*."""
        form = self.random.random()
        if depth <= 0 or form < 0.3:
            return f"{self._value(seen)}::VARCHAR {self.pick(('=', '<>'))} {self._value(seen)}::VARCHAR"
        if form < 0.55:
            query = self._query(seen, depth - 1)
            return f"{self._name(seen)} {self.pick(('IN', 'NOT IN'))} ({query})"
        if form < 0.75:
            source, own = self._source(seen, depth)
            where = self.condition([*seen, *own, *TABLES], depth - 1)
            return f"{self.pick(('', 'NOT '))}EXISTS (FROM {source} WHERE {where})"
        if form < 0.85:
            return f"{self._name(seen)} = (SELECT max({self._name([*seen, *TABLES])}) FROM {self.pick(TABLES)})"
        one, other = (self.condition(seen, depth - 1) for _ in range(2))
        return f"({one} {self.pick(('AND', 'OR'))} {other})"

    def _query(self, seen: list[str], depth: int) -> str:
        source, own = self._source(seen, depth)
        selected = self._value([*seen, *own, *own])
        where = f" WHERE {self.condition([*seen, *own, *own], depth - 1)}" if self.chance(0.5) else ""
        end = self.pick(("", "", "", "", f" GROUP BY {selected}", f" ORDER BY {selected} LIMIT 1"))
        query = f"SELECT {selected} FROM {source}{where}{end}"
        return f"({query}) UNION {self._query(seen, depth - 1)}" if depth > 0 and self.chance(0.1) else query

    def _source(self, seen: list[str], depth: int) -> tuple[str, list[str]]:
        table, own = self._table()
        while self.chance(0.35):
            other, others = self._table()
            own += others
            on = f"USING ({self.pick(NAMES)})"
            if self.chance(0.6):
                on = f"ON {self.condition([*seen, *own], depth - 1)}"
            table = f"{table} {self.pick(JOINS)} {other} {on}"
        return table, own

    def _table(self) -> tuple[str, list[str]]:
        table, alias = self.pick(TABLES), self.pick(ALIASES)
        return (table, [table]) if self.chance(0.4) else (f"{table} AS {alias}", [alias])

    def _name(self, seen: list[str]) -> str:
        parts = [self.pick(NAMES)]
        if self.chance(0.5):
            parts.insert(0, self.pick(seen))
        if self.chance(0.1):
            parts.append(self.pick(NAMES))
        return ".".join(parts)

    def _value(self, seen: list[str]) -> str:
        form, name = self.random.random(), self._name(seen)
        if form < 0.8:
            return name
        if form < 0.9:
            element, other = self.pick((*NAMES, "x")), self._name(seen)
            of_element = self.pick((element, f"{element}['{self.pick(NAMES)}']"))
            return self.pick(
                (
                    f"len(list_filter([{name}], lambda {element}: {of_element}::VARCHAR = {other}::VARCHAR))",
                    f"[{of_element} for {element} in [{name}] if {element}::VARCHAR <> {other}::VARCHAR]",
                    f"list_transform([{name}], lambda {element}: {{'a': {element}}})",
                )
            )
        return self.pick(("'acme'", "1", "current_date", "user"))


def rows_of(connection: duckdb.DuckDBPyConnection, columns: Data, sql: str) -> list[int] | None:
    """Return the rows that *sql* shows on tables with *columns*; None if it does not fit them, or fails on a value."""
    connection.execute("DROP SCHEMA IF EXISTS tables CASCADE; CREATE SCHEMA tables; USE tables")
    for table, listed in columns.items():
        names = ", ".join(("n", *listed))
        rows = (
            ", ".join([str(row), *(f"{all_[row]}::{type_}" for type_, all_ in listed.values())]) for row in range(ROWS)
        )
        values = ", ".join(f"({row})" for row in rows)
        connection.execute(f"CREATE TABLE {table} AS FROM (VALUES {values}) v({names})")
    try:
        return sorted(n for (n,) in connection.execute(sql.replace("SELECT 1", "SELECT n", 1)).fetchall())
    except duckdb.Error:
        return None


def answers(rules: Rules, row_filter: str, rule: GatedRule) -> Iterator[tuple[list[int] | None, list[int] | None]]:
    """Yield the rows that *rule* shows in each of some states of the columns, and those that its own text shows."""
    data, own = rules.data(), f"FROM orders SELECT 1 WHERE (\n{row_filter}\n)"
    sql = f"FROM orders AS {OUTERMOST} SELECT 1 WHERE (\n{rule.row_filter}\n)"
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for _ in range(6):
            first = rules.some(data, row_filter)
            if rows_of(connection, first, sql) is not None:
                states = [first, *(rules.changed(data, first, row_filter) for _ in range(4))]
                states += [rules.changed(data, one, row_filter) for one in states[1:4]]
                for state in states:
                    rows = rows_of(connection, state, sql)
                    fits = rows is not None and not is_retyped(rule, first, state)
                    yield rows if fits else None, rows_of(connection, state, own)
                return


def is_retyped(rule: GatedRule, first: Data, present: Data) -> bool:
    """Return whether *rule* does not fit the types: see `visible_rows.check_types`."""
    return any(first[table][name][0] != present[table][name][0] for table, name in rule.uncast)


def gated(row_filter: str) -> GatedRule:
    return gate_rule(DatasetRule(dataset="orders", row_filter=row_filter), frozenset((*TABLES, "s.t", "s.s")), Gate())


@each(("row_filter", "message"), REFUSED)
def test_a_rule_whose_names_depend_on_the_data_is_refused(row_filter: str, message: str) -> None:
    with pytest.raises(StatementNotAllowedError) as caught:
        gated(row_filter)
    assert message in str(caught.value)


@each(
    ("row_filter", "expected"),
    [
        ("Tenant = 'acme' -- c", "(A0.Tenant = 'acme')"),
        ("s.a.b = 1 AND orders.t.c = 1", "((A0.s.a.b = 1) AND (A0.t.c = 1))"),
        ("tenant IN (SELECT tenant FROM grants)", "(A0.tenant = ANY(SELECT A1.tenant FROM grants AS A1))"),
        ("EXISTS (FROM grants WHERE grants.s.t = 1)", "EXISTS(SELECT * FROM grants AS A1 WHERE (A1.s.t = 1))"),
        ("id = (SELECT max(orders.id) FROM orders)", "(A0.id = (SELECT max(A1.id) FROM orders AS A1))"),
        ("tags = [current_date]", "(A0.tags = list_value(current_date()))"),
        ("\"current_date\" = 'é' AND Current_Time = 1", "((A0.current_date = 'é') AND (get_current_time() = 1))"),
        (
            "list_filter(tags, lambda x: x > id) = []",
            "(list_filter(A0.tags, (lambda Ap0: (Ap0 > A0.id))) = list_value())",
        ),
        ("(SELECT id) = 1", "((SELECT A0.id) = 1)"),
        (
            "EXISTS (SELECT x AS x, grants.y AS y FROM grants GROUP BY x, y HAVING x > 1)",
            "EXISTS(SELECT A1.x AS x, A1.y AS y FROM grants AS A1 GROUP BY A1.x, A1.y HAVING (A1.x > 1))",
        ),
        ("tenant NOT LIKE 'a!%' ESCAPE '!'", "(NOT like_escape(A0.tenant, 'a!%', '!'))"),
    ],
)
def test_names_are_written_with_the_alias_of_their_dataset(row_filter: str, expected: str) -> None:
    assert gated(row_filter).row_filter == re.sub("A(?=p?[0-9])", OUTERMOST.removesuffix("0"), expected)


def test_the_text_that_the_engine_writes_has_the_same_values() -> None:
    compared, gate = 0, Gate()
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(f"CREATE TABLE orders AS FROM ({hidden_rows.ORDERS}) ORDER BY id LIMIT 40")

        def values(expression: str) -> str:
            try:
                return repr(connection.execute(f"FROM orders AS {OUTERMOST} SELECT ({expression})").fetchall())
            except duckdb.Error as error:
                return type(error).__name__

        for text in (*hidden_rows.VALUES, *hidden_rows.TESTS):
            with suppress(StatementError):
                rule = gate_rule(DatasetRule(dataset="orders", row_filter=text), frozenset({"orders"}), gate)
                found = values(str(rule.row_filter))
                assert found == values(text), text
                compared += found.startswith("[")
    assert compared > 25


@each(
    ("row_filter", "columns"),
    [
        ("s.a.b = 1 AND orders.T.c = 1", "orders.s orders.t"),
        ("EXISTS (FROM grants AS G WHERE g.tenant = ORDERS.tenant)", "grants.tenant orders.tenant"),
        ("tenant IN (SELECT orders.tenant FROM grants AS orders)", "orders.tenant grants.tenant"),
        ("EXISTS (FROM grants AS g JOIN s.t ON g.x = t.x WHERE EXISTS (FROM active WHERE y = g.z))",
         "s.t.x grants.x active.y grants.z"),
        ("id IN (SELECT y FROM grants WHERE EXISTS (FROM active AS a SEMI JOIN s.t USING (X) JOIN s.s USING (x)))",
         "orders.id grants.y active.x s.t.x s.s.x"),
        ("(SELECT count(*) FROM grants) > 0 AND now() > current_timestamp", ""),
    ],
)  # fmt: skip
def test_the_columns_that_a_rule_reads(row_filter: str, columns: str) -> None:
    assert {".".join(column) for column in gated(row_filter).columns} == {*columns.split()}


@each(
    ("row_filter", "counts"),
    [
        ("s IS TRUE", True),
        ("s IS NOT FALSE", True),
        ("CAST(s AS BOOLEAN) IS TRUE", False),
        ("s::BOOLEAN", False),
        ("orders.s::BOOLEAN AND s", True),
        ("CAST(s.a AS BOOLEAN)", True),
        ("CAST(s AS STRUCT(a BOOLEAN)).a", False),
        ("CAST(lower(s) AS BOOLEAN)", True),
    ],
)
def test_a_use_of_a_column_counts_unless_it_is_in_a_cast(row_filter: str, counts: bool) -> None:
    assert (("orders", "s") in gated(row_filter).uncast) == counts


@pytest.mark.parametrize(
    "number", [40, pytest.param(400, marks=pytest.mark.exhaustive), pytest.param(4_000, marks=pytest.mark.soak)]
)
def test_a_rule_that_fits_before_and_after_a_change_shows_the_same_rows(number: int) -> None:
    rules, gate = Rules(number), Gate()
    compared = prevented = 0
    for _ in range(number):
        row_filter = rules.condition(["orders"], 3)
        try:
            rule = gate_rule(DatasetRule(dataset="orders", row_filter=row_filter), frozenset(TABLES), gate)
        except StatementError:
            continue
        found = [*answers(rules, row_filter, rule)]
        fitting = [rows for rows, _ in found if rows is not None]
        assert all(rows == fitting[0] for rows in fitting), row_filter
        compared += max(0, len(fitting) - 1)
        prevented += len({tuple(rows) for _, rows in found if rows is not None}) > 1
    assert compared > number / 2
    assert number < 400 or prevented > number / 100
