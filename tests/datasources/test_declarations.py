from pathlib import Path

import pytest
from msgspec.structs import replace

from datasources.refresh.declarations import faults, with_admitted_sql
from datasources.refresh_sql import admit_refresh_sql
from queryengine.errors import StatementError
from queryengine.gate.gate import Gate
from runtimeconf.model import AccelerationConfig, DatasetConfig
from tests.datasources.support import configure, declare


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


def with_sql(directory: Path, sql: str | None, number: int = 0) -> DatasetConfig:
    dataset = declare(directory, "a.csv", name=f"Flights{number}", acceleration=AccelerationConfig(refresh_sql=sql))
    return replace(dataset, yaml_path=f"datasets[{number}]", line=10 + number)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM Flights0",
        "FROM flights0 WHERE a > 1;",
        "SELECT a, count(*) AS n FROM flights0 GROUP BY a",
        "WITH x AS (FROM flights0) SELECT * FROM x",
        "SELECT 1 AS a",
        "VALUES (1)",
        "TABLE flights0",
        "PIVOT flights0 ON a IN (1, 2) USING count(*)",
        "SELECT a AS show, a AS describe FROM flights0 ORDER BY a DESC",
        "SELECT '_catalog.' AS a FROM flights0",
        "SELECT f.a FROM flights0 f, range(3) r",
    ],
)
def test_a_select_over_the_own_dataset_is_admitted(tmp_path: Path, gate: Gate, sql: str) -> None:
    assert faults(configure(tmp_path, with_sql(tmp_path, sql)), gate) == ()


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT 1; SELECT 2",
        "SELECT * FROM other",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM 'a.csv'",
        "DELETE FROM flights0",
        "WITH d AS (DELETE FROM flights0 RETURNING *) SELECT * FROM d",
        "CREATE TABLE x AS SELECT 1",
        "COPY flights0 TO '/tmp/x'",
        "ATTACH '/tmp/x'",
        "SET threads = 1",
        "EXPLAIN SELECT 1",
        "PIVOT flights0 ON a USING count(*)",
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "SHOW DATABASES",
        "SHOW flights0",
        "DESCRIBE flights0",
        "DESC SELECT 1",
        "SUMMARIZE flights0",
        "FROM (SHOW ALL TABLES)",
        "SELECT (SELECT count(*) FROM (DESCRIBE flights0)) AS n",
        "WITH x AS (FROM (SUMMARIZE flights0)) FROM x",
        "SELECT ? AS a",
        "SELECT $1 AS a",
        "SELECT $name AS a",
    ],
)
def test_anything_else_is_a_fault_with_its_yaml_path(tmp_path: Path, gate: Gate, sql: str) -> None:
    config = configure(
        tmp_path, with_sql(tmp_path, None, 0), with_sql(tmp_path, sql.replace("flights0", "flights1"), 1)
    )

    (fault,) = faults(config, gate)

    assert (fault.file, fault.line, fault.yaml_path) == (config.file, 11, "datasets[1].acceleration.refresh_sql")
    assert fault.message
    with pytest.raises(StatementError):
        admit_refresh_sql(gate, config.datasets[1], sql)


def test_all_faults_are_found_at_once(tmp_path: Path, gate: Gate) -> None:
    config = configure(tmp_path, with_sql(tmp_path, "SELEC", 0), with_sql(tmp_path, "DROP TABLE x", 1))

    assert [fault.line for fault in faults(config, gate)] == [10, 11]


def test_what_is_rewritten_runs_as_rewritten_and_all_else_as_it_is_written(tmp_path: Path, gate: Gate) -> None:
    written = [
        None,
        " SELECT a FROM flights1 -- all\n;",
        "SELECT nvl(a, 1) AS a FROM flights2",
        "SELECT make_array(a) AS a FROM flights3",
    ]
    config = configure(tmp_path, *(with_sql(tmp_path, sql, number) for number, sql in enumerate(written)))

    runs = [dataset.acceleration.refresh_sql for dataset in with_admitted_sql(config, gate).datasets]

    assert runs == [*written[:3], "SELECT list_value(a) AS a FROM flights3"]
