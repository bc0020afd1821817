"""While another configuration takes effect, no engine reads data that its own configuration does not declare."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from queryengine.manifest import STAGED_DIRECTORY, Manifest, read_manifest, write_manifest
from runtimeconf.model import DatasetConfig, DatasetRule, MaterializedView, RuntimeConfig, Scope
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.test_row_rules import answer

OLD = {"src": "SELECT 1 AS id", "mv": "SELECT 10 AS id", "other": "SELECT 100 AS id"}
NEW = {"src": "SELECT 2 AS id", "mv": "SELECT 20 AS id"}
#: The fingerprints of the data. The view itself has not changed, but what it reads has.
OF_OLD = {"src": "old", "mv": "view", "other": "other"}
OF_NEW = {**OF_OLD, "src": "new"}
UNLOADED = "DatasetNotLoadedError: Dataset '{}' is not loaded yet."


def declared(state_dir: Path, fingerprints: Mapping[str, str]) -> RuntimeConfig:
    config = config_of(state_dir, tuple(fingerprints))

    def of(dataset: DatasetConfig) -> DatasetConfig:
        view = MaterializedView(sql="FROM src", reads=("src",)) if dataset.name == "mv" else None
        return replace(dataset, fingerprint=fingerprints[dataset.name], view=view)

    return replace(config, datasets=tuple(map(of, config.datasets)))


def built(publisher: Publisher, tables: Mapping[str, str], fingerprints: Mapping[str, str]) -> Manifest:
    """Return a manifest of *tables*, which are built but not published."""
    written = {name: publisher._write(name, sql) for name, sql in tables.items()}
    snapshots = tuple(replace(one, source=fingerprints[name]) for name, one in written.items())
    return Manifest(generation=1, snapshots=snapshots)


def with_new(old: Manifest, new: Manifest, generation: int = 2) -> Manifest:
    names = {one.dataset for one in new.snapshots}
    kept = [one for one in old.snapshots if one.dataset not in names]
    return Manifest(generation=generation, snapshots=(*kept, *new.snapshots))


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    (tmp_path / "state" / STAGED_DIRECTORY).mkdir(parents=True)
    return Publisher(tmp_path / "state")


def test_an_engine_with_new_declarations_reads_staged_data_only(publisher: Publisher) -> None:
    state_dir = publisher.state_dir
    old, new = built(publisher, OLD, OF_OLD), built(publisher, NEW, OF_NEW)
    write_manifest(state_dir, old)
    with KINDS["in process"](declared(state_dir, OF_NEW)) as engine:

        def seen() -> list[str]:
            return [answer(engine, f"FROM {name}", None).decode() for name in ("src", "mv", "other")]

        assert seen() == [UNLOADED.format("src"), UNLOADED.format("mv"), '[{"id":100}]']
        staged = [one for one in new.snapshots if one.dataset == "src"]
        write_manifest(state_dir / STAGED_DIRECTORY, Manifest(generation=1, snapshots=tuple(staged)))
        assert seen() == ['[{"id":2}]', UNLOADED.format("mv"), '[{"id":100}]']
        write_manifest(state_dir / STAGED_DIRECTORY, new)
        assert seen() == ['[{"id":2}]', '[{"id":20}]', '[{"id":100}]']
        write_manifest(state_dir, with_new(old, new))
        (state_dir / STAGED_DIRECTORY / "manifest.json").unlink()
        assert seen() == ['[{"id":2}]', '[{"id":20}]', '[{"id":100}]']


@pytest.mark.parametrize("is_staged", [True, False])
def test_an_engine_with_former_declarations_does_not_read_new_data(publisher: Publisher, is_staged: bool) -> None:
    state_dir = publisher.state_dir
    old, new = built(publisher, OLD, OF_OLD), built(publisher, NEW, OF_NEW)
    write_manifest(state_dir, old)
    with KINDS["in process"](declared(state_dir, OF_OLD)) as engine:
        before = [answer(engine, f"FROM {name}", None) for name in OLD]
        if is_staged:  # The staged manifest is deleted a moment after the publication.
            write_manifest(state_dir / STAGED_DIRECTORY, new)
        write_manifest(state_dir, with_new(old, new))

        assert [answer(engine, f"FROM {name}", None) for name in OLD] == before
        assert [answer(engine, f"FROM {name}", None) for name in OLD] == before
    with KINDS["in process"](declared(state_dir, OF_OLD)) as engine:
        assert answer(engine, "FROM mv", None).decode() == UNLOADED.format("mv")
    assert read_manifest(state_dir).generation == 2


def test_rules_apply_to_a_view_with_the_name_of_a_former_dataset(publisher: Publisher) -> None:
    publisher.publish(src="SELECT 1 AS id, 'SECRET' AS tenant", v="SELECT 2 AS id, 'SECRET' AS tenant")
    rule = DatasetRule(dataset="v", masks=(("tenant", "left(tenant, 1)"),))
    config = config_of(publisher.state_dir, ("src",), {"v": "FROM src"})
    with KINDS["in process"](config) as engine:
        for scope in (Scope(relations=frozenset({"v"}), rules=(rule,)), Scope(relations=frozenset({"v"}))):
            shown = "S" if scope.rules else "SECRET"
            assert answer(engine, "FROM v", scope).decode() == f'[{{"id":1,"tenant":"{shown}"}}]'
