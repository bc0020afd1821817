"""`manage.py runrefresh --once`, as a program that somebody's cron starts."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryengine.manifest import read_manifest
from tests.system.harness import (
    PATIENCE_S,
    PYTHON,
    REPOSITORY,
    clean_environ,
    example_config,
    free_port,
    wait_for,
    write_orders,
)


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A folder with a YAML of two datasets, of which one has no source yet."""
    write_orders(tmp_path / "orders.parquet")
    names = ("orders", "late")
    datasets = [{"from": f"file:{name}.parquet", "name": name, "acceleration": {"enabled": True}} for name in names]
    config = example_config(free_port(), datasets=datasets)
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "runtime.yaml").chmod(0o600)
    return tmp_path


def start(directory: Path, *names: str) -> subprocess.Popen[str]:
    arguments = [PYTHON, "manage.py", "runrefresh", "--config", str(directory / "runtime.yaml"), "--once", *names]
    return subprocess.Popen(
        arguments, cwd=REPOSITORY, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def once(directory: Path, *names: str) -> tuple[int, list[str], str]:
    """Run it, and return its exit code, the lines it printed, and what it said on standard error."""
    with start(directory, *names) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out.splitlines(), err


def history(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each dataset as the file has them, newest first."""
    written, _, _ = (directory / ".runtime" / "refreshes.json").read_text().rpartition("\n")
    first, *lines = written.splitlines()  # The last line may have been half there.
    found: dict[str, list[dict[str, Any]]] = json.loads(first)["datasets"]
    for change in map(json.loads, lines):
        others = [run for run in found.get(change["dataset"], []) if run["id"] != change["run"]["id"]]
        found[change["dataset"]] = [change["run"], *others]
    return found


@pytest.mark.exhaustive
def test_it_loads_what_has_changed_or_what_is_named_and_says_what_came_of_it(runtime: Path) -> None:
    code, (loaded,), err = once(runtime)

    assert (code, loaded.startswith("orders: loaded in "), loaded.endswith(" s, 1000 rows")) == (1, True, True)
    assert "\nlate: failed: " in err
    assert "late.parquet" in err
    assert "Traceback" not in err

    write_orders(runtime / "late.parquet", rows=7)
    code, (first, second), _ = once(runtime)

    assert (code, first) == (0, "orders: unchanged, 1000 rows")
    assert second.endswith(" s, 7 rows")

    code, (named,), _ = once(runtime, "ORDERS")

    assert (code, named.startswith("orders: loaded in ")) == (0, True)
    assert {name: len(runs) for name, runs in history(runtime).items()} == {"orders": 3, "late": 2}

    code, out, err = once(runtime, "orders", "nope")

    assert (code, out) == (2, [])
    assert err.splitlines()[-1] == "Dataset nope not found."
    assert len(history(runtime)["orders"]) == 3


@pytest.mark.exhaustive
def test_a_signal_breaks_it_off_and_the_old_data_stays(runtime: Path) -> None:
    once(runtime, "orders")
    before = read_manifest(runtime / ".runtime")
    config = yaml.safe_load((runtime / "runtime.yaml").read_text())
    endless = "SELECT count(*) AS n FROM late, range(100000000000) r"
    config["datasets"][1]["acceleration"]["refresh_sql"] = endless
    (runtime / "runtime.yaml").write_text(yaml.safe_dump(config))
    write_orders(runtime / "late.parquet")

    with start(runtime, "late") as process:
        wait_for(lambda: [run for run in history(runtime)["late"] if run["status"] == "running"], "the load")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert "Traceback" not in err
    assert history(runtime)["late"][0]["error"] == "interrupted"
    assert read_manifest(runtime / ".runtime") == before
