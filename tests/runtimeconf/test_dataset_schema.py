"""`datasets` and `views`: their values and their faults."""

from pathlib import Path

import pytest

from runtimeconf.fields import DurationField
from runtimeconf.loader import load
from runtimeconf.model import AccelerationConfig
from runtimeconf.secret_stores import MalformedReferenceError
from tests.corpus import each
from tests.runtimeconf.configurations import Fault, Faults, Load, env_places, fault_cases


def dataset(fields: str) -> str:
    return f"datasets:\n  - {{from: 'file:a.csv', name: a, {fields}}}\n"


def test_brackets_in_the_directory_of_the_yaml_are_literal(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("b")  # a short name, because socket paths are limited
    directory = tmp_path / "[data]"
    directory.mkdir()
    (directory / "runtime.yaml").write_text(
        "datasets: [{from: 'file:*.csv', name: a}, {from: 'file:b.csv', name: b}]\n"
    )

    pattern, plain = load(directory / "runtime.yaml", {}).datasets

    assert pattern.location == f"{tmp_path}/[[]data]/*.csv"
    assert plain.location == f"{directory}/b.csv"


@each("name", ["a", "_", "A1_b", "x" * 63, "select", "_s", "_s1x", "taxi.trips", "A.select"])
def test_names(load_text: Load, name: str) -> None:
    config = load_text(f"datasets: [{{from: 'file:a', name: {name}}}]\nviews: [{{name: v, sql: x}}]\n")

    assert config.datasets[0].name == name


INVALID = ("1a", "a-b", "a.b.c", ".a", "a.", "a.1b", '"a b"', "é", "x" * 64, '"a\\"b"', '"a;b"', "[a]", "''", "a\u0301")
THE_NAME = "the engine reserves this name"
RESERVED = {
    **dict.fromkeys(("information_schema", "Information_Schema", "runtime", "main", "main.a", "a.main"), THE_NAME),
    **dict.fromkeys(("Runtime.a", "system.a", "temp.a", "memory.a", "recurring.a", "_copies.a", "_Macros.a"), THE_NAME),
    **{
        name: f"names that begin with {prefix} are reserved for the engine's {what}"
        for prefix, what, names in (
            ("_catalog", "table catalogs", ("_catalog", "_catalog2", "_catalog.a")),
            ("duckdb_", "own tables", ("duckdb_tables",)),
            ("pg_", "system tables, as in PostgreSQL", ("PG_class", "pg_flights", "a.pg_x")),
            ("pragma_", "pragma functions", ("pragma_x",)),
            ("sqlite_", "system tables, as in SQLite", ("sqlite_master",)),
        )
        for name in names
    },
    "pg_catalog": THE_NAME,
    **{
        name: f"names such as {shown} are reserved for the engine's snapshots"
        for name, shown in (("_s1", "_s1"), ("_S20", "_s20"), ("_s1.a", "_s1"), ("_s0123456789ab", "_s0123456789ab"))
    },
}


@each("name", [*INVALID, *RESERVED])
@pytest.mark.parametrize("section", ["datasets: [{from: 'file:a', name: %s}]", "views: [{sql: x, name: %s}]"])
def test_invalid_and_reserved_names(fault: Fault, name: str, section: str) -> None:
    message = fault(section % name)

    assert "[0].name: must be a name of letters, digits and _, not starting with a digit" in message
    if name in RESERVED:
        assert message.endswith(f"found {name!r} ({RESERVED[name]})")
    else:
        assert "reserve" not in message


def test_c20_names_are_unique_ignoring_case(faults: Faults) -> None:
    text = """
datasets:
  - {from: 'file:a', name: a}
  - {from: 'file:b', name: A}
views:
  - {name: a, sql: SELECT 1}
  - {name: b, sql: SELECT 1}
  - {name: 1, sql: SELECT 1}
  - {name: 1, sql: SELECT 1}
  - B
"""

    assert [f"{fault.yaml_path}: {fault.message}" for fault in faults(text) if "twice" in fault.message] == [
        "datasets[1].name: the name A is used twice: by datasets[0] on line 3, and here on line 4",
        "views[0].name: the name a is used twice: by datasets[0] on line 3, and here on line 6",
    ]


FAULTS = """
on_empty: ignore
=> .on_empty: must be accept or fail; found 'ignore'
on_schema_change: ignore
=> .on_schema_change: must be fail or accept; found 'ignore'
params: {file_format: orc}
=> .params.file_format: must be FORMAT; found 'orc'
params: {file_fromat: csv}
=> .params.file_fromat: unknown field; did you mean file_format?
# parameter a list
params: {file_format: [csv]}
=> .params.file_format: must be FORMAT; found a list
params: {file_format: '${x}'}
=> .params.file_format: BADREF
# absent secret
params: {file_format: '${ env:absent }'}
=> .params.file_format: secret 'absent' was not found; stores searched: env (tried: PLACES)
# a secret is not shown
params: {file_format: '${ env:canary }'}
=> .params.file_format: must be FORMAT; found a string
params: ~
=> .params: is empty: fill it in, or omit it
acceleration: ~
=> .acceleration: is empty: fill it in, or omit it
acceleration: {refresh_mode: cdc}
=> .acceleration.refresh_mode: must be full or append; found 'cdc'
time_column: ''
=> .time_column: must be the name of a column; found '' (it is blank)
acceleration: {refresh_sql: ' '}
=> .acceleration.refresh_sql: must be one SELECT statement; found ' ' (it is blank)
acceleration: {primary_key: ''}
=> .acceleration.primary_key: must be COLUMNS; found '' (it is blank)
acceleration: {primary_key: '(a, A)'}
=> .acceleration.primary_key: must be COLUMNS; found '(a, A)' (a column is listed twice)
acceleration: {indexes: [a]}
=> .acceleration.indexes: must be a mapping of columns to enabled or unique; found a list
acceleration: {indexes: {a: uniqe}}
=> .acceleration.indexes.a: must be enabled or unique; found 'uniqe' (did you mean unique?)
acceleration: {indexes: {'(a, )': unique}}
=> .acceleration.indexes.'(a, )': must be COLUMNS; found '(a, )' (it is blank)
acceleration: {indexes: {' ': unique}}
=> .acceleration.indexes.' ': must be COLUMNS; found ' ' (it is blank)
acceleration: {indexes: {id: enabled, ID: unique}}
=> .acceleration.indexes.ID: is listed twice: column names are not case-sensitive
acceleration: {enabled: yes}
=> .acceleration.enabled: must be true or false; found 'yes'
acceleration: {refresh_check_interval: 10}
=> .acceleration.refresh_check_interval: must be DURATION; found '10' (add a unit: ms, s, m, h, d)
acceleration: {refresh_mode: append}
=> : lacks the field time_column, which is required by refresh_mode append to find newer rows
acceleration: {refresh_data_window: 1d}
=> : lacks the field time_column, which is required by refresh_data_window to find the rows within the window
acceleration: {retention_check_enabled: true, retention_period: 1d, retention_check_interval: 1m}
=> : lacks the field time_column, which is required by retention_period to find expired rows
time_column: t, acceleration: {retention_check_enabled: true, retention_period: 1d}
=> .acceleration: lacks the field retention_check_interval, which retention_check_enabled needs
time_column: t, acceleration: {retention_check_enabled: true, retention_period: 1d, retention_check_interval: soon}
=> .acceleration.retention_check_interval: must be INTERVAL; found 'soon'
acceleration: {refresh_cron: '99999999999999999999999999 * * * *'}
=> .acceleration.refresh_cron: must be CRON; found '99999999999999999999999999 * * * *'
time_format: date
=> .time_format: requires time_column because it describes that column's values
time_column: t, time_format: ISO8601
=> .time_format: must be timestamp, timestamptz, date, unix_seconds or unix_millis; found 'ISO8601'
acceleration: {refresh_cron: '0 4 * *'}
=> .acceleration.refresh_cron: must be CRON; found '0 4 * *' (FIELDS)
acceleration: {refresh_cron: '0 25 * * *'}
=> .acceleration.refresh_cron: must be CRON; found '0 25 * * *'
acceleration: {refresh_cron: '0 4 * * *', refresh_check_interval: 1h}
=> .acceleration.refresh_cron: and refresh_check_interval both set the refresh schedule: remove one
acceleration: {primary_key: a, on_conflict: {b: upsert}}
=> .acceleration.on_conflict: must name only the primary_key
acceleration: {primary_key: a, on_conflict: {a: upsert, b: upsert}}
=> .acceleration.on_conflict: must name only the primary_key
acceleration: {on_conflict: {a: replace}}
=> .acceleration.on_conflict.a: must be upsert or drop; found 'replace'
acceleration: {engine: postgres}
=> .acceleration.engine: must be arrow, duckdb, sqlite, turso or cayenne; found 'postgres'
acceleration: {params: a}
=> .acceleration.params: must be a mapping; found a string
params: Server=a;Password=canary
=> .params: must be a mapping; found a string
acceleration: {retention_sql: DELETE FROM a}
=> .acceleration.retention_sql: is not available here: Add a WHERE clause to refresh_sql that selects the rows to keep.
access: read_write
=> .access: must be read; found 'read_write'
description: ' '
=> .description: must be a string; found ' ' (it is blank)
metadata: [a]
=> .metadata: must be a mapping of names to strings; found a list
metadata: {a: [b]}
=> .metadata.a: must be a string; found a list
columns: [{name: a, description: b}, {name: A}]
=> .columns: lists a column twice; found 'A' again
columns: [{name: a, embeddings: [{from: m}]}]
=> .columns[0].embeddings: is not available here: Remove it: semantic search is not supported.
"""
FAULTS = FAULTS.replace("FORMAT", "parquet, csv, tsv, json, ndjson, jsonl or xlsx").replace(
    "BADREF", str(MalformedReferenceError())
)
FAULTS = FAULTS.replace("COLUMNS", "a column name, or several as (a, b)")
FAULTS = FAULTS.replace("FIELDS", "five fields: minute, hour, day of the month, month, day of the week")
FAULTS = FAULTS.replace("CRON", "a cron expression such as 0 4 * * *")
FAULTS = FAULTS.replace("DURATION", DurationField("100ms", "365d").expected)
FAULTS = FAULTS.replace("INTERVAL", DurationField("1s", "365d").expected)


@each(("fields", "expected"), fault_cases(FAULTS))
def test_faults_of_a_dataset(fault: Fault, yaml_file: Path, fields: str, expected: list[str]) -> None:
    expected = [line.replace("PLACES", env_places(yaml_file.parent, "absent")) for line in expected]

    assert [fault(dataset(fields.strip()), {"CANARY": "canary"})] == [f"2: datasets[0]{line}" for line in expected]


NO_TIME = "time_column: has no effect unless refresh_mode is append (here or in a refresh request) or rows expire"
NO_CONFLICT = "acceleration.on_conflict: has no effect unless refresh_mode is append: a full refresh replaces all rows"
NO_RETENTION = "acceleration.retention_period: has no effect without retention_check_enabled: true"
NO_INTERVAL = "acceleration.refresh_jitter_enabled: has no effect without refresh_check_interval or refresh_jitter_max"
RETRY_ZERO = (
    "acceleration.refresh_retry_enabled: is true and refresh_retry_max_attempts is 0: failed loads are not retried"
)
NO_RETRY = "acceleration.refresh_retry_max_attempts: has no effect without refresh_retry_enabled: true"
OFF = "acceleration.enabled: is false, so these have no effect: refresh_sql, refresh_cron"
NO_JITTER = "acceleration.refresh_jitter_max: has no effect without refresh_jitter_enabled: true"


@each(
    ("fields", "warning"),
    [
        ("time_column: t", NO_TIME),
        ("time_column: t, acceleration: {refresh_mode: full}", NO_TIME),
        ("acceleration: {refresh_jitter_max: 5s}", NO_JITTER),
        ("acceleration: {refresh_jitter_enabled: true, refresh_cron: '* * * * *'}", NO_INTERVAL),
        ("acceleration: {enabled: false, refresh_sql: FROM d, engine: arrow, refresh_cron: '* * * * *'}", OFF),
        ("acceleration: {refresh_retry_enabled: false, refresh_retry_max_attempts: 3}", NO_RETRY),
        ("acceleration: {refresh_retry_enabled: true, refresh_retry_max_attempts: 0}", RETRY_ZERO),
        ("acceleration: {retention_period: 5s}", NO_RETENTION),
        ("acceleration: {primary_key: a, on_conflict: {a: drop}}", NO_CONFLICT),
        ("acceleration: {on_conflict: {}}", "acceleration.on_conflict: is empty, so it has no effect"),
        ("acceleration: {indexes: {}}", "acceleration.indexes: is empty, so it has no effect"),
    ],
)
def test_a_setting_without_effect_is_a_warning(load_text: Load, fields: str, warning: str) -> None:
    config = load_text(dataset(fields))

    assert [line for line in config.warnings if "datasets[0]" in line] == [f"{config.file}:2: datasets[0].{warning}"]


@pytest.mark.parametrize(
    "fields",
    [
        "acceleration: {refresh_retry_max_attempts: 0}",
        "acceleration: {enabled: false, refresh_timeout: 5s, refresh_retry_max_attempts: 3}",
        "acceleration: {enabled: false, refresh_retry_enabled: false}",
    ],
)
def test_a_setting_of_the_only_load_has_an_effect(load_text: Load, fields: str) -> None:
    assert [line for line in load_text(dataset(fields)).warnings if "datasets[0]" in line] == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", AccelerationConfig(enabled=False)),
        ("acceleration: {}", AccelerationConfig(enabled=True)),
        ("acceleration: {enabled: false}", AccelerationConfig(enabled=False)),
        ("acceleration: {refresh_check_interval: 1s}", AccelerationConfig(enabled=True, refresh_check_interval_s=1.0)),
    ],
)
def test_a_block_without_enabled_switches_acceleration_on(
    load_text: Load, fields: str, expected: AccelerationConfig
) -> None:
    assert load_text(dataset(fields)).datasets[0].acceleration == expected


def test_faults_of_a_view(faults: Faults) -> None:
    text = "views:\n  - {name: v, sql: ''}\n  - {name: w, sql: ~}\n  - {}\n  - {name: x, sql: '${ env:x }'}\n"

    assert [str(fault).partition("runtime.yaml:")[2].partition(";")[0] for fault in faults(text)] == [
        "2: views[0].sql: must be one SELECT statement",
        "3: views[1].sql: is empty: it must be one SELECT statement",
        (
            "4: views[2]: lacks the field name: a name of letters, digits and _, not starting with a digit, "
            "at most 63 characters"
        ),
        "4: views[2]: lacks the field sql: one SELECT statement",
        "5: views[3].sql: must be one SELECT statement",
    ]


def test_params_are_not_resolved_while_the_stores_are_at_fault(fault: Fault) -> None:
    text = "secrets: [{from: nothing, name: a}]\n" + dataset("params: {file_format: '${ env:x }'}")

    assert fault(text).startswith("1: secrets[0].from")
