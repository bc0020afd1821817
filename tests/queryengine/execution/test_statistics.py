from collections.abc import Iterator

import duckdb
import pytest

from queryengine.execution.statistics import LARGE_ROWS, VECTOR_ROWS, BatchSizes, Pace

SQL = "FROM t"
LONG = Pace(rows=LARGE_ROWS)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(
            """
            CREATE TABLE t AS SELECT i AS id, i % 2 = 0 AS even, i::DECIMAL(18,2) AS price, 'name ' || i AS name,
                ('x' || i)::BLOB AS raw, NULL AS nothing, 'a'::ENUM ('a', 'b') AS letter, [i] AS list,
                {'a': i} AS struct, uuid() AS uuid, repeat('x', 1000 * (i % 2)) AS wide
            FROM range(10) t(i)
            """
        )
        yield connection


def learnt(connection: duckdb.DuckDBPyConnection, sql: str, pace: Pace = LONG) -> int:
    sizes, relation = BatchSizes(1), connection.sql(sql)
    sizes.learn(SQL, relation, relation.to_arrow_reader(1).schema, pace)
    return sizes.get(SQL, VECTOR_ROWS)


@pytest.mark.parametrize(
    ("selected", "vectors"),
    [
        pytest.param("name FROM t WHERE false --", 1, id="no texts at all"),
        pytest.param("id", 60, id="numbers"),
        pytest.param("id, even, price, letter, nothing", 30, id="of known width"),
        pytest.param("name, raw", 60, id="short texts"),
        pytest.param("name, name, name, name, name, name", 20, id="several texts"),
        pytest.param("wide", 1, id="long texts"),
        pytest.param("name || 'x'", 1, id="texts that nothing bounds"),
        pytest.param("uuid", 1, id="texts that are none in the engine"),
        pytest.param("list", 1, id="list"),
        pytest.param("struct", 1, id="struct"),
    ],
)
def test_batches_are_as_large_as_their_rows_allow(
    connection: duckdb.DuckDBPyConnection, selected: str, vectors: int
) -> None:
    assert learnt(connection, f"SELECT {selected} FROM t") == vectors * VECTOR_ROWS


@pytest.mark.parametrize(
    "spent",
    [
        pytest.param([(LARGE_ROWS - 1, 0.0)], id="short"),
        pytest.param([(LARGE_ROWS, 1.0)], id="slow"),
        pytest.param([(0, 0.2), (100 * LARGE_ROWS, 0.0)], id="slow to begin"),
    ],
)
def test_nothing_is_learnt_of_an_answer_that_is(
    connection: duckdb.DuckDBPyConnection, spent: list[tuple[int, float]]
) -> None:
    pace = Pace()
    for rows, seconds in spent:
        pace.add(rows, seconds)

    assert learnt(connection, "SELECT id FROM t", pace) == VECTOR_ROWS
