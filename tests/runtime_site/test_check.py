"""Problems that `manage.py check` finds beyond the YAML. It changes nothing."""

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

import authkeys.state
import runtimeconf.state
from authkeys.salt import SALT_NAME
from tests.system.harness import K1

KEYS = f"  auth: {{api-key: {{enabled: true, keys: [{K1}]}}}}\n"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reset the variable and the configuration, which the command sets."""
    monkeypatch.setenv("RUNTIME_CONFIG", "")
    authkeys.state.set_access(None)
    yield
    runtimeconf.state.set_config(None)


def checked(directory: Path, text: str, fail_level: str = "ERROR") -> list[str]:
    """Return the messages of `check` for a YAML of this *text*."""
    file = directory / "runtime.yaml"
    file.write_text(text)
    file.chmod(0o600)
    said = io.StringIO()
    try:
        call_command("check", config=file, fail_level=fail_level, stderr=said)
    except SystemCheckError as error:
        said.write(str(error))
    return [line.removeprefix("?: ") for line in said.getvalue().splitlines() if line.startswith("?: ")]


@pytest.mark.parametrize(("is_on", "is_fault"), [("true", True), ("false", False)])
def test_the_metrics_need_an_address_of_this_machine(tmp_path: Path, is_on: str, is_fault: bool) -> None:
    messages = checked(tmp_path, f"runtime:\n  metrics: {{enabled: {is_on}, bind: '192.0.2.1:80'}}\n{KEYS}", "ERROR")

    assert any("Cannot listen on 192.0.2.1:80: " in message for message in messages) is is_fault


@pytest.mark.parametrize(
    ("runtime", "found"),
    [
        pytest.param(KEYS, "", id="nothing"),
        pytest.param("  state_dir: file/state\n", "(runtime_site.E003) The state directory", id="state directory"),
        pytest.param(
            "  http: {bind: '192.0.2.1:80', allowed_hosts: [a]}\n" + KEYS,
            "(runtime_site.E003) Cannot listen on 192.0.2.1:80: ",
            id="address of HTTP",
        ),
        pytest.param(
            "  flight: {bind: '192.0.2.1:80'}\n" + KEYS,
            "(runtime_site.E003) Cannot listen on 192.0.2.1:80: ",
            id="address of Flight SQL",
        ),
        pytest.param("  flight: {enabled: false, bind: '192.0.2.1:80'}\n" + KEYS, "", id="address that is not used"),
        pytest.param(
            "  query: {workers: 64, memory_limit: 16TiB}\n",
            "(runtime_site.W002) runtime.query: workers (64) times memory_limit is 1,073,741,824 MiB, but the ",
            id="memory",
        ),
        pytest.param("  query: {workers: 1, memory_limit: 16MiB}\n", "", id="enough memory"),
    ],
)
def test_problems_that_would_stop_a_start_or_a_statement(tmp_path: Path, runtime: str, found: str) -> None:
    (tmp_path / "file").touch()
    if "query" not in runtime:
        runtime += "  query: {workers: 1, memory_limit: 16MiB}\n"

    messages = checked(tmp_path, f"runtime:\n{runtime}", "WARNING")

    assert len(messages) == (1 if found else 0), messages
    assert all(message.startswith(found) for message in messages)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runtime.yaml"]


def test_a_damaged_salt(tmp_path: Path) -> None:
    (tmp_path / ".runtime").mkdir(mode=0o700)
    (tmp_path / ".runtime" / SALT_NAME).write_bytes(b"short")

    (message,) = checked(tmp_path, f"runtime:\n{KEYS}")

    assert message.startswith(f"(runtime_site.E003) The file {SALT_NAME} in the state directory is damaged")


def test_a_view_on_an_unknown_column_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")

    error, warning = checked(
        tmp_path,
        "runtime:\n  query: {workers: 1}\n"
        "datasets:\n  - {from: 'file:orders.csv', name: orders}\n  - {from: 'file:absent.csv', name: absent}\n"
        "views:\n  - {name: v, sql: SELECT nmae FROM orders}\n",
    )

    assert error.startswith(f'(runtime_site.E002) {tmp_path}/runtime.yaml:7: views[0].sql: Referenced column "nmae"')
    assert warning.startswith(f"(runtime_site.W001) {tmp_path}/runtime.yaml:5: datasets[1].from: 'absent.csv' does not")


@pytest.mark.parametrize("fail_level", ["ERROR", "CRITICAL"])
def test_messages_are_in_the_order_of_the_file(tmp_path: Path, fail_level: str) -> None:
    wrong = "".join(f"  - {{from: 'file:orders.csv', name: {number}}}\n" for number in range(30))
    short = "".join(f"        - short-{number:02}\n" for number in range(12))
    keys = f"runtime:\n  auth:\n    api-key:\n      enabled: true\n      keys:\n{short}"

    errors = checked(tmp_path, f"datasets:\n{wrong}", fail_level)
    warnings = checked(tmp_path, keys)

    assert [line.split(":")[1] for line in errors] == [*map(str, range(2, 21)), " and 11 more errors"]
    assert [line.split(":")[1] for line in warnings] == [str(number) for number in range(6, 18)]


NO_DIRECTORY = (
    "(runtime_site.E003) No temporary directory is writable, not even /proc: set TMPDIR to a writable directory."
)


@pytest.mark.parametrize(("state_dir", "is_found"), [("state", True), ("/proc/state", False)])
def test_without_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_dir: str, *, is_found: bool
) -> None:
    def gettempdir() -> str:  # as where no directory of the system can be written
        if tempfile.tempdir is None:
            raise FileNotFoundError
        return tempfile.tempdir

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    monkeypatch.setenv("TMPDIR", "")
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")

    messages = checked(
        tmp_path,
        f"runtime:\n  state_dir: {state_dir}\n  query: {{workers: 1}}\n"
        "datasets:\n  - {from: 'file:orders.csv', name: orders}\n"
        "views:\n  - {name: v, sql: SELECT name FROM orders}\n",
    )

    assert (NO_DIRECTORY in messages) is not is_found
    assert messages == [] or not is_found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orders.csv", "runtime.yaml"]


def test_a_file_that_looks_as_if_a_parameter_is_missing(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id;amount\n1;1,5\n2;2,5\n")
    (tmp_path / "plain.csv").write_text("1,2\n3,4\n")

    comma, header = checked(
        tmp_path,
        "runtime:\n  query: {workers: 1}\n"
        "datasets:\n  - {from: 'file:orders.csv', name: orders}\n  - {from: 'file:plain.csv', name: plain}\n",
    )

    place = f"(runtime_site.W001) {tmp_path}/runtime.yaml"
    assert comma.startswith(f"{place}:4: datasets[0].from: The column 'amount' of 'orders.csv' looks like numbers with")
    assert header.startswith(
        f"{place}:5: datasets[1].from: The first row of 'plain.csv' is used as the header, but looks"
    )


def test_refused_sql_is_reported_once(tmp_path: Path) -> None:
    (message,) = checked(tmp_path, "runtime:\n  query: {workers: 1}\nviews:\n  - {name: v, sql: DROP TABLE x}\n")

    assert message.startswith("(runtime_site.E001)")


SPICEPOD = """kind: Spicepod
models: []
runtime: {query: {workers: 1, memory_limit: 16MiB}}
datasets:
"""


def test_a_spicepod_gets_a_table_of_what_becomes_of_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "orders.csv").write_text("id\n1\n")
    items = "".join(
        f"  - {{from: 'file:orders.csv', name: d{number}, acceleration: {{mode: file}}}}\n" for number in range(7)
    )

    (fault,) = checked(tmp_path, SPICEPOD + items)

    assert "models: is not available here" in fault
    assert capsys.readouterr().out.splitlines() == [
        "Unsupported:",
        "  models (line 2)",
        "      is not available here: Remove it and call the model from your application: models are not",
        "      supported.",
        "Supported, different meaning:",
        "  datasets[].acceleration.mode (lines 5, 6, 7, 8, 9, ...)",
        "      Every dataset is a DuckDB snapshot on disk, in runtime.state_dir.",
        "Supported:",
        "  datasets[].from, datasets[].name, kind, runtime.query.memory_limit, runtime.query.workers",
    ]
