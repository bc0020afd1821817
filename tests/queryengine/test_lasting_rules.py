"""
Generated rules mean the same before and after changes of columns, or do not fit the data.

A rule runs on tables with some columns of a fixed set, and again after columns were added and dropped. The values of a
column never change, so if the rule fits both, it must show the same rows.
"""

import json
from collections.abc import Iterator
from random import Random

import duckdb
import pytest

from queryengine.errors import StatementError
from queryengine.execution.lasting_rules import doubt
from queryengine.execution.rule_gate import gate_rule
from queryengine.gate.gate import Gate
from queryengine.key_catalog import GatedRule
from runtimeconf.model import DatasetRule

TABLES = ("orders", "grants", "active")
#: Names of columns, some of which are also names of tables and aliases.
NAMES = ("id", "tenant", "level", "orders", "grants", "g", "a", "x", "tags")
ALIASES = ("a", "g", "x", "h", "orders", "grants")
JOINS = ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN")
ROWS = 4

#: The type and values of each column of each table.
Data = dict[str, dict[str, tuple[str, list[str]]]]


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
        """Return *columns* after one to three of them were dropped or added."""
        found = {table: dict(one) for table, one in columns.items()}
        for _ in range(self.pick((1, 1, 2, 3))):
            table, name = self.pick(TABLES), self.pick([name for name in NAMES if name in row_filter])
            if found[table].pop(name, None) is None:
                found[table][name] = data[table][name]
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

    def condition(self, seen: list[str], depth: int, expressions: list[str]) -> str:
        """Return a condition that can name the tables *seen*, and *expressions* of WITH in its queries."""
        form = self.random.random()
        if depth <= 0 or form < 0.3:
            return f"{self._value(seen)}::VARCHAR {self.pick(('=', '<>'))} {self._value(seen)}::VARCHAR"
        if form < 0.55:
            query = self._query(seen, depth - 1, expressions)
            return f"{self._name(seen)} {self.pick(('IN', 'NOT IN'))} ({query})"
        if form < 0.75:
            source, own = self._source(seen, depth, expressions)
            where = self.condition([*seen, *own, *TABLES], depth - 1, expressions)
            return f"{self.pick(('', 'NOT '))}EXISTS (FROM {source} WHERE {where})"
        if form < 0.85:
            return f"{self._name(seen)} = (SELECT max({self._name([*seen, *TABLES])}) FROM {self.pick(TABLES)})"
        one, other = (self.condition(seen, depth - 1, expressions) for _ in range(2))
        return f"({one} {self.pick(('AND', 'OR'))} {other})"

    def _query(self, seen: list[str], depth: int, expressions: list[str]) -> str:
        before = ""
        if depth > 0 and self.chance(0.15):
            name = self.pick(ALIASES)
            before = f"WITH {name} AS ({self.pick((self._query(seen, depth - 1, expressions), 'FROM grants'))}) "
            expressions = [*expressions, name]
        source, own = self._source(seen, depth, expressions)
        selected = self._value([*seen, *own, *own]) + (f" AS {self.pick(NAMES)}" if self.chance(0.2) else "")
        where = f" WHERE {self.condition([*seen, *own, *own], depth - 1, expressions)}" if self.chance(0.5) else ""
        groups = f" GROUP BY {selected.partition(' AS ')[0]}" if self.chance(0.05) else ""
        return f"{before}SELECT {selected} FROM {source}{where}{groups}"

    def _source(self, seen: list[str], depth: int, expressions: list[str]) -> tuple[str, list[str]]:
        table, own = self._table(seen, depth, expressions)
        if self.chance(0.35):
            other, others = self._table(seen, depth, expressions)
            join, own = self.pick(JOINS), own + others
            on = f"USING ({self.pick(NAMES)})"
            if self.chance(0.6):
                on = f"ON {self.condition([*seen, *own], depth - 1, expressions)}"
            table = f"{table} {join} {other} {on}"
        return table, own

    def _table(self, seen: list[str], depth: int, expressions: list[str]) -> tuple[str, list[str]]:
        table, alias, form = self.pick((*TABLES, *expressions)), self.pick(ALIASES), self.random.random()
        if form < 0.45:
            return table, [table]
        if form < 0.8:
            return f"{table} AS {alias}", [alias]
        if form < 0.9 and depth > 0:
            return f"({self._query(seen, depth - 1, expressions)}) AS {alias}", [alias]
        if form < 0.95:
            return f"(SELECT unnest({table}.{self.pick(NAMES)}) FROM {table}) AS {alias}", [alias]
        return f"(FROM {table}) AS {alias}", [alias]

    def _name(self, seen: list[str]) -> str:
        parts = [self.pick(NAMES)]
        if self.chance(0.5):
            parts.insert(0, self.pick(seen))
        if self.chance(0.1):
            parts.append(self.pick(NAMES))
        return ".".join(parts) + (".lower()" if self.chance(0.08) else "")

    def _value(self, seen: list[str]) -> str:
        form, name = self.random.random(), self._name(seen)
        if form < 0.8:
            return name
        if form < 0.9:
            of_element = self.pick(("", f".{self.pick(NAMES)}", ".lower()"))
            return f"len(list_filter([{name}], lambda x: x{of_element}::VARCHAR = {self._name(seen)}::VARCHAR))"
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


