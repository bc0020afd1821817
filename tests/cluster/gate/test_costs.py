import re

import pytest

from cluster.gate.gate import SparkGate
from queryengine.errors import SqlSyntaxError, StatementError, StatementNotAllowedError
from tests.cluster.clusters import ClusterEngine
from tests.cluster.gate.statements import DECLARED


def lambdas(levels: int) -> str:
    return "SELECT " + "transform(array(1), x -> " * levels + "1" + ")" * levels


def doubled(levels: int) -> str:
    """Return a statement each of whose common table expressions reads the one before it twice."""
    later = [f"a{level} AS (SELECT a.x FROM a{level - 1} a, a{level - 1} b)" for level in range(1, levels)]
    return f"WITH {', '.join(['a0 AS (SELECT 1 AS x)', *later])} SELECT * FROM a{levels - 1}"


def chained(levels: int) -> str:
    later = [f"a{level} AS (SELECT x + 1 AS x FROM a{level - 1})" for level in range(1, levels)]
    return f"WITH {', '.join(['a0 AS (SELECT 1 AS x)', *later])} SELECT * FROM a{levels - 1}"


def grouped(by: str) -> str:
    return f"SELECT count(*) FROM flights GROUP BY {by}"


def schema(levels: int) -> str:
    return f"SELECT from_json('[]', '{'array<' * levels}int{'>' * levels}')"


@pytest.mark.parametrize(
    "sql",
    [
        lambdas(12),
        doubled(9),
        chained(400),
        "WITH a AS (WITH b AS (SELECT 1 AS x), c AS (SELECT * FROM b) SELECT * FROM c) SELECT * FROM a",
        grouped("CUBE(id, carrier, id + 1, id + 2, id + 3)"),
        grouped("id, carrier WITH ROLLUP"),
        grouped("GROUPING SETS ((id), (carrier), ())"),
        schema(20),
        "SELECT id FROM range(0, 10, 3)",
    ],
)
def test_the_cluster_answers_what_costs_little(engine: ClusterEngine, sql: str) -> None:
    assert engine.run(sql).startswith(b"[")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (lambdas(13), "12 lambda functions in each other"),
        (doubled(10), "1,000 reads of common table expressions"),
        (f"WITH unread AS ({doubled(12)}) SELECT 1", "1,000 reads of common table expressions"),
        (grouped(f"CUBE({', '.join(['id'] * 11)})"), "1,024 grouping sets"),
        (grouped(f"{', '.join(['id'] * 11)} WITH CUBE"), "1,024 grouping sets"),
        (grouped(f"ROLLUP({', '.join(['id'] * 40)}), ROLLUP({', '.join(['id'] * 40)})"), "1,024 grouping sets"),
        (grouped(f"GROUPING SETS (CUBE({', '.join(['id'] * 10)}), id)"), "1,024 grouping sets"),
        (grouped(f"CUBE({', '.join(['id'] * 5000)})"), "1,024 grouping sets"),
        (schema(501), "500 brackets of a type"),
        ("SELECT from_csv('1', 'a ' " + "'array<' " * 501 + "'int')", "500 brackets of a type"),
        ("SELECT from_json('1', r'" + '{"type":' * 501 + "')", "500 brackets of a type"),
    ],
)
def test_what_would_stop_the_cluster_is_refused(gate: SparkGate, sql: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError, match=re.escape(message)):
        gate.admit(sql, DECLARED)


def test_a_recursive_expression_does_not_count_its_reads_of_itself(gate: SparkGate) -> None:
    sql = (
        "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM (WITH b AS (SELECT * FROM a) SELECT * FROM b))"
    )

    assert gate.admit(f"{sql} SELECT * FROM a", DECLARED).relations == frozenset()


def test_the_cluster_chooses_the_partitions_of_a_range(gate: SparkGate) -> None:
    with pytest.raises(StatementNotAllowedError, match="at most three arguments"):
        gate.admit("SELECT * FROM range(0, 10, 1, 2000000000)", DECLARED)


def test_a_type_with_more_digits_than_a_decimal_has_is_an_error_of_the_statement(engine: ClusterEngine) -> None:
    with pytest.raises(StatementError, match=r"decimal\(40,0\), which cannot be sent"):
        engine.run(f"SELECT to_number('1', '{'9' * 40}')")
