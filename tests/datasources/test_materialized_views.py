"""Views with `materialized: true`: snapshots that follow what they read."""

import json
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from datasources.control import Loaded
from datasources.errors import SourceError
from datasources.refresh.refresher import Refresher
from datasources.refresh.service import load_once
from datasources.snapshots.snapshot import origin, with_fingerprints
from datasources.sources.view import ViewSource
from queryengine.execution.views import with_materialized_views
from queryengine.gate.gate import Gate
from queryengine.manifest import SNAPSHOT_DIRECTORY
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from runtimeconf.model import AuthConfig, DatasetConfig, NamedKey, RuntimeConfig, Scope, ViewConfig
from tests.datasources.support import Start, accelerated, configure, finished, new_load, served, settled, state
from tests.system.harness import wait_for


def resolved(config: RuntimeConfig) -> RuntimeConfig:
    with closing(Gate()) as gate:
        return with_materialized_views(config, gate)


def declared(
    directory: Path, views: dict[str, str], plain: dict[str, str] | None = None, keys: tuple[NamedKey, ...] = ()
) -> tuple[DatasetConfig, ...]:
    """Return the datasets `a` and `b`, of a column `n`, and materialized *views*, beside *plain* ones."""
    sources = [accelerated(directory, f"{name}.csv", name=name) for name in ("a", "b")]
    file = directory / "runtime.yaml"
    entries = [{"name": name, "sql": sql, "materialized": True} for name, sql in views.items()]
    file.write_text(json.dumps({"runtime": {"state_dir": "state"}, "views": entries}))
    of_views = load(file, {}).datasets
    plain_views = tuple(ViewConfig(name=name, sql=sql) for name, sql in (plain or {}).items())
    config = configure(directory, *sources, *of_views, views=plain_views)
    return resolved(replace(config, auth=AuthConfig(enabled=True, named_keys=keys))).datasets


def write(directory: Path, **values: Any) -> None:
    for name, value in values.items():
        (directory / f"{name}.csv").write_text(f"n\n{value}\n")


def rows_of(directory: Path, name: str) -> list[Any]:
    return [row[0] for row in served(directory, name)]


def test_what_a_view_reads_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    *_, over, total = declared(
        tmp_path,
        {"Over": "SELECT n FROM Helper", "total": "SELECT sum(n) AS n FROM over, main.b"},
        {"helper": "SELECT n FROM inner_one", "inner_one": "FROM a", "unused": "FROM b"},
    )

    assert over.view is not None
    assert total.view is not None
    assert over.view.reads == ("a",)
    assert [view.name for view in over.view.views] == ["inner_one", "helper"]
    assert (total.view.reads, total.view.views) == (("b", "over"), ())


