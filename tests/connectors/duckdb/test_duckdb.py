"""`duckdb:` sources against files that other processes write."""

import os
import struct
from pathlib import Path

import duckdb
import pytest

from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from runtimeconf.model import DatasetConfig
from tests.datasources.sources import loads
from tests.datasources.sources.loads import check_values, has_changed, held, load, types, version
from tests.datasources.support import builder, deadline, new_load, refusal, rows


def put(directory: Path, *statements: str, name: str = "s.duckdb") -> Path:
    path = directory / name
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def declare(directory: Path, table: str = "t", name: str = "s.duckdb") -> DatasetConfig:
    return loads.table(directory, f"duckdb:{table}", duckdb_open=str(directory / name))


def die_with_a_log(directory: Path, *statements: str) -> None:
    with held(directory / "s.duckdb", *statements, by="duckdb"):
        pass
    assert (directory / "s.duckdb.wal").exists()


def test_tables_and_views_are_read_by_one_two_and_three_names(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE TABLE t AS SELECT 1 AS a",
        'CREATE SCHEMA "My S"',
        'CREATE TABLE "My S"."t.1" AS SELECT 2 AS "Ä b"',
        "CREATE VIEW v AS SELECT a + 2 AS a FROM t",
        "CREATE VIEW named AS SELECT a + 3 AS a FROM s.main.t",
    )

    assert load(tmp_path, declare(tmp_path)) == [(1,)]
    assert load(tmp_path, declare(tmp_path, '"My S"."t.1"')) == [(2,)]
    assert load(tmp_path, declare(tmp_path, "s.main.v")) == [(3,)]
    assert load(tmp_path, declare(tmp_path, "named")) == [(4,)]


def test_text_is_compared_as_it_is_whatever_the_collation_of_the_source(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE TABLE base (x VARCHAR COLLATE NOCASE, y VARCHAR COLLATE NOACCENT.NOCASE, n INTEGER)",
        "INSERT INTO base VALUES ('a', 'e', 1), ('A', 'é', 2)",
        "CREATE TABLE t AS SELECT *, {'f': x} AS s, [x] AS l, MAP {x: x} AS m FROM base",
    )
    equal = "SELECT count(*) FROM d WHERE {}"

    for sql in (None, "SELECT n, y, x COLLATE NOCASE AS x, s, l, m FROM d;"):
        made = builder(tmp_path).build(Order(declare(tmp_path), sql), deadline())
        for condition in ("x = 'a'", "y = 'e'", "s.f = 'a'", "l[1] = 'a'", "m['A'] = 'A'", "map_keys(m)[1] = 'A'"):
            assert rows(tmp_path, made, equal.format(condition)) == [(1,)], (sql, condition)


#: The name and type of a column, how the source makes it, and its value.
ARRAYS = [
    ("id", "BIGINT", "1::BIGINT", 1),
    ("x[2]", "BIGINT[]", "[1, NULL]::BIGINT[2]", [1, None]),
    ("l", "FLOAT[][]", "[[1.5]::FLOAT[1]]", [[1.5]]),
    ("s", 'STRUCT("a[3]" INTEGER[], n DATE)', "{'a[3]': [1]::INTEGER[1], 'n': NULL::DATE}", {"a[3]": [1], "n": None}),
    ("m", "MAP(VARCHAR, DATE[])", "MAP {'k': [NULL]::DATE[1]}", {"k": [None]}),
    ("u", "UNION(a INTEGER[], t VARCHAR)", "[1]::INTEGER[1]::UNION(a INTEGER[1], t VARCHAR)", [1]),
    ("e", "ENUM('a[3]')", "'a[3]'::ENUM('a[3]')", "a[3]"),
    ("n", "VARCHAR[]", "NULL::VARCHAR[3]", None),
]


