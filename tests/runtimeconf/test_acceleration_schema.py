"""`acceleration` of datasets and views, as Spicepods have it. Faults are in `test_dataset_schema`."""

import pytest

from runtimeconf.model import AccelerationConfig, Documentation, IndexConfig
from tests.runtimeconf.configurations import Fault, Load

SPICEPOD = """
version: v1beta1
kind: Spicepod
name: all
metadata: {team: data}
runtime:
  telemetry: {enabled: false}
  cors: {enabled: false}
  ready_state: on_registration
datasets:
  - from: file:a.csv
    name: a
    description: |
      All rows,
      on two lines
    metadata: {owner: ops}
    columns: [{name: t, description: When}, {name: v}]
    access: read
    check_availability: disabled
    ready_state: on_registration
    time_column: t
    time_format: unix_millis
    acceleration:
      engine: sqlite
      mode: file
      params: {sqlite_file: a.db}
      refresh_mode: append
      refresh_cron: 0 4 * * *
      refresh_on_startup: always
      refresh_retry_max_attempts: 3
      refresh_data_window: 7d
      retention_check_enabled: true
      retention_check_interval: 1m
      retention_period: 30d
      on_zero_results: return_empty
      primary_key: (a, B)
      indexes: {v: enabled, "(v, w)": enabled, "(a, v)": unique}
      on_conflict: {"(A, b)": upsert}
views:
  - {name: w, sql: SELECT 1, description: One, acceleration: {engine: arrow, refresh_check_interval: 1m}}
  - {name: x, sql: SELECT 1, acceleration: {enabled: false}}
"""


def test_what_a_spicepod_says_is_taken_with_its_meaning(load_text: Load) -> None:
    config = load_text(SPICEPOD)

    dataset, view = config.datasets
    assert config.ready_state == "on_registered"
    assert (dataset.required_for_ready, dataset.time_format) == (False, "unix_millis")
    assert dataset.documentation == Documentation(
        description="All rows,\non two lines\n", metadata={"owner": "ops"}, columns={"t": "When"}, undescribed=("v",)
    )
    assert dataset.acceleration == AccelerationConfig(
        refresh_mode="append",
        refresh_cron="0 4 * * *",
        refresh_retry_max_attempts=3,
        refresh_data_window_s=7 * 86_400.0,
        retention_period_s=30 * 86_400.0,
        retention_check_interval_s=60.0,
        primary_key=("a", "B"),
        indexes=(IndexConfig(columns=("v",)), IndexConfig(columns=("a", "v"), unique=True)),
        on_conflict="upsert",
    )
    assert (view.name, view.view is not None, view.documentation.description) == ("w", True, "One")
    assert [view.name for view in config.views] == ["x"]
    notes, index = config.warnings
    assert notes.endswith(": 14 fields differ in meaning from Spice: `querykeep check` lists them")
    assert index.endswith(".indexes: has no effect on (v, w): the engine looks up single columns only")


def test_a_number_of_thousands_of_digits_is_no_cron_expression(fault: Fault) -> None:
    text = "datasets:\n  - {from: 'file:a.csv', name: a, acceleration: {refresh_cron: NINES * * * *}}\n"

    assert "refresh_cron: must be a cron expression" in fault(text.replace("NINES", "9" * 5000))


def declared(text: str) -> str:
    return f"datasets: [{{from: 'file:a.csv', name: select}}, {{from: 'localpod:select', name: b, {text}}}]\n"


def test_a_localpod_is_a_view_of_another_dataset(load_text: Load) -> None:
    config = load_text(declared("description: A copy, acceleration: {engine: duckdb}"))
    _, copied = config.datasets
    assert (copied.from_, copied.connector, copied.location) == ("localpod:select", "view", str(config.state_dir))
    assert copied.view is not None
    assert (copied.view.sql, copied.view.is_copy) == ('FROM "select"', True)
    assert copied.documentation.description == "A copy"
    assert config.views == ()

    assert (
        load_text(declared("acceleration: {enabled: false, refresh_check_interval: 1m}")).datasets[1].view
        == copied.view
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (declared("acceleration: {refresh_sql: SELECT 1}"), "declare a view with materialized: true"),
        (declared("acceleration: {primary_key: a}"), "accepts only enabled, engine, mode, params and refresh_check"),
        (declared("time_column: t"), "datasets[1].time_column: is not available with localpod"),
        (declared("params: {file_format: csv}"), "datasets[1].params: is not available with localpod"),
        (declared("").replace("localpod:select", "localpod:a b"), "write localpod: and the name of another dataset"),
    ],
)
def test_a_localpod_that_is_no_copy_is_a_fault(fault: Fault, text: str, said: str) -> None:
    assert said in fault(text)
