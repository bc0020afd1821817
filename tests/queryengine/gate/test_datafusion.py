"""What the gate rewrites of DataFusion's SQL, and that it leaves everything else alone."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from queryengine.errors import SqlError, SqlSyntaxError, StatementError
from queryengine.gate.gate import Gate
from tests.corpus import each
from tests.queryengine.statements import DECLARED, FAILING, READS, REFUSED, lines

FLIGHTS = frozenset({"flights", "airlines"})


@pytest.fixture(scope="module")
def plain() -> Iterator[Gate]:
    with closing(Gate(datafusion_sql=False)) as made:
        yield made


@each("line", lines("datafusion.txt"))
def test_what_runs(gate: Gate, line: str) -> None:
    written, _, runs = line.partition(" => ")

    if runs == "!":
        with pytest.raises(StatementError):
            gate.admit(written, FLIGHTS)
    else:
        assert gate.admit(written, FLIGHTS).sql == (written if runs == "=" else runs)


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
def test_a_left_semi_join_is_a_semi_join(gate: Gate, kind: str) -> None:
    statement = gate.admit(f"SELECT id FROM flights LEFT {kind} JOIN airlines USING (carrier)", FLIGHTS)

    assert statement.sql == f"SELECT id FROM flights {kind} JOIN airlines USING (carrier)"
    assert statement.relations == FLIGHTS
    assert statement.deterministic


def test_show_columns_describes_a_relation_within_the_scope(gate: Gate) -> None:
    statement = gate.admit("show columns from main.flights;", FLIGHTS)

    assert statement.sql.endswith('"null" AS is_nullable FROM (DESCRIBE main.flights)')
    assert statement.kind == "show"
    assert statement.relations == {"flights"}
    with pytest.raises(SqlError, match=r"^Table 'planes' does not exist\.$"):
        gate.admit("SHOW COLUMNS FROM planes", FLIGHTS)
    with pytest.raises(StatementError):
        gate.admit("SHOW COLUMNS FROM flights WHERE 1", FLIGHTS)


def test_a_rewritten_statement_is_judged_whole(gate: Gate) -> None:
    with pytest.raises(SqlError, match=r"^Table 'planes' does not exist\.$"):
        gate.admit("SELECT make_array(1) FROM flights LEFT SEMI JOIN planes USING (tailnum)", FLIGHTS)
    with pytest.raises(StatementError, match="'read_text' is not allowed"):
        gate.admit("SELECT make_array(1) FROM read_text('/etc/passwd')", FLIGHTS)
    with pytest.raises(StatementError, match="'getvariable' is not allowed"):
        gate.admit("SELECT struct(getvariable('a') AS b)", FLIGHTS)
    with pytest.raises(SqlSyntaxError, match="line 1, column 12"):
        gate.admit("SELECT 1 + , make_array(1)", FLIGHTS)


def test_a_rewritten_statement_keeps_its_lines_and_what_it_depends_on(gate: Gate) -> None:
    statement = gate.admit("-- a\n\nSELECT make_array(now()),\n  nvl(1, 2) FROM flights", FLIGHTS)

    assert statement.sql == "SELECT list_value(now()),\n  nvl(1, 2) FROM flights"
    assert statement.lines_before == 2
    assert statement.macros == {"nvl"}
    assert statement.relations == {"flights"}
    assert not statement.deterministic
    assert gate.admit("SELECT make_array(1)", FLIGHTS).deterministic
    assert gate.admit("EXPLAIN SELECT make_array(1)", FLIGHTS).sql == "EXPLAIN\nSELECT list_value(1)"


@each("sql", [*READS, *FAILING, *(sql for _, sql in REFUSED)])
def test_what_is_not_datafusions_is_judged_as_ever(gate: Gate, plain: Gate, sql: str) -> None:
    assert outcome(gate, sql) == outcome(plain, sql)


def outcome(gate: Gate, sql: str) -> tuple[object, ...]:
    try:
        found = gate.admit(sql, DECLARED)
    except StatementError as error:
        return type(error), str(error).partition(" Did you mean")[0]
    return found, found.deterministic, found.pattern, found.digest, found.lines_before, found.catalog, found.macros