@pytest.mark.parametrize("refresh_sql", [None, "SELECT a.* FROM {0} a LEFT JOIN {0} b ON a.id = b.id + 1"])
def test_arrays_are_loaded_as_lists(tmp_path: Path, refresh_sql: str | None) -> None:
    """The engine cannot join arrays safely: see `queryengine.gate.arrays`."""
    put(tmp_path, "CREATE TABLE t AS SELECT " + ", ".join(f'{made} AS "{name}"' for name, _, made, _ in ARRAYS))
    dataset = declare(tmp_path)

    snapshot = builder(tmp_path).build(Order(dataset, refresh_sql and refresh_sql.format(dataset.name)), deadline())

    assert [(column.name, column.type) for column in snapshot.columns] == [(name, type_) for name, type_, *_ in ARRAYS]
    assert rows(tmp_path, snapshot) == [tuple(value for *_, value in ARRAYS)]


@pytest.mark.parametrize("name", ["runtime.duckdb", "memory.db", "_snapshot.db", 'it\'s "one" ü.db'])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    put(tmp_path, "CREATE TABLE t AS SELECT 1 AS a", name=name)
    (tmp_path / "link.db").symlink_to(name)

    assert load(tmp_path, declare(tmp_path, name=name)) == [(1,)]
    assert load(tmp_path, declare(tmp_path, name="link.db")) == [(1,)]


def test_types_stay_as_they_are_and_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (a HUGEINT, m mood, d DECIMAL(38,10), s STRUCT(x INTEGER, y VARCHAR[]), k MAP(VARCHAR, DATE), "
        "u UUID, tz TIMESTAMPTZ, j JSON, b BLOB, i INTERVAL, g INTEGER GENERATED ALWAYS AS (1), "
        "n UNION(x INT, y TEXT))",
    )

    assert types(tmp_path, declare(tmp_path)) == {
        "a": "HUGEINT",
        "m": "ENUM('sad', 'ok')",
        "d": "DECIMAL(38,10)",
        "s": "STRUCT(x INTEGER, y VARCHAR[])",
        "k": "MAP(VARCHAR, DATE)",
        "u": "UUID",
        "tz": "TIMESTAMP WITH TIME ZONE",
        "j": "JSON",
        "b": "BLOB",
        "i": "INTERVAL",
        "g": "INTEGER",
        "n": "UNION(x INTEGER, y VARCHAR)",
    }
    assert load(tmp_path, declare(tmp_path)) == []


#: For each type, values with the engine's text of them.
VALUES = {
    "HUGEINT": ["-170141183460469231731687303715884105728"],
    "UHUGEINT": ["340282366920938463463374607431768211455"],
    "BIGNUM": ["1234567890123456789012345678901234567890123"],
    "DATE": ["infinity", "0044-03-15 (BC)", "5881580-07-10"],
    "TIME": ["24:00:00", "12:34:56.123456"],
    "TIME_NS": ["12:34:56.123456789"],
    "TIMESTAMP_S": ["2024-01-31 10:00:00"],
    "TIMESTAMP": ["-infinity", "294246-12-31 23:59:59.999999"],
    "TIMESTAMP_NS": ["2024-01-31 10:00:00.123456789", "infinity"],
    "TIMESTAMPTZ_NS": ["2024-01-31 10:00:00.123456789+00"],
    "TIME WITH TIME ZONE": ["12:34:56.123456+15:59"],
    "DOUBLE": ["nan", "-inf", "5e-324"],
}


def test_values_of_each_type_arrive_as_they_are(tmp_path: Path) -> None:
    columns = ", ".join(f"c{index} {kind}" for index, kind in enumerate(VALUES))
    inserts = [
        f"INSERT INTO t (c{index}) VALUES ('{text}')" for index, texts in enumerate(VALUES.values()) for text in texts
    ]
    put(tmp_path, f"CREATE TABLE t ({columns})", *inserts)

    check_values(tmp_path, declare(tmp_path), [(kind, kind, texts) for kind, texts in VALUES.items()])


def test_the_log_of_a_dead_writer_is_read_and_kept(tmp_path: Path) -> None:
    path = put(tmp_path, "CREATE TABLE t AS SELECT 1 AS a")
    die_with_a_log(tmp_path, "INSERT INTO t VALUES (2)")
    content = path.read_bytes()

    assert load(tmp_path, declare(tmp_path)) == [(1,), (2,)]
    assert path.read_bytes() == content
    assert (tmp_path / "s.duckdb.wal").exists()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_file_that_is_open_for_writing_is_read_when_it_is_closed(tmp_path: Path) -> None:
    path = put(tmp_path, "CREATE TABLE t AS SELECT 1 AS a")

    with held(path, by="duckdb"):
        assert refusal(tmp_path, declare(tmp_path)) == (
            "'s.duckdb': another program has it open for writing; the next refresh tries again."
        )

    assert load(tmp_path, declare(tmp_path)) == [(1,)]