def answers(rules: Rules, row_filter: str, rule: GatedRule) -> Iterator[tuple[list[int], str | None]]:
    """Yield the rows that *rule* shows in each of some states of the columns, and why it does not fit them."""
    data, sql = rules.data(), f"FROM orders SELECT 1 WHERE (\n{rule.row_filter}\n)"
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for _ in range(6):
            columns = rules.some(data, row_filter)
            if rows_of(connection, columns, sql) is not None:
                states = [columns, *(rules.changed(data, columns, row_filter) for _ in range(4))]
                states += [rules.changed(data, one, row_filter) for one in states[1:4]]
                for state in states:
                    if (rows := rows_of(connection, state, sql)) is not None:
                        read = {table: {name: one[0] for name, one in state[table].items()} for table in TABLES}
                        yield rows, doubt(rule, sql, {table: read[table] for table in sorted(rule.relations)})
                return


def test_the_check_of_a_rule_ends_soon_whatever_the_size_of_its_structures() -> None:
    row_filter = "EXISTS (FROM (SELECT unnest(s) FROM orders) AS q WHERE q.f1.name = 'x')"
    rule = gate_rule(DatasetRule(dataset="orders", row_filter=row_filter), frozenset(TABLES), Gate())
    sql = f"FROM orders SELECT 1 WHERE ({rule.row_filter})"

    assert doubt(rule, sql, {"orders": {"s": "STRUCT(f1 STRUCT(name VARCHAR))"}}) is None
    for size in (300, 3_000):  # The plan with 3,000 would take gigabytes.
        structures = ", ".join(f"f{number} STRUCT(id INTEGER, name VARCHAR)" for number in range(size))
        assert "too large" in (doubt(rule, sql, {"orders": {"s": f"STRUCT({structures})"}}) or "")


def test_rules_that_differ_in_a_literal_are_checked_separately() -> None:
    found = []
    for alias in ("tenant", "owner"):
        inner = f"EXISTS (FROM (SELECT 'acme' AS '{alias}') AS q WHERE tenant = orders.tenant)"
        rule = gate_rule(
            DatasetRule(dataset="orders", row_filter=f"EXISTS (FROM grants WHERE {inner})"), frozenset(TABLES), Gate()
        )
        sql = f"FROM orders SELECT 1 WHERE ({rule.row_filter})"
        found.append(doubt(rule, sql, {"orders": {"tenant": "VARCHAR"}, "grants": {"level": "INTEGER"}}))
    assert found[0] is None
    assert found[1] is not None


@pytest.mark.parametrize(
    ("row_filter", "counts"),
    [
        ("EXISTS (FROM (SELECT s.* FROM grants) AS q WHERE q.grade > '5')", True),
        ("s IS TRUE", True),
        ("s IS NOT FALSE", True),
        ("CAST(s AS BOOLEAN) IS TRUE", False),
        ("s::BOOLEAN", False),
    ],
)
def test_a_use_of_a_column_counts_unless_it_is_in_a_cast(row_filter: str, counts: bool) -> None:
    rule = gate_rule(DatasetRule(dataset="orders", row_filter=row_filter), frozenset(TABLES), Gate())
    assert ("s" in rule.uncast) == counts


@pytest.mark.parametrize(
    "number", [40, pytest.param(400, marks=pytest.mark.exhaustive), pytest.param(4_000, marks=pytest.mark.soak)]
)
def test_a_rule_that_fits_before_and_after_a_change_shows_the_same_rows(number: int) -> None:
    rules, gate = Rules(number), Gate()
    compared = prevented = 0
    for _ in range(number):
        row_filter = rules.condition(["orders"], 3, [])
        try:
            rule = gate_rule(DatasetRule(dataset="orders", row_filter=row_filter), frozenset(TABLES), gate)
        except StatementError:
            continue
        found = [*answers(rules, row_filter, rule)]
        fitting = [rows for rows, why in found if why is None]
        assert all(rows == fitting[0] for rows in fitting), row_filter
        compared += max(0, len(fitting) - 1)
        prevented += len({*map(tuple, (rows for rows, _ in found))}) > len({*map(tuple, fitting)})
    assert compared > number / 2
    assert number < 400 or prevented > number / 100
