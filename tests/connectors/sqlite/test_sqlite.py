"""`sqlite:` sources against files that the standard library's SQLite writes."""

import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import date
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from datasources.errors import SnapshotError
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from datasources.sources.source import Bound
from runtimeconf.model import AccelerationConfig, DatasetConfig
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
from tests.datasources.support import builder, deadline, new_load, refusal, rows


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
    (
        "DATE",
        "DATE",
        {"'2024-02-29'": "2024-02-29", "'2024-1-5'": "2024-01-05", "'2024-01-31T00:00:00.000'": "2024-01-31"},
    ),
    (
        "DATETIME",
        "TIMESTAMP",
        {
            "'2024-01-01 12:34:56'": "2024-01-01 12:34:56",
            "'2024-01-01T12:34:56.789'": "2024-01-01 12:34:56.789",
            "'2024-01-01 12:00:00+00:00'": "2024-01-01 12:00:00",
            "'2024-01-01T12:00Z'": "2024-01-01 12:00:00",
            "'2024-01-01'": "2024-01-01 00:00:00",
            "'9999-12-31 23:59:59.9999990'": "9999-12-31 23:59:59.999999",
        },
    ),
    (
        "DATETIME2",
        "TIMESTAMP_NS",
        {
            "'2024-03-01 10:00:00'": "2024-03-01 10:00:00",
            "'2024-03-01T10:00:00.123456789Z'": "2024-03-01 10:00:00.123456789",
            "'2024-03-01 10:00:00.1234567'": "2024-03-01 10:00:00.1234567",
            "'2024-03-01 10:00:00.1234568'": "2024-03-01 10:00:00.1234568",
        },
    ),
    ("TIMESTAMP", "TIMESTAMP", {"date('2024-01-01') || ' 00:00:00'": "2024-01-01 00:00:00"}),
    ("TIME", "TIME", {"'12:34:56'": "12:34:56", "'1:02'": "01:02:00", "'24:00:00'": "24:00:00"}),
    ("TIME(7)", "TIME_NS", {"'1:00:00.0000001'": "01:00:00.0000001", "'10:00:00.123456789'": "10:00:00.123456789"}),
    ("UUID", "VARCHAR", {"'00-0a'": "00-0a", "0.1 + 0.2": "0.30000000000000004", "0.3": "0.3"}),
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

    assert refusal(tmp_path, declare(tmp_path)).startswith(f"'t', row {later + 2}: the value of 'v' does not match the")
    # Every value can be read as text.
    assert len(load(tmp_path, declare(tmp_path, sqlite_types="text"), "SELECT v FROM d WHERE v IS NOT NULL")) == 1


#: By declaration, the type in which the texts would change, or cannot be told what they mean.
CHANGED = {
    ("DATE", "DATE"): (
        *("2024-01-31 10:20:30", "2024-01-31T10:20", "2024-01-31 00:00:00+02:00", "2024-01-31 24:00", "24-01-05"),
        *("infinity", "-infinity", "epoch", "now", "today", "31/12/2024", "2024/12/31", "2024-01-31 (BC)"),
        *("-0044-03-15", "", " ", "x", "2024-01-31 ", "\u0662024-01-31", "2024-01-31\n"),
    ),
    ("DATETIME", "TIMESTAMP"): (
        *("2024-01-01 12:00:00+02:00", "2024-01-01 12:00:00-00:30", "2024-01-01 12:00:00 Europe/Berlin"),
        *("2024-01-01 24:00:00", "2024-01-01 23:59:60", "infinity", "epoch", "now", "12:34:56", "31/12/2024 10:00"),
        *("2024-01-01 10", "", "2024-01-01 10:00:00 (BC)"),
    ),
    ("TIMESTAMP", "TIMESTAMP_NS"): ("2024-03-01 10:00:00.1234567891", "2024-03-01 10:00:00.0000000001"),
    ("TIME", "TIME"): (
        *("2024-01-31 12:34:56", "2024-01-31", "12:34:56+02", "12:34:56Z", "24:00:01", "25:00:00", "-01:00:00"),
        *("10:20:30 PM", "now", ""),
    ),
    ("TIME(9)", "TIME_NS"): ("10:00:00.1234567891",),
}


@pytest.mark.parametrize(("declared", "kind"), CHANGED)
def test_a_text_that_its_type_would_change_is_an_error_with_its_row(tmp_path: Path, declared: str, kind: str) -> None:
    path = put(tmp_path, f"CREATE TABLE t (v {declared}); INSERT INTO t VALUES (NULL), (NULL)")
    said = f"'t', row 2: the value of 'v' cannot be kept exactly as {kind}; sqlite_types: text reads every value."

    with closing(sqlite3.connect(path)) as writer:
        for text in CHANGED[declared, kind]:
            writer.execute("UPDATE t SET v = ? WHERE rowid = 2", (text,))
            writer.commit()
            assert (text, refusal(tmp_path, declare(tmp_path))) == (text, said)

    assert load(tmp_path, declare(tmp_path, sqlite_types="text")) == [(None,), (CHANGED[declared, kind][-1],)]


