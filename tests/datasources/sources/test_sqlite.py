"""`sqlite:` sources against files that the standard library's SQLite writes."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from datasources.errors import SnapshotError
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from datasources.sources.source import Bound
from runtimeconf.model import DatasetConfig
from tests.datasources.sources import loads
from tests.datasources.sources.loads import (
    check_values,
    has_changed,
    held,
    load,
    load_in_process,
    scan,
    types,
    version,
)
from tests.datasources.support import builder, deadline, refusal


def put(directory: Path, script: str, name: str = "s.db") -> Path:
    path = directory / name
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def declare(directory: Path, table: str = "t", name: str = "s.db", **params: str) -> DatasetConfig:
    return loads.table(directory, f"sqlite:{name}", sqlite_table=table, **params)


# --- types ------------------------------------------------------------------------------------------------------------

#: For each declaration the engine's type, and values as SQLite reads them with the engine's text of them.
TYPES = [
    ("INTEGER", "BIGINT", {"-9223372036854775808": "-9223372036854775808", "'7'": "7"}),
    ("UNSIGNED BIG INT", "BIGINT", {"1": "1"}),
    ("REAL", "DOUBLE", {"1.5": "1.5", "2": "2.0", "9e999": "inf"}),
    ("DOUBLE PRECISION", "DOUBLE", {"0.1": "0.1"}),
    ("TEXT", "VARCHAR", {"'é''\"'": "é'\"", "''": "", "1": "1"}),
    ("VARCHAR(2)", "VARCHAR", {"'longer'": "longer"}),
    ("BLOB", "BLOB", {"x'00ff'": "\\x00\\xFF", "x''": ""}),
    ("NUMERIC(10,2)", "DOUBLE", {"10.25": "10.25", "9007199254740992": "9007199254740992.0"}),
    ("DECIMAL", "DOUBLE", {"'1.50'": "1.5"}),
    ("BOOLEAN", "BOOLEAN", {"0": "false", "1": "true"}),
    ("DATE", "DATE", {"'2024-02-29'": "2024-02-29"}),
    (
        "DATETIME",
        "TIMESTAMP",
        {
            "'2024-01-01 12:34:56'": "2024-01-01 12:34:56",
            "'2024-01-01T12:34:56.789'": "2024-01-01 12:34:56.789",
            "'2024-01-01 12:00:00+00:00'": "2024-01-01 12:00:00",
        },
    ),
    ("TIMESTAMP", "TIMESTAMP", {"CURRENT_DATE || ' 00:00:00'": time.strftime("%Y-%m-%d 00:00:00", time.gmtime())}),
    ("TIME", "TIME", {"'12:34:56'": "12:34:56"}),
    ("UUID", "VARCHAR", {"'00-0a'": "00-0a"}),
    ("JSON", "VARCHAR", {"'{\"a\": 1}'": '{"a": 1}'}),
    ("", "VARCHAR", {"1": "1", "2.5": "2.5", "'x'": "x"}),
    ("INTEGER GENERATED ALWAYS AS (c9 + 1)", "BIGINT", {"0": "1", "1": "2"}),
]


def test_values_of_each_declaration_arrive_as_they_are(tmp_path: Path) -> None:
    most = max(len(values) for _, _, values in TYPES)
    given = [([*values] + ["NULL"] * most)[:most] for _, _, values in TYPES[:-1]]
    columns = ", ".join(f"c{index} {declared}" for index, (declared, _, _) in enumerate(TYPES))
    names = ", ".join(f"c{index}" for index in range(len(TYPES) - 1))
    # The driver would take the type of a column from these rows, if it were let.
    nulls = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 2000) SELECT NULL FROM r"
    inserts = "".join(f"INSERT INTO t ({names}) VALUES ({', '.join(row)});" for row in zip(*given, strict=True))
    put(tmp_path, f"CREATE TABLE t ({columns}); INSERT INTO t (c0) {nulls}; {inserts}")

    check_values(tmp_path, declare(tmp_path), [(kind, found, values.values()) for kind, found, values in TYPES])


@pytest.mark.exhaustive
@pytest.mark.parametrize("later", [0, 40_000])
@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("INTEGER", "'seven'"),
        ("INTEGER", "1.5"),
        ("INTEGER", "x'00'"),
        ("REAL", "'much'"),
        ("NUMERIC", "9007199254740993"),
        ("TEXT", "x'00'"),
        ("BLOB", "'text'"),
        ("BLOB", "1"),
        ("BOOLEAN", "2"),
        ("DATE", "19000"),
        ("DATETIME", "1700000000"),
        ("DATETIME", "'2024-01-01 12:00:00+02:00'"),
    ],
)
def test_a_value_that_is_not_what_its_column_declares_is_an_error_with_its_row(
    tmp_path: Path, declared: str, value: str, later: int
) -> None:
    put(
        tmp_path,
        f"CREATE TABLE t (a INTEGER, v {declared}); "
        f"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n <= {later}) "
        "INSERT INTO t SELECT n, NULL FROM r;"
        f"INSERT INTO t VALUES (0, {value});",
    )

    assert refusal(tmp_path, declare(tmp_path)).startswith(f"'t', row {later + 2}: the value of 'v' is not of the type")
    # Every value can be read as text.
    assert len(load(tmp_path, declare(tmp_path, sqlite_types="text"), "SELECT v FROM d WHERE v IS NOT NULL")) == 1


def test_invalid_dates_and_invalid_utf_8_are_reported(tmp_path: Path) -> None:
    put(tmp_path, "CREATE TABLE t (v DATE); INSERT INTO t VALUES ('2024-01-01'), ('soon')")
    put(tmp_path, "CREATE TABLE t (v TEXT); INSERT INTO t VALUES (CAST(x'ff' AS TEXT))", "u.db")

    assert refusal(tmp_path, declare(tmp_path)) == ("The engine cannot read the column 'v': a value does not fit DATE.")
    assert refusal(tmp_path, declare(tmp_path, name="u.db")) == (
        "The source sent damaged data in the column 'v': a text is not UTF-8."
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def test_views_and_tables_of_all_kinds_and_names_are_read(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE TABLE t (a INTEGER, b TEXT, PRIMARY KEY (b)) WITHOUT ROWID; INSERT INTO t VALUES (1, 'x');"
        "CREATE TABLE strict_one (a INT, v ANY) STRICT; INSERT INTO strict_one VALUES (1, 2);"
        "CREATE VIEW seen AS SELECT a, a + 1 AS next, CAST(b AS BLOB) AS bytes FROM t;"
        "CREATE TABLE bare (a INTEGER, b TEXT, c DATE);",
    )
    put(
        tmp_path,
        """CREATE TABLE "T ""é"" 'x'" ("Ä b" INT, "select" TEXT); INSERT INTO "T ""é"" 'x'" VALUES (1, '%')""",
        "ü?#%20.db",
    )

    assert load(tmp_path, declare(tmp_path)) == [(1, "x")]
    assert load(tmp_path, declare(tmp_path, "strict_one")) == [(1, "2")]
    assert load(tmp_path, declare(tmp_path, "seen")) == [(1, "2", b"x")]
    assert types(tmp_path, declare(tmp_path, "bare")) == {"a": "BIGINT", "b": "VARCHAR", "c": "DATE"}
    assert load(tmp_path, declare(tmp_path, "bare")) == []
    assert load(tmp_path, declare(tmp_path, "T \"é\" 'x'", "ü?#%20.db")) == [(1, "%")]


def test_unneeded_columns_and_rows_are_not_sent(tmp_path: Path) -> None:
    put(tmp_path, "CREATE TABLE t (A INTEGER, r REAL, s TEXT); INSERT INTO t VALUES (1, 1, '1'), (2, 2, 2), (3, 3, 3)")
    dataset = declare(tmp_path)

    assert scan(tmp_path, dataset, Bound("a", ">", 2), columns="s") == (["s"], [("3",)])
    assert scan(tmp_path, dataset, columns="") == (["A"], [(1,), (2,), (3,)])
    assert scan(tmp_path, dataset, Bound("r", "<=", 2), Bound("A", ">=", 2), columns="a") == (["A"], [(2,)])
    # The engine applies the bounds that SQLite may compare differently.
    bounds = (Bound("s", "=", "1"), Bound("r", "=", 1.0), Bound("a", "=", True), Bound("x", "=", 1))
    assert scan(tmp_path, dataset, *bounds, columns="a") == (["A"], [(1,), (2,), (3,)])


@pytest.mark.exhaustive
def test_many_rows_stream_through_a_small_process(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE VIEW t AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 1000000) "
        "SELECT CAST(n AS INTEGER) AS n, printf('%.*c', 200, 'x') AS x FROM r",
    )

    found = load_in_process(tmp_path, declare(tmp_path), "SELECT count(*), sum(n), min(length(x)) FROM d")

    assert found == [(1_000_000, 500_000_500_000, 200)]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "CREATE TABLE t (a INT); CREATE VIEW broken AS SELECT * FROM absent; INSERT INTO t VALUES (1);")
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one. " * 100)
    content = (tmp_path / "s.db").read_bytes()
    (tmp_path / "cut.db").write_bytes(content[:5000])
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "directory.db").mkdir()

    for table, name, said in (
        ("x", "s.db", "'s.db' has no table or view 'x'."),
        ("broken", "s.db", "names a table, column or function that is not there."),
        ("t", "absent.db", "'absent.db' does not exist."),
        ("t", "text.db", "'text.db': it is not an SQLite database, or it is encrypted."),
        ("t", "cut.db", "'cut.db' was cut short, or is being written to."),
        ("t", "pipe.db", "'pipe.db' is not a regular file."),
        ("t", "directory.db", "'directory.db' is not a regular file."),
    ):
        assert refusal(tmp_path, declare(tmp_path, table, name)).endswith(said)


def test_a_hostile_view_reaches_nothing(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE VIEW t AS SELECT load_extension('/tmp/x.so') AS a;"
        "CREATE VIEW u AS SELECT readfile('/etc/passwd') AS a;"
        "CREATE VIEW endless AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
        "SELECT count(*) AS n FROM r;",
    )

    assert refusal(tmp_path, declare(tmp_path)).startswith("'s.db': ")
    assert refusal(tmp_path, declare(tmp_path, "u")).startswith("'s.db': ")
    with (
        closing(LoaderProcess(builder(tmp_path))) as process,
        pytest.raises(SnapshotError, match=r"was stopped after 0\.3 s"),
    ):
        process.build(Order(declare(tmp_path, "endless")), deadline(0.3))


# --- others that write ------------------------------------------------------------------------------------------------


def test_a_locked_database_is_read_when_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasources.sources.sqlite._BUSY_S", 0.1)
    path = put(tmp_path, "CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")

    with held(path, "BEGIN EXCLUSIVE", by="sqlite3"):
        assert refusal(tmp_path, declare(tmp_path)) == (
            "'s.db': another program is writing to it; the next refresh reads it again."
        )

    assert load(tmp_path, declare(tmp_path)) == [(1,)]


def test_what_a_live_writer_has_committed_to_its_log_is_read(tmp_path: Path) -> None:
    path = put(tmp_path, "PRAGMA journal_mode = wal; CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
    # The last to close the database would write its log into it.
    with held(path, "SELECT * FROM t", by="sqlite3"), closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
        connection.execute("INSERT INTO t VALUES (3)")
        assert (tmp_path / "s.db-wal").stat().st_size > 0

        assert load(tmp_path, declare(tmp_path)) == [(1,), (2,)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_version_stands_for_one_content(tmp_path: Path, mode: str) -> None:
    path = put(tmp_path, f"PRAGMA journal_mode = {mode}; CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")
    dataset = declare(tmp_path)

    with closing(sqlite3.connect(path)) as writer:
        writer.execute("SELECT * FROM t").fetchall()
        first = version(tmp_path, dataset)
        assert not has_changed(tmp_path, dataset, first)
        writer.execute("UPDATE t SET a = 2")
        writer.commit()
        assert has_changed(tmp_path, dataset, first)
        second = version(tmp_path, dataset)
        assert second != first
        assert not has_changed(tmp_path, dataset, second)