def test_the_first_types_of_a_view_do_not_depend_on_who_may_see_it(tmp_path: Path) -> None:
    views = {"v": "SELECT n FROM a"}
    key = NamedKey(name="some", scope=Scope(relations=frozenset({"v"})))
    before, after = declared(tmp_path, views)[-1], declared(tmp_path, views, keys=(key,))[-1]
    assert before.view != after.view
    assert origin(before) == origin(after)
    assert origin(before) != origin(declared(tmp_path, {"v": "SELECT n + 1 AS n FROM a"})[-1])


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("FROM nowhere", "does not exist"),
        ("FROM v", "Circular view references"),
        ("SHOW TABLES", "a single row-returning query"),
        ("SELECT table_name FROM information_schema.tables", "a single row-returning query"),
        ("FROM lists", "a single row-returning query"),
        ("SELECT ? AS a", "cannot have parameters"),
        ("DELETE FROM a", "not allowed"),
    ],
)
def test_faults(tmp_path: Path, sql: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        declared(tmp_path, {"v": sql}, {"lists": "SELECT name FROM (SHOW TABLES)"})


def test_a_view_follows_what_it_reads(tmp_path: Path, start: Start) -> None:
    write(tmp_path, a=1, b=2)
    refresher = start(
        *declared(
            tmp_path,
            {"every": "FROM a UNION ALL FROM helper", "n": "SELECT sum(n) AS n FROM every"},
            {"helper": "FROM b"},
        )
    )
    wait_for(refresher.is_loaded, "all to be loaded")
    assert sorted(rows_of(tmp_path, "every")) == [1, 2]

    write(tmp_path, b=40)
    run = refresher.request_refresh("b")

    assert finished(refresher, run, "b").error is None
    wait_for(lambda: rows_of(tmp_path, "n") == [41], "the view of the view")
    assert sorted(rows_of(tmp_path, "every")) == [1, 40]


def test_a_view_and_those_that_it_reads_may_call_functions_of_datafusion(tmp_path: Path, start: Start) -> None:
    write(tmp_path, a=1, b=2)
    views = {"v": "SELECT array_sum(l) + nvl(NULL, 10) AS n FROM helper"}
    refresher = start(*declared(tmp_path, views, {"helper": "SELECT array_remove(make_array(n, 5, 7), 5) AS l FROM a"}))

    wait_for(refresher.is_loaded, "all to be loaded")

    assert rows_of(tmp_path, "v") == [18]


def test_a_view_over_unchanged_data_is_not_loaded_again(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2)
    datasets = declared(tmp_path, {"v": "SELECT n + random() * 0 AS n FROM a"})
    wait_for(begin(*datasets).is_loaded, "all to be loaded")
    before = state(begin(*datasets), "v")

    assert settled(begin(*datasets), "v").unchanged
    assert state(begin(*datasets), "v").snapshot == before.snapshot


@pytest.mark.parametrize(("sql", "order"), [("FROM t", [1, 2, 3]), ("FROM t ORDER BY -n", [3, 2, 1])])
def test_what_a_view_leaves_out_does_not_decide_the_order_that_a_key_sees(
    tmp_path: Path, start: Start, sql: str, order: list[int]
) -> None:
    """Without a key, the rows of the view are in the order of the side of the join that has more rows."""
    scope = Scope(relations=frozenset({"v"}))
    key = NamedKey(name="k", sha256=bytes(32), scope=scope)
    sides = "(VALUES (2), (3), (1)) l(n) JOIN (FROM (VALUES (1), (3), (2)) r(n) UNION ALL SELECT n + 9 FROM a) r"
    view = sql.replace("t", f"(SELECT n FROM {sides} USING (n))", 1)
    write(tmp_path, a="1\n2\n3\n4\n5\n6\n7", b=0)
    datasets = declared(tmp_path, {"v": view}, keys=(key,))
    wait_for(start(*datasets).is_loaded, "all to be loaded")

    assert rows_of(tmp_path, "v") == order


def test_a_view_waits_for_what_it_reads_and_says_if_that_fails(tmp_path: Path, start: Start) -> None:
    write(tmp_path, b=2)
    refresher: Refresher = start(*declared(tmp_path, {"top": "FROM v", "v": "SELECT n FROM a"}))
    settled(refresher, "a")
    wait_for(lambda: {state(refresher, name).status for name in ("v", "top")} == {"Error"}, "the errors", 5.0)
    error = "A dataset or view that it reads cannot be loaded."  # not what: a key may see the view alone
    assert state(refresher, "v").error == error
    asked = finished(refresher, refresher.request_refresh("v"), "v")
    assert asked.error == "A dataset or view that the view reads has no data yet."

    write(tmp_path, a=7)
    finished(refresher, refresher.request_refresh("a"), "a")

    wait_for(lambda: state(refresher, "v").status == "Ready", "the view")
    assert rows_of(tmp_path, "v") == [7]


def test_what_a_view_reads_may_be_replaced_while_it_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, a=1, b=2)
    datasets = declared(tmp_path, {"v": "FROM a UNION ALL FROM b"})
    config = configure(tmp_path, *datasets)
    load_once(config, [], [])

    with ViewSource(datasets[-1]).open(new_load(tmp_path)) as scan, duckdb.connect() as connection:
        for file in (tmp_path / "state" / SNAPSHOT_DIRECTORY).iterdir():
            file.unlink()
        connection.execute("ATTACH ':memory:' AS runtime; USE runtime")
        rows = connection.execute(f"FROM {scan.bind(connection)} ORDER BY n").fetchall()

    assert rows == [(1,), (2,)]
    with pytest.raises(SourceError, match="has been lost"), ViewSource(datasets[-1]).open(new_load(tmp_path)):
        pass


def test_a_view_takes_the_columns_of_what_it_reads(tmp_path: Path) -> None:
    write(tmp_path, a=1, b=2)
    a, *others = declared(tmp_path, {"v": "FROM a"})
    config = configure(tmp_path, replace(a, on_schema_change="accept"), *others)
    load_once(config, [], [])

    (tmp_path / "a.csv").write_text("n,m\n1,2\n")
    runs = load_once(config, [], [])

    assert [run.error for _, run in runs] == [None, None, None]
    assert served(tmp_path, "v") == [(1, 2)]