@pytest.mark.parametrize(
    ("declared", "accepted"),
    [
        ("TIMESTAMP", "strings such as 2024-01-31 12:34:56"),
        ("BOOLEAN", "0 and 1"),
        ("DATE", "strings such as 2024-01-31"),
    ],
)
def test_an_error_about_a_value_says_what_is_accepted(tmp_path: Path, declared: str, accepted: str) -> None:
    put(tmp_path, f"CREATE TABLE t (v {declared}); INSERT INTO t VALUES (1700000000)")

    assert refusal(tmp_path, declare(tmp_path)) == (
        f"'t', row 1: the value of 'v' does not match the declared type of the column ({accepted}); "
        "sqlite_types: text reads every value."
    )


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, str]:
    """A text of a time, and how the engine writes it."""
    day = draw(st.dates(min_value=date(1678, 1, 1), max_value=date(2261, 12, 31)))
    hour, minute, second = (draw(st.integers(0, most)) for most in (23, 59, 59))
    fraction = draw(st.from_regex("(?:[.][0-9]{0,9}0{0,3})?", fullmatch=True))
    day_text = draw(st.sampled_from((f"{day}", f"{day.year}-{day.month}-{day.day}")))
    end = draw(st.sampled_from(("", "Z", "+00", "+00:00", " +0000", "-00:00")))
    text = f"{day_text}{draw(st.sampled_from('T '))}{hour:02}:{minute:02}:{second:02}{fraction}{end}"
    return text, f"{day} {hour:02}:{minute:02}:{second:02}{fraction}".rstrip("0" if fraction else "").rstrip(".")


@settings(max_examples=25, deadline=None)
@given(st.lists(moments(), min_size=10, max_size=50))
def test_every_text_of_a_time_is_exact(values: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = put(directory, "CREATE TABLE t (v DATETIME)")
        with closing(sqlite3.connect(path)) as writer:
            writer.executemany("INSERT INTO t VALUES (?)", [(text,) for text, _ in values])
            writer.commit()
        with source_of(declare(directory)).open(new_load(directory)) as opened, duckdb.connect() as connection:
            arrived = connection.execute(f"SELECT v::VARCHAR FROM {opened.bind(connection)}").fetchall()

    assert arrived == [(expected,) for _, expected in values]


def test_the_first_faulty_row_of_any_batch_is_named(tmp_path: Path) -> None:
    put(
        tmp_path,
        "CREATE TABLE t (a INTEGER, v DATE); "
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 40000) "
        "INSERT INTO t SELECT n, '2024-01-31' FROM r; "
        "INSERT INTO t VALUES (1, 'epoch'), ('x', '2024-01-31'), (1, 'now')",
    )

    assert refusal(tmp_path, declare(tmp_path)).startswith("'t', row 40001: the value of 'v' cannot be kept")


def test_a_row_that_is_newer_by_nanoseconds_is_appended(tmp_path: Path) -> None:
    path = put(tmp_path, "CREATE TABLE t (seen DATETIME); INSERT INTO t VALUES ('2024-03-01 10:00:00.1234561')")
    appending = AccelerationConfig(refresh_mode="append")
    dataset = replace(declare(tmp_path), time_column="seen", acceleration=appending)
    made = builder(tmp_path)
    first = made.build(Order(dataset), deadline())

    with closing(sqlite3.connect(path)) as writer:
        writer.execute("INSERT INTO t VALUES ('2024-03-01 10:00:00.1234569'), ('2024-03-01 10:00:00.1234561')")
        writer.commit()
    second = made.build(Order(dataset, served=first), deadline())

    found = rows(tmp_path, second, "SELECT seen::VARCHAR FROM d ORDER BY seen")
    assert found == [("2024-03-01 10:00:00.1234561",), ("2024-03-01 10:00:00.1234569",)]


def test_invalid_dates_and_invalid_utf_8_are_reported(tmp_path: Path) -> None:
    put(tmp_path, "CREATE TABLE t (v DATE); INSERT INTO t VALUES ('2024-01-01'), ('2024-02-30')")
    put(
        tmp_path,
        "CREATE TABLE t (v TIME, moment DATETIME); INSERT INTO t VALUES ('1:00', '1600-01-01 0:00:00.0000001')",
        "n.db",
    )
    put(tmp_path, "CREATE TABLE t (v TEXT); INSERT INTO t VALUES (CAST(x'ff' AS TEXT))", "u.db")

    assert refusal(tmp_path, declare(tmp_path)) == (
        "The engine cannot read the column 'v' in row 2: a value does not fit DATE; sqlite_types: text reads every "
        "value."
    )
    assert refusal(tmp_path, declare(tmp_path, name="n.db")) == (
        "The engine cannot read the column 'moment' in row 1: a value does not fit TIMESTAMP_NS; sqlite_types: "
        "text reads every value."
    )
    assert refusal(tmp_path, declare(tmp_path, name="u.db")) == (
        "The source sent damaged data in the column 'v': a string is not UTF-8."
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
        ("broken", "s.db", "references a table, column or function that does not exist."),
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
    monkeypatch.setattr("connectors.sqlite.source._BUSY_S", 0.1)
    path = put(tmp_path, "CREATE TABLE t (a INT); INSERT INTO t VALUES (1)")

    with held(path, "BEGIN EXCLUSIVE", by="sqlite3"):
        assert refusal(tmp_path, declare(tmp_path)) == (
            "'s.db': another program is writing to it; the next refresh will read it again."
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
