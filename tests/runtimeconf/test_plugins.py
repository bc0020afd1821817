"""The registry of plug-ins: those of other distributions, and the core without any of ours."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datasources.refresh.manager import manager_of
from runtimeconf.connector import Connector
from runtimeconf.model import LOCALPOD
from runtimeconf.plugins import (
    CONNECTORS,
    ENGINES,
    SECRET_STORES,
    SNAPSHOT_STORES,
    VIEW,
    PluginError,
    Plugins,
)
from tests.runtimeconf.configurations import KEY, Fault, Load, dataset_text, with_keys

ROOT = Path(__file__).parents[2]
#: The tables of the registry.
TABLES: tuple[Plugins[Any], ...] = (CONNECTORS, SECRET_STORES, ENGINES, SNAPSHOT_STORES)

#: Loads the datasets of a YAML as a runtime does, in a process of its own, and prints their rows.
_LOAD = """
import json, sys
from contextlib import closing
from pathlib import Path
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from runtimeconf.loader import load
from tests.datasources.support import builder, deadline, rows

directory = Path(sys.argv[1])
(dataset,) = load(directory / "runtime.yaml", {}).datasets
with closing(LoaderProcess(builder(directory))) as process:
    print(json.dumps(rows(directory, process.build(Order(dataset), deadline()))))
"""


def install(directory: Path, entry: str, code: str, group: str = "querykeep.connectors") -> None:
    """Put a distribution with one plug-in into *directory*, as pip does."""
    information = directory / "querykeep_ini-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: querykeep-ini\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    (directory / "querykeep_ini.py").write_text(code)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of packages that this process can import."""
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield tmp_path / "packages"
    sys.modules.pop("querykeep_ini", None)


def of(built_in: dict[str, str]) -> Plugins[Connector]:
    """Return another registry of connectors, as a process finds it that starts now."""
    return Plugins("querykeep.connectors", Connector, built_in, frozenset({VIEW, LOCALPOD}))