def test_loading_once_loads_views_after_what_they_read(tmp_path: Path) -> None:
    write(tmp_path, a=1, b=2)
    views = {"top": "SELECT n + 1 AS n FROM v", "v": "SELECT a.n + b.n AS n FROM a, b"}
    config = configure(tmp_path, *declared(tmp_path, views))

    first = load_once(config, [], [])
    write(tmp_path, a=10)
    load_once(config, ["a"], [])

    assert [(name, run.error, run.rows) for name, run in first] == [(name, None, 1) for name in ("a", "b", "v", "top")]
    assert rows_of(tmp_path, "top") == [13]


def test_a_localpod_has_the_rows_of_the_dataset_that_it_copies(tmp_path: Path) -> None:
    write(tmp_path, a=1)
    (tmp_path / "runtime.yaml").write_text(
        "runtime: {state_dir: state}\n"
        "datasets:\n"
        "  - {from: 'localpod:A', name: copy, acceleration: {engine: duckdb, mode: file}}\n"
        "  - {from: 'file:a.csv', name: a, acceleration: {}}\n"
    )
    config = resolved(load(tmp_path / "runtime.yaml", {}))

    load_once(config, [], [])
    write(tmp_path, a=2)
    runs = load_once(config, ["a"], [])

    assert [(name, run.error, run.rows) for name, run in runs] == [("a", None, 1)]
    assert rows_of(tmp_path, "copy") == [2]


def test_names_with_a_schema_are_found_by_refresh_sql_and_by_views(tmp_path: Path) -> None:
    write(tmp_path, a=1)
    (tmp_path / "runtime.yaml").write_text(
        "runtime: {state_dir: state}\n"
        "datasets:\n"
        "  - {from: 'file:a.csv', name: Taxi.trips, acceleration: {refresh_sql: SELECT n + 1 AS n FROM taxi.trips}}\n"
        "  - {from: 'localpod:taxi.trips', name: copies.trips}\n"
        "views:\n"
        "  - {name: copies.more, sql: SELECT n + 1 AS n FROM taxi.less, materialized: true}\n"
        "  - {name: taxi.less, sql: SELECT n - 10 AS n FROM runtime.taxi.trips}\n"
    )
    config = resolved(load(tmp_path / "runtime.yaml", {}))

    runs = load_once(config, [], [])

    assert [run.error for _, run in runs] == [None] * 3
    assert [rows_of(tmp_path, name) for name in ("Taxi.trips", "copies.trips", "copies.more")] == [[2], [2], [-7]]


def test_a_view_of_a_changed_definition_is_not_served(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2)
    views = {"v": "FROM A", "top": "FROM v", "other": "FROM b"}
    datasets = declared(tmp_path, views)
    wait_for(begin(*datasets).is_loaded, "all to be loaded")

    gone = accelerated(tmp_path, "gone.csv", name="a")
    refresher = begin(gone, *datasets[1:])

    assert settled(refresher, "a").error is not None
    assert [state(refresher, name).rows for name in ("a", "b", "v", "top", "other")] == [None, 1, None, None, 1]
    assert state(refresher, "v").status == "Error"


def test_a_reload_replaces_a_dataset_and_its_views_at_once(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2, other=7)
    datasets = declared(tmp_path, {"v": "FROM A", "top": "FROM v"})
    former = begin(*datasets)
    wait_for(former.is_loaded, "all to be loaded")
    asked = [former]

    def is_loaded() -> bool:
        return asked[-1].is_loaded()

    loaded = Loaded(tmp_path / "state", is_loaded, ["a", "b", "v", "top"])
    assert loaded.check()

    changed = accelerated(tmp_path, "other.csv", name="a")
    added = accelerated(tmp_path, "b.csv", name="added")
    absent = accelerated(tmp_path, "absent.csv", name="absent")
    new = former.replace(configure(tmp_path, changed, *datasets[1:], added, absent), (), 60)
    asked.append(new)

    try:
        wait_for(lambda: {state(new, name).status for name in ("top", "added")} == {"Ready"}, "the rest")
        assert not new.is_loaded()
        assert loaded.check()
        assert [rows_of(tmp_path, name) for name in ("a", "v", "top")] == [[1], [1], [1]]
        new.commit()
        assert [rows_of(tmp_path, name) for name in ("a", "v", "top")] == [[7], [7], [7]]
    finally:
        assert new.stop(30)


