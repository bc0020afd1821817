"""Datasets and views from other Spicepods, and faults in them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryengine.execution.views import with_materialized_views
from queryengine.gate.gate import Gate
from runtimeconf.errors import ConfigError
from runtimeconf.loader import examine, load
from runtimeconf.survey import survey
from tests.runtimeconf.configurations import KEY

NAMED = f"""runtime:
  auth:
    api-key:
      enabled: true
      named_keys: [{{name: bi, key: {KEY}, datasets: [trips, top]}}]
dependencies: [spiceai/quickstart]
datasets: [{{from: "file:a.csv", name: a}}]
"""
QUICKSTART = """kind: Spicepod
version: v1
name: quickstart
secrets: [{from: env, name: env}]
datasets:
  - {from: "file:trips.parquet", name: trips}
views:
  - {name: top, sql: SELECT 1 AS one, acceleration: {enabled: true}}
"""


def written(directory: Path, text: str, **dependencies: str) -> Path:
    """Write a configuration and its dependencies, in whose names `_` stands for a slash; return its file."""
    for name, content in dependencies.items():
        file = directory / "spicepods" / name.replace("_", "/") / "spicepod.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(content)
    (directory / "spicepod.yaml").write_text(text)
    return directory / "spicepod.yaml"


def faults(directory: Path, text: str, **dependencies: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(written(directory, text, **dependencies), {})
    return [str(fault).removeprefix(f"{directory}/") for fault in caught.value.faults]


def test_a_dependency_brings_its_datasets_and_views_which_keys_may_name(tmp_path: Path) -> None:
    config = load(written(tmp_path, NAMED, spiceai_quickstart=QUICKSTART), {})

    assert {one.name: one.location for one in config.datasets} == {
        "a": str(tmp_path / "a.csv"),
        # Paths are relative to the configuration, as in Spice.ai.
        "trips": str(tmp_path / "trips.parquet"),
        "top": str(config.state_dir),
    }
    assert "fields differ in meaning from Spice" in config.warnings[0]


def test_only_the_configuration_has_secret_stores(tmp_path: Path) -> None:
    dataset = {"from": "file:a.csv", "name": "b", "params": {"csv_quote": "${ own:quote }"}}
    text = json.dumps({"secrets": [{"from": "env", "name": "own"}], "datasets": [dataset]})

    found = faults(tmp_path, "dependencies: [b]\n", b=text)

    assert any("refers to a secret store that is not configured" in fault for fault in found)


def test_what_is_wrong_in_a_dependency_is_shown_at_its_place(tmp_path: Path) -> None:
    wrong = f"""datasets:
  - {{from: "file:x.csv", name: A}}
  - {{from: "file:x.csv", name: b, nonsense: 1}}
runtime: {{auth: {{api-key: {{enabled: true, keys: [{KEY}]}}}}}}
models: []
dependencies: [spiceai/quickstart]
"""
    found = faults(tmp_path, "dependencies: [c, a/b]\ndatasets: [{from: 'file:a.csv', name: a}, {}]\n", a_b=wrong)

    b = "spicepods/a/b/spicepod.yaml"
    assert [fault.partition(":")[0] for fault in found] == ["spicepod.yaml"] * 3 + [b] * 5
    assert "spicepod.yaml:1: dependencies[0]: is missing: put the Spicepod in spicepods/c/spicepod.yaml" in found[0]
    assert f"{b}:2: dependencies[1].datasets[0].name: the name A is used twice: by datasets[0] on line 2" in found[3]
    assert f"{b}:3: dependencies[1].datasets[1].nonsense: unknown field" in found[4]
    assert found[5].startswith(
        f"{b}:4: dependencies[1].runtime: is not available here: Move it to the main configuration"
    )
    assert KEY not in "".join(found)
    assert "models" in found[6]
    assert "List it in the dependencies of the main configuration" in found[7]


def test_a_dependency_that_is_listed_twice_is_one_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, "dependencies: [b, b]\n", b=QUICKSTART) == [
        "spicepod.yaml:1: dependencies[1]: is listed twice: remove one"
    ]


def test_a_key_may_name_what_a_dependency_that_is_not_here_has(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, NAMED)

    assert "dependencies[0]: is missing" in fault


def test_the_one_store_of_old_spicepods_is_left_aside(tmp_path: Path) -> None:
    config = load(written(tmp_path, "dependencies: [b]\n", b="secrets: {store: env}\n"), {})

    assert "1 field differs in meaning from" in config.warnings[0]


@pytest.mark.parametrize("sql", ["SELECT 1 FROM nowhere", "SELECT FROM", "FROM read_csv('x')"])
def test_sql_of_a_dependency_that_is_refused_is_shown_in_its_file(tmp_path: Path, sql: str) -> None:
    config = load(written(tmp_path, "dependencies: [b]\n", b=f"name: b\nviews:\n  - {{name: v, sql: {sql}}}\n"), {})

    with pytest.raises(ConfigError) as caught:
        with_materialized_views(config, Gate())

    assert str(caught.value).startswith(f"{tmp_path}/spicepods/b/spicepod.yaml:3: dependencies[0].views[0].sql: ")


@pytest.mark.parametrize("content", ["a: [", "", "- a\n", "datasets: 3\n", "a: 1\na: 2\n", "\x01"])
def test_a_dependency_that_cannot_be_read_is_a_fault_in_its_file(tmp_path: Path, content: str) -> None:
    (fault, *_) = faults(tmp_path, "dependencies: [b]\n", b=content)

    assert fault.startswith("spicepods/b/spicepod.yaml")


@pytest.mark.parametrize(
    "name", ["../b", "b/..", ".b", "/b", "a/b/c", "a//b", "", "b/", "a\\b", "a b", "[b]", "{b: 1}"]
)
def test_a_name_leads_to_no_other_directory(tmp_path: Path, name: str) -> None:
    item: Any = name if name.startswith(("[", "{")) else json.dumps(name)
    (fault,) = faults(tmp_path, f"dependencies:\n  - {item}\n", b="name: b\n")

    assert fault.startswith("spicepod.yaml:2: dependencies[0]: must be the name of a Spicepod")


@given(name=st.text(max_size=20))
def test_no_name_is_taken_that_leads_elsewhere(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    directory = tmp_path_factory.getbasetemp() / "names"
    directory.mkdir(exist_ok=True)
    (directory / "spicepod.yaml").write_text(json.dumps({"dependencies": [name]}))

    with pytest.raises(ConfigError) as caught:
        load(directory / "spicepod.yaml", {})

    assert {fault.line for fault in caught.value.faults} == {1}


def test_the_table_of_check_shows_what_a_dependency_cannot_have(tmp_path: Path) -> None:
    examination = examine(written(tmp_path, f"kind: Spicepod\n{NAMED}", spiceai_quickstart="models: []\n"), {})

    verdicts = {use.path: use.verdict for use in survey(examination)}

    assert verdicts["spicepods/spiceai/quickstart/spicepod.yaml: models"] == "unsupported"
    assert verdicts["dependencies"] == "supported"