def run(code: str, *arguments: object, directory: Path = ROOT, path: str = "") -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_connector_of_the_how_to_page_loads_rows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "internals" / "write-a-connector.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (entry,) = re.findall(r'(?m)^\[project\.entry-points\."querykeep\.connectors"\]\n(.*)$', page)
    (yaml,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    install(tmp_path / "packages", entry.replace('"', ""), code)
    (tmp_path / "settings.ini").write_text("[limits]\nrows = 5\nrate = 10%\n[other]\na = b\n")
    (tmp_path / "runtime.yaml").write_text(yaml.replace("settings\n", "d\n"))

    found = run(_LOAD, tmp_path, path=str(tmp_path / "packages"))

    assert json.loads(found) == [["rows", "5"], ["rate", "10%"]]


def test_the_secret_store_of_the_how_to_page_has_secrets(
    packages: Path, load_text: Load, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "internals" / "write-a-connector.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    install(packages, "lines = querykeep_ini:LINES", code, group="querykeep.secret_stores")
    monkeypatch.setitem(SECRET_STORES.__dict__, "_installed", vars(Plugins)["_installed"].func(SECRET_STORES))
    monkeypatch.setitem(SECRET_STORES.__dict__, "_loaded", {})
    (tmp_path / "secrets.txt").write_text(f"api_key={KEY}\n")
    text = "secrets: [{from: 'lines:secrets.txt', name: lines}]\n" + with_keys("- ${ lines:api_key }")

    assert load_text(text).auth.keys[0].reveal() == KEY
    assert fault(text.replace("api_key }", "other }")).endswith(f"(tried: the line other of {tmp_path}/secrets.txt)")
    assert "write lines: followed by the name of the secret, such as lines:secrets.txt" in fault(
        text.replace("s.txt", "/..", 1)
    )
    assert "params: unknown field; the fields here are: directory" in fault(
        text.replace("name: lines}", "name: lines, params: {canary: a}}")
    )


def test_a_secret_store_that_cannot_be_used_is_a_fault(
    packages: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, "bad = querykeep_ini:KIND", "import absent_library", group="querykeep.secret_stores")
    monkeypatch.setitem(SECRET_STORES.__dict__, "_installed", {"bad": "querykeep_ini:KIND"})

    said = fault("secrets: [{from: 'bad:a', name: bad, params: {directory: a}}]")

    assert "(the store bad cannot be used: querykeep_ini:KIND cannot be imported (ModuleNotFound" in said


@pytest.mark.parametrize("name", ["postgres", "view", "localpod"])
def test_a_name_of_the_core_cannot_be_taken(packages: Path, name: str) -> None:
    install(packages, f"{name} = querykeep_ini:CONNECTOR", "CONNECTOR = None")
    registry = of({"postgres": "runtimeconf.files:FILE"})

    assert registry["postgres"].source == "datasources.sources.files:FileSource"
    assert list(registry) == ["postgres"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import absent_library", "querykeep_ini:CONNECTOR cannot be imported (ModuleNotFoundError: No module named"),
        ("", "querykeep_ini:CONNECTOR cannot be imported (AttributeError: "),
        ("CONNECTOR = 1", "querykeep_ini:CONNECTOR is not a Connector"),
    ],
)
def test_a_plugin_that_cannot_be_used_hurts_only_who_asks_for_it(packages: Path, code: str, reason: str) -> None:
    install(packages, "bad = querykeep_ini:CONNECTOR", code)
    registry = of({"file": "runtimeconf.files:FILE"})

    assert registry.built_in == {"file": registry["file"]}
    assert list(registry) == ["file", "bad"]
    with pytest.raises(PluginError, match=f"^{re.escape(reason)}"):
        registry["bad"]


def test_a_dataset_of_a_plugin_that_cannot_be_used_is_a_fault(
    packages: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, "bad = querykeep_ini:CONNECTOR", "import absent_library")
    monkeypatch.setitem(CONNECTORS.__dict__, "_installed", {"bad": "querykeep_ini:CONNECTOR"})

    said = fault(dataset_text("bad:x", {"file_format": "csv"}))

    assert "(the connector bad cannot be used: querykeep_ini:CONNECTOR cannot be imported (ModuleNotFound" in said


#: Of another distribution: a store whose nodes each load by themselves.
_STORE = """
from typing import Annotated

from datasources.refresh.refresher import Refresher
from runtimeconf.connector import Param, Params, SnapshotStore
from runtimeconf.fields import TextField


class StoreParams(Params):
    lonely_key: Annotated[str, Param(TextField("a key"), is_secret=True)]


class Node(Refresher):
    def __init__(self, config, shared, builders):
        super().__init__(config, builders=builders)


STORE = SnapshotStore(locate=str.strip, params=StoreParams, node="querykeep_ini:Node")
"""


def shared(text: str) -> str:
    """Return a configuration with `runtime.snapshots`."""
    return f"runtime: {{snapshots: {{{text}}}}}"


def test_a_snapshot_store_of_another_distribution_provides_the_node(
    packages: Path, fault: Fault, load_text: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, "lonely = querykeep_ini:STORE", _STORE)
    monkeypatch.setitem(SNAPSHOT_STORES.__dict__, "_installed", {"lonely": "querykeep_ini:STORE"})

    config = load_text(shared("location: 'lonely://a', role: auto, params: {lonely_key: '${ env:K }'}"), {"K": "k"})
    (config.state_dir).mkdir(parents=True)
    manager = manager_of(config, ())

    assert (type(manager).__module__, manager.waiting_for()) == ("querykeep_ini", ())
    assert "params: lacks the field lonely_key: a key" in fault(shared("location: 'lonely://a', role: auto"))
    assert "s3_key: unknown field" in fault(
        shared("location: 'lonely://a', role: auto, params: {lonely_key: k, s3_key: a}")
    )


@pytest.mark.parametrize(
    ("built_in", "reason"),
    [
        ({}, "(no snapshot store is installed)"),
        ({"other": "absent_library:X"}, "(it must begin with one of other:)"),
        ({"s3": "absent_library:X"}, "(the snapshot store s3 cannot be used: absent_library:X cannot be imported"),
    ],
)
def test_snapshots_without_their_store_are_a_fault(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, built_in: dict[str, str], reason: str
) -> None:
    monkeypatch.setitem(SNAPSHOT_STORES.__dict__, "_installed", {})
    monkeypatch.setattr(SNAPSHOT_STORES, "_built_in", built_in)
    monkeypatch.setattr(SNAPSHOT_STORES, "_loaded", {})

    said = fault(shared("location: 's3://user:canary@lake/a', role: auto, params: {s3_auth: iam_role}"))

    assert said.startswith("1: runtime.snapshots.location: must be a storage location used only by these nodes")
    assert reason in said
    assert "canary" not in said


def package_of(where: str) -> str:
    """Return the package, or the module, that is the whole plug-in *where*."""
    return where.partition(":")[0].removesuffix(".params").removesuffix(".config")


PACKAGES = sorted({package_of(where) for table in TABLES for where in table._built_in.values()})
PLUGINS = [package for package in PACKAGES if not package.startswith("runtimeconf.")]


def copy_without(directory: Path, plugins: list[str]) -> None:
    """Copy the tree into *directory*, without *plugins* and their rows."""
    # Compiled files come along: they are as old as their sources.
    skipped = shutil.ignore_patterns(".git", ".venv", ".tmp", ".*_cache", "captures", "pictures", "*.duckdb")
    shutil.copytree(ROOT, directory, ignore=skipped)
    registry = directory / "runtimeconf" / "plugins.py"
    lines = registry.read_text().splitlines(keepends=True)
    for plugin in plugins:
        for path in (directory.joinpath(*plugin.split(".")), directory.joinpath("tests", *plugin.split("."))):
            shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink(missing_ok=True)
        lines = [line for line in lines if re.search(rf'"{re.escape(plugin)}[.:]', line) is None]
    registry.write_text("".join(lines))


def test_every_plugin_is_linted_to_work_without_the_others() -> None:
    (contract,) = (
        contract
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Plug-ins do not import each other"
    )

    assert set(PLUGINS) <= set(contract["modules"])


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_the_tests_of_the_core_pass_without_any_plugin(tmp_path: Path) -> None:
    copy_without(tmp_path / "tree", PLUGINS)
    for name in {plugin.partition(".")[0] for plugin in PLUGINS}:  # what connectors share, too
        shutil.rmtree(tmp_path / "tree" / name, ignore_errors=True)
        shutil.rmtree(tmp_path / "tree" / "tests" / name, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *CORE]

    done = subprocess.run(command, cwd=tmp_path / "tree", capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


#: A sample of the core's tests: the configuration without its largest files, loads of files, and snapshots.
CORE = [
    *("--level=core", "-k", "not (10_000 or how_to or hint)"),
    *(
        f"tests/runtimeconf/test_{name}.py"
        for name in [
            "acceleration_schema",
            "apps",
            "dataset_schema",
            "loader",
            "named_keys",
            "plugins",
            "schema",
            "sections",
        ]
    ),
    *("tests/datasources/sources/test_files.py", "tests/datasources/test_directory.py"),
]