def test_a_view_waits_for_what_a_reload_declares_otherwise(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2, other=7)
    datasets = declared(tmp_path, {"v": "FROM a", "w": "FROM b"})
    former = begin(*datasets)
    wait_for(former.is_loaded, "all to be loaded")
    runs = {name: former.request_refresh(name, jitter_max_s=3600.0) for name in ("v", "w")}
    absent = accelerated(tmp_path, "absent.csv", name="a")
    other = accelerated(tmp_path, "other.csv", name="b")
    new = former.replace(with_fingerprints(configure(tmp_path, absent, other, *datasets[2:])), (), 60)

    try:
        for name, run in runs.items():
            new.request_refresh(name)  # The run is queued before the load of what the view reads, and begins now.
            assert finished(new, run, name).status == ("failed" if name == "v" else "succeeded")
        assert state(new, "v").rows is None
        new.commit()
        assert rows_of(tmp_path, "w") == [7]
    finally:
        assert new.stop(30)


def test_the_definition_of_a_view_includes_those_of_what_it_reads(tmp_path: Path) -> None:
    a, b, *views = declared(tmp_path, {"v": "FROM a", "top": "FROM v", "other": "FROM b"})
    changed = accelerated(tmp_path, "a.csv", name="a", refresh_sql="SELECT n + 1 AS n FROM a")

    before, after = (
        {one.name: one.fingerprint for one in with_fingerprints(configure(tmp_path, first, b, *views)).datasets}
        for first in (a, changed)
    )

    assert {name for name in before if before[name] != after[name]} == {"a", "v", "top"}
    assert len({*before.values()}) == 5
    in_place = with_fingerprints(configure(tmp_path, replace(a, is_in_place=True), b, *views)).datasets
    assert [one.name for one in in_place if not one.fingerprint] == ["a"]


def test_a_view_reads_only_what_was_built_as_declared(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2)
    config = with_fingerprints(configure(tmp_path, *declared(tmp_path, {"v": "FROM a"})))
    wait_for(begin(*config.datasets).is_loaded, "all to be loaded")
    view = config.datasets[-1]
    assert view.view is not None

    for fingerprints, is_read in ((view.view.fingerprints, True), (("other",), False), ((), True)):
        source = ViewSource(replace(view, view=replace(view.view, fingerprints=fingerprints)))
        expected = nullcontext() if is_read else pytest.raises(SourceError, match="has no data yet")
        with expected, source.open(new_load(tmp_path)) as scan:
            assert len(scan.paths) == 4


def test_a_view_that_cannot_be_loaded_is_tried_again(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a="1", b=2)
    refresher = begin(*declared(tmp_path, {"v": "SELECT error('no') AS n FROM a WHERE n > 1"}))
    assert settled(refresher, "v").error is None

    write(tmp_path, a="7")
    finished(refresher, refresher.request_refresh("a"), "a")

    failed = wait_for(lambda: [run for run in refresher.history("v") if run.status == "failed"][1:], "another try")
    assert "fails on the data" in str(failed[0].error)
    assert state(refresher, "v").rows == 0


def test_a_type_that_lists_values_is_refused(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2)
    refresher = begin(*declared(tmp_path, {"v": "SELECT [CAST('x' AS ENUM ('x', 'secret'))] AS n FROM a"}))

    error = settled(refresher, "v").error
    assert error == "The type of the column n lists values of rows that the view leaves out: cast it to VARCHAR."


def test_an_error_on_the_data_quotes_none_of_it(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a="secret", b=2)
    refresher = begin(*declared(tmp_path, {"v": "SELECT n::INTEGER AS n FROM a"}))

    assert settled(refresher, "v").error == "The view v fails on the data that it reads (ConversionException)."


def test_sql_that_does_not_fit_is_told_in_the_log_alone(
    tmp_path: Path, begin: Start, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, a=1, b=2)
    refresher = begin(*declared(tmp_path, {"v": "SELECT m FROM a"}))

    assert settled(refresher, "v").error == "The view v does not match the data that it reads; see the runtime log."
    assert 'Referenced column "m" not found' in caplog.text
