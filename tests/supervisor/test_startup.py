"""The runtime in one process: it starts and stops, and does not keep the keys."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import authkeys.state
import datasources.state
import queryengine.state
import runtimeconf.state
from datasources.errors import DatasetsUnavailableError
from queryengine.errors import EngineUnavailableError
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from runtimeconf.model import AuthConfig
from supervisor import startup
from system.lock import StateLock
from tests.system.harness import run_program

KEY = "key-4Qw8Zr2Vb6Nm1Xc5Lp9Kj3Hg7Fd0Sa"


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Path]:
    """Configure this process with a runtime YAML for one test."""
    file = tmp_path / "runtime.yaml"
    keys = "".join(f"        - {KEY}{number}\n" for number in range(6))
    file.write_text(f"runtime:\n  auth:\n    api-key:\n      enabled: true\n      keys:\n{keys}")
    file.chmod(0o600)
    authkeys.state.set_access(None)
    runtimeconf.state.set_config(load(file, {}))
    yield tmp_path
    runtimeconf.state.set_config(None)
    authkeys.state.set_access(None)


def test_the_configuration_is_checked_once_and_the_keys_are_described(configured: Path) -> None:
    config = startup.checked_config()

    assert startup.checked_config() is config is runtimeconf.state.get_config()
    # tests/authkeys/test_apps.py shows that they are dropped from memory.
    assert config.auth == AuthConfig(enabled=True)
    key_set = authkeys.state.get_access().key_set
    assert key_set is not None
    assert key_set.find(KEY + "3") is not None
    assert startup.describe_keys().startswith("6 API keys loaded (")
    assert startup.describe_keys().endswith(", ...)")
    assert KEY not in startup.describe_keys()


@pytest.mark.plugin
@pytest.mark.parametrize(
    ("refresh_sql", "view", "faults"),
    [
        ("SELECT make_array(a) AS a FROM t", "SELECT array(1) AS a FROM t", []),
        ("SELECT array(a) AS a FROM t", "SELECT make_array(1) AS a FROM t", ["datasets[0]", "views[0].sql"]),
    ],
)
def test_on_a_cluster_the_sql_of_datafusion_is_for_loads_alone(
    tmp_path: Path, refresh_sql: str, view: str, faults: list[str]
) -> None:
    file = tmp_path / "runtime.yaml"
    file.write_text(
        "runtime:\n  engine: {from: 'sc://localhost'}\n"
        "  snapshots: {location: 's3://lake/a', role: auto, params: {s3_auth: iam_role}}\n"
        "datasets:\n  - {from: 'file:a.json', name: t, acceleration: "
        f"{{enabled: true, refresh_sql: '{refresh_sql}'}}}}\nviews: [{{name: v, sql: '{view}'}}]\n"
    )
    if not faults:
        (dataset,) = startup.with_checked_statements(load(file, {})).datasets
        assert dataset.acceleration.refresh_sql == "SELECT list_value(a) AS a FROM t"
        return
    with pytest.raises(ConfigError) as caught:
        startup.with_checked_statements(load(file, {}))
    assert [fault.yaml_path.removesuffix(".acceleration.refresh_sql") for fault in caught.value.faults] == faults


def test_the_rules_of_keys_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "runtime.yaml"
    rules = {
        "row_filter": [
            "true) OR (true",
            "random() > 0",
            "id = ?",
            "read_csv('x') IS NULL",
            "a; b",
            "id IN (FROM nowhere)",
        ],
        "masks": ["(SELECT max(id) FROM u)", "nope("],
    }
    items = [
        f"- {{name: t, {field}: {json.dumps(sql) if field == 'row_filter' else json.dumps({'id': sql})}}}"
        for field, texts in rules.items()
        for sql in texts
    ]
    keys = "".join(
        f"        - name: k{number}\n          key: {KEY}{number}\n          datasets:\n            {item}\n"
        for number, item in enumerate(items)
    )
    head = "runtime:\n  auth:\n    api-key:\n      enabled: true\n      named_keys:\n"
    file.write_text(f"{head}{keys}datasets: [{{from: 'file:a.csv', name: t}}, {{from: 'file:a.csv', name: u}}]\n")

    with pytest.raises(ConfigError) as caught:
        startup.with_checked_statements(load(file, {}))

    assert [fault.line for fault in caught.value.faults] == [9 + 4 * number for number in range(len(items))]
    assert all(fault.message.startswith(("row_filter: ", "masks.id: ")) for fault in caught.value.faults)


def test_faulty_statements_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "runtime.yaml"
    views = "".join(f"  - {{name: v{number}, sql: DROP TABLE x}}\n" for number in range(3))
    datasets = "  - {from: 'file:a.csv', name: t, acceleration: {enabled: true, refresh_sql: DROP TABLE x}}\n"
    file.write_text(f"views:\n{views}datasets:\n{datasets}")

    with pytest.raises(ConfigError) as caught:
        startup.with_checked_statements(load(file, {}))

    assert [fault.line for fault in caught.value.faults] == [2, 3, 4, 6]


def test_a_runtime_starts_and_stops(configured: Path) -> None:
    runtime = startup.Runtime(startup.checked_config())

    assert queryengine.state.get_engine().is_alive()
    assert datasources.state.get_datasets().is_loaded()
    queryengine.state.cancel_statements()
    runtime.stop()
    runtime.stop()
    with pytest.raises(EngineUnavailableError):
        queryengine.state.get_engine()
    with pytest.raises(DatasetsUnavailableError):
        datasources.state.get_datasets()


@pytest.mark.parametrize(("hard", "warnings"), [(62, 0), (61, 1)])
def test_a_start_warns_of_too_few_descriptors_for_the_datasets(tmp_path: Path, hard: int, warnings: int) -> None:
    file = tmp_path / "runtime.yaml"
    datasets = "".join(f"  - {{from: 'file:a.csv', name: d{number}}}\n" for number in range(10))
    file.write_text(f"datasets:\n{datasets}")
    program = (
        "import logging, resource, sys\n"
        "import runtimeconf.state\n"
        "from supervisor import startup\n"
        "config = runtimeconf.state.get_config()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)\n"
        "logging.basicConfig(format='%(levelname)s %(message)s')\n"
        "startup.log_warnings(config)\n"
    )

    done = run_program("-c", program, str(hard), RUNTIME_CONFIG=str(file))

    said = (
        "WARNING 10 datasets take up to 62 file descriptors in a process, and the system allows 61 (ulimit -Hn): new "
        "data may not be readable\n"
    )
    assert (done.returncode, done.stderr) == (0, said * warnings)


def test_under_gevent_the_engine_refuses_to_start(configured: Path) -> None:
    """The datasets, already started, are then stopped, and the lock is released."""
    program = "from gevent import monkey\nmonkey.patch_all()\nfrom supervisor import startup\nstartup.start_or_exit()\n"

    done = run_program("-c", program, RUNTIME_CONFIG=str(configured / "runtime.yaml"))

    assert done.returncode != 0
    assert "gevent has replaced" in done.stderr
    lock = StateLock(configured / ".runtime")
    assert lock.acquire()
    lock.release()