def test_a_view_reaches_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    put(
        tmp_path,
        "CREATE TABLE t AS SELECT 1 AS a",
        f"CREATE VIEW file AS SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"CREATE VIEW state AS SELECT * FROM glob('{tmp_path}/*')",
        "CREATE SCHEMA other",
        "CREATE VIEW other.elsewhere AS SELECT * FROM t",
    )

    refused = "'s.duckdb': its view reads another file, which is refused."
    assert refusal(tmp_path, declare(tmp_path, "file")) == refused
    assert refusal(tmp_path, declare(tmp_path, "state")) == refused
    assert "qualify each table in the view with its schema" in refusal(tmp_path, declare(tmp_path, "other.elsewhere"))


def checksum(block: bytes) -> int:
    """As src/common/checksum.cpp of DuckDB has it, for a whole number of words."""
    result = 5381
    for (word,) in struct.iter_unpack("<Q", block):
        result ^= word * 0xBF58476D1CE4E5B9 % 2**64
    return result


def test_a_file_that_is_not_a_database_of_this_engine_is_refused(tmp_path: Path) -> None:
    content = put(tmp_path, "CREATE TABLE t AS SELECT range AS a FROM range(100000)").read_bytes()
    header = content[8:4096]
    assert struct.unpack("<Q", content[:8]) == (checksum(header),)
    later = header[:4] + struct.pack("<Q", 998) + header[12:]
    damaged = bytearray(content)
    damaged[20_000:21_000] = bytes(1000)
    for name, written in {
        "later.db": struct.pack("<Q", checksum(later)) + later + content[4096:],
        "cut.db": content[:9000],
        "damaged.db": bytes(damaged),
        "text.db": b"not a database " * 1000,
    }.items():
        (tmp_path / name).write_bytes(written)
    os.mkfifo(tmp_path / "pipe.db")

    for table, name, said in (
        (
            "absent",
            "s.duckdb",
            "The database has no table or view main.absent. Names are case-sensitive.",
        ),
        ("other.main.t", "s.duckdb", "The database in 's.duckdb' is named s, not other."),
        (
            "t",
            "later.db",
            "'later.db': it was written by another version of DuckDB, whose files this engine does not read.",
        ),
        ("t", "cut.db", "'cut.db': it is damaged, or was cut short."),
        ("t", "damaged.db", "'damaged.db': it is damaged, or was cut short."),
        ("t", "text.db", "'text.db': it is not a DuckDB database."),
        ("t", "pipe.db", "'pipe.db' is not a regular file."),
        ("t", "absent.db", "'absent.db' cannot be read: No such file or directory."),
    ):
        assert refusal(tmp_path, declare(tmp_path, table, name)) == said


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_stands_for_one_content(tmp_path: Path) -> None:
    put(tmp_path, "CREATE TABLE t AS SELECT 1 AS a")
    dataset = declare(tmp_path)

    first = version(tmp_path, dataset)
    assert not has_changed(tmp_path, dataset, first)
    die_with_a_log(tmp_path, "INSERT INTO t VALUES (2)")
    assert has_changed(tmp_path, dataset, first)
    second = version(tmp_path, dataset)
    put(tmp_path, "CHECKPOINT")
    assert has_changed(tmp_path, dataset, second)
    assert version(tmp_path, dataset) not in {first, second}


def test_a_file_that_is_replaced_while_it_is_read_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "CREATE TABLE t AS SELECT 1 AS a")
    put(tmp_path, "CREATE TABLE t AS SELECT 2 AS a", name="other.db")

    with source_of(declare(tmp_path)).open(new_load(tmp_path)) as scan:
        (tmp_path / "other.db").rename(tmp_path / "s.duckdb")
        with pytest.raises(Exception, match="changed while it was being read"):
            scan.confirm()
        (tmp_path / "s.duckdb").unlink()
        with pytest.raises(Exception, match="no longer exists"):
            scan.confirm()
