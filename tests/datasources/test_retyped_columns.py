"""A rule of a key does not fit data whose columns have types for which it was not written."""

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from queryengine.engine import Query
from queryengine.errors import DatasetNotLoadedError
from queryengine.manifest import Column, read_manifest
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import AccelerationConfig, DatasetRule, IndexConfig, Scope, ViewConfig
from tests.datasources.sources.test_files import put
from tests.datasources.support import Start, configure, declare, finished

#: What a file has before and afterwards, a filter that the types of the second would widen, and one that casts.
RETYPED = [
    ("id,grade\n1,9\n2,x\n3,10\n", "id,grade\n1,9\n2,8\n3,10\n", "grade > '5'", "CAST(grade AS VARCHAR) > '5'"),
    (
        "id,flag\n1,true\n2,maybe\n3,true\n",
        "id,flag\n1,true\n2,false\n3,true\n",
        "flag = 'true'",
        "flag::VARCHAR = 'true'",
    ),
    ("id,s\n1,9\n2,x\n3,10\n", "id,s\n1,9\n2,8\n3,10\n", "CAST(greatest(s, '5') AS VARCHAR) <> '5'", ""),
    ("id,s\n1,9\n2,x\n3,10\n", "id,s\n1,9\n2,8\n3,10\n", "EXISTS (FROM d AS o WHERE o.s > '5' AND o.id = d.id)", ""),
    ("id,s\n1,9\n2,x\n3,10\n", "id,s\n1,9\n2,8\n3,10\n", "id IN (SELECT v.id FROM v WHERE v.S > '5')", ""),
]


def rows(engine: InProcessEngine, row_filter: str) -> bytes:
    scope = Scope(relations=frozenset({"d"}), rules=(DatasetRule(dataset="d", row_filter=row_filter),))
    with closing(engine.run(Query(sql="SELECT id FROM d ORDER BY id", scope=scope))) as result:
        return b"".join(result)


@pytest.mark.parametrize("case", RETYPED)
def test_a_rule_does_not_fit_a_column_of_another_type_unless_it_casts(
    tmp_path: Path, begin: Start, case: tuple[str, str, str, str]
) -> None:
    before, after, row_filter, cast = case
    put(tmp_path, "a.csv", before)
    dataset = declare(tmp_path, "a.csv", on_schema_change="accept")
    refresher = begin(dataset)
    view = ViewConfig(name="v", sql="SELECT id, s FROM d", line=1, yaml_path="views[0].sql")
    config = configure(tmp_path, dataset, views=(view,) if "v." in row_filter else ())

    def refreshed(text: str) -> tuple[Column, ...]:
        put(tmp_path, "a.csv", text)
        assert finished(refresher, refresher.request_refresh("d")).error is None
        return read_manifest(tmp_path / "state").snapshots[0].retyped

    with closing(InProcessEngine(config)) as engine:
        seen = rows(engine, row_filter)
        assert seen
        (changed,) = refreshed(after)
        assert changed.type == "VARCHAR"
        with pytest.raises(DatasetNotLoadedError, match="its rules or views do not fit"):
            rows(engine, row_filter)
        assert rows(engine, "id < 3") == b'[{"id":1},{"id":2}]' or "v." in row_filter
        assert refreshed(after + after.splitlines()[1] + "\n") == (changed,), "remembered"
        with pytest.raises(DatasetNotLoadedError, match="its rules or views do not fit"):
            rows(engine, row_filter)
        if cast:
            assert rows(engine, cast) != rows(engine, "true")
        assert refreshed(before) == ()
        assert rows(engine, row_filter) == seen


def test_a_column_that_comes_back_and_other_integers(tmp_path: Path, begin: Start) -> None:
    put(tmp_path, "a.json", '[{"id": 1, "n": 1, "s": "x"}]')
    dataset = declare(tmp_path, "a.json", on_schema_change="accept")
    refresher = begin(dataset)

    def refreshed(text: str) -> dict[str, str]:
        put(tmp_path, "a.json", text)
        assert finished(refresher, refresher.request_refresh("d")).error is None
        (snapshot,) = read_manifest(tmp_path / "state").snapshots
        return {column.name: column.type for column in snapshot.retyped}

    assert refreshed('[{"id": 1}]') == {"n": "BIGINT", "s": "VARCHAR"}
    assert refreshed('[{"id": 1, "S": 3, "n": 18446744073709551615}]') == {"n": "BIGINT", "s": "VARCHAR"}
    with closing(InProcessEngine(configure(tmp_path, dataset))) as engine:
        assert rows(engine, "n::VARCHAR > '0'") == b'[{"id":1}]'
        for row_filter in ("S = '3'", "hash(n) > 0"):
            with pytest.raises(DatasetNotLoadedError, match="its rules or views do not fit"):
                rows(engine, row_filter)


def test_other_settings_of_the_dataset_do_not_forget_the_first_types(tmp_path: Path, begin: Start) -> None:
    put(tmp_path, "a.csv", "id,grade\n1,9\n2,x\n")
    begin(declare(tmp_path, "a.csv"))
    put(tmp_path, "a.csv", "id,grade\n1,9\n2,8\n")
    indexed = replace(
        declare(tmp_path, "a.csv"), acceleration=AccelerationConfig(indexes=(IndexConfig(columns=("id",)),))
    )
    begin(indexed)

    (snapshot,) = read_manifest(tmp_path / "state").snapshots
    assert snapshot.retyped == (Column(name="grade", type="VARCHAR"),)

    indexed = replace(indexed, name="D", from_="file:./a.csv", location=f"{tmp_path}/./a.csv")
    begin(indexed)
    (snapshot,) = read_manifest(tmp_path / "state").snapshots
    assert snapshot.retyped == (Column(name="grade", type="VARCHAR"),), "another spelling"

    (tmp_path / "a.csv").rename(tmp_path / "away.csv")
    indexed = replace(indexed, name="d")
    for _ in range(2):  # The first start withdraws the data, and the second one finds none.
        begin(indexed)
        assert read_manifest(tmp_path / "state").snapshots == ()
    (tmp_path / "away.csv").rename(tmp_path / "a.csv")
    begin(indexed)
    (snapshot,) = read_manifest(tmp_path / "state").snapshots
    assert snapshot.retyped == (Column(name="grade", type="VARCHAR"),), "no data at the last start"

    begin(replace(indexed, params={"file_format": "csv"}))
    (snapshot,) = read_manifest(tmp_path / "state").snapshots
    assert snapshot.retyped == (), "another file"
