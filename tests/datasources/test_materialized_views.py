"""Views with `materialized: true`: snapshots that follow what they read."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datasources.refresh.refresher import Refresher
from queryengine.execution.views import with_materialized_views
from queryengine.gate.gate import Gate
from runtimeconf.errors import ConfigError
from runtimeconf.model import AccelerationConfig, DatasetConfig, MaterializedView, RuntimeConfig, ViewConfig
from tests.datasources.support import Start, accelerated, configure, finished, served, settled, state, wait_for


def materialized(directory: Path, name: str, sql: str) -> DatasetConfig:
    return DatasetConfig(
        name=name,
        from_=f"view:{name}",
        connector="view",
        location=str(directory / "state"),
        acceleration=AccelerationConfig(),
        view=MaterializedView(sql=sql),
        yaml_path=f"views[{name}].sql",
    )


def resolved(config: RuntimeConfig) -> RuntimeConfig:
    with closing(Gate()) as gate:
        return with_materialized_views(config, gate)


def declared(directory: Path, views: dict[str, str], plain: dict[str, str] | None = None) -> tuple[DatasetConfig, ...]:
    """Return the datasets `a` and `b`, of a column `n`, and materialized *views*, beside *plain* ones."""
    sources = [accelerated(directory, f"{name}.csv", name=name) for name in ("a", "b")]
    of_views = [materialized(directory, name, sql) for name, sql in views.items()]
    plain_views = tuple(ViewConfig(name=name, sql=sql) for name, sql in (plain or {}).items())
    return resolved(configure(directory, *sources, *of_views, views=plain_views)).datasets


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


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("FROM nowhere", "does not exist"),
        ("FROM v", "circle"),
        ("SHOW TABLES", "one query"),
        ("SELECT table_name FROM information_schema.tables", "one query"),
        ("FROM lists", "one query"),
        ("SELECT ? AS a", "no parameters"),
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


def test_a_view_over_unchanged_data_is_not_loaded_again(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2)
    datasets = declared(tmp_path, {"v": "SELECT n + random() * 0 AS n FROM a"})
    wait_for(begin(*datasets).is_loaded, "all to be loaded")
    before = state(begin(*datasets), "v")

    assert settled(begin(*datasets), "v").unchanged
    assert state(begin(*datasets), "v").snapshot == before.snapshot


def test_a_view_waits_for_what_it_reads_and_says_if_that_fails(tmp_path: Path, start: Start) -> None:
    write(tmp_path, b=2)
    refresher: Refresher = start(*declared(tmp_path, {"v": "SELECT n FROM a"}))
    settled(refresher, "a")
    wait_for(lambda: state(refresher, "v").status == "Error", "the error")
    assert state(refresher, "v").error == "Something that it reads cannot be loaded."

    write(tmp_path, a=7)
    finished(refresher, refresher.request_refresh("a"), "a")

    wait_for(lambda: state(refresher, "v").status == "Ready", "the view")
    assert rows_of(tmp_path, "v") == [7]


def test_a_view_that_is_asked_for_too_early_does_not_name_what_it_reads(tmp_path: Path, start: Start) -> None:
    refresher = start(*declared(tmp_path, {"v": "SELECT n FROM a"}))

    run = finished(refresher, refresher.request_refresh("v"), "v")

    assert run.error == "Something that the view v reads has no data yet."


def test_a_type_that_lists_values_is_refused(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a=1, b=2)
    refresher = begin(*declared(tmp_path, {"v": "SELECT [CAST('x' AS ENUM ('x', 'secret'))] AS n FROM a"}))

    error = settled(refresher, "v").error
    assert error == "The type of the column n lists values of rows left out: cast it to VARCHAR."


def test_an_error_on_the_data_quotes_none_of_it(tmp_path: Path, begin: Start) -> None:
    write(tmp_path, a="secret", b=2)
    refresher = begin(*declared(tmp_path, {"v": "SELECT n::INTEGER AS n FROM a"}))

    assert settled(refresher, "v").error == "The view v fails on the data of what it reads (ConversionException)."
