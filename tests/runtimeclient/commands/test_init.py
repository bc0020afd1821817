"""`init`: what it writes is valid, it overwrites nothing, and its key opens the runtime."""

import io
import os
import re
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from authkeys import key_format
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from tests.runtimeclient.calling import call
from tests.runtimeclient.conftest import ROOT


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configured() -> RuntimeConfig:
    config = load(Path("runtime.yaml"), {})
    assert config.warnings == ()
    return config


def test_a_configuration_and_a_key_are_written_for_a_file() -> None:
    Path("orders.parquet").touch()

    done = call("init", "orders.parquet")

    assert done.status == 0
    assert done.out == (
        "querykeep serve\n"
        "sed 's/^/X-API-Key: /' api_key | curl -H @- -d 'SELECT count(*) AS n FROM \"orders\"' "
        "http://127.0.0.1:8090/v1/sql\n"
    )
    config, key = configured(), Path("api_key").read_text().removesuffix("\n")
    assert [(dataset.name, dataset.location) for dataset in config.datasets] == [
        ("orders", str(Path("orders.parquet").absolute()))
    ]
    assert [named.sha256 for named in config.auth.named_keys] == [sha256(key.encode()).digest()]
    assert not key_format.has_typing_error(key)
    assert key not in done.out + done.err + Path("runtime.yaml").read_text()
    assert {stat.S_IMODE(Path(name).stat().st_mode) for name in ("api_key", "runtime.yaml")} == {0o600}
    assert call("apikey", "check", stdin=io.StringIO(key)).out.startswith("first, ")


def test_the_readme_shows_what_is_written() -> None:
    Path("orders.parquet").touch()
    call("init", "orders.parquet")

    written = Path("runtime.yaml").read_text().partition("\n")[2]
    shown = (ROOT / "README.md").read_text()

    assert re.sub("sha256: .*", "", written) in re.sub("sha256: .*", "", shown)


def test_a_variable_that_names_another_configuration_is_warned_of() -> None:
    done = call("init", environ={"RUNTIME_CONFIG": "/etc/other.yaml"})

    assert done.err.startswith("Warning: RUNTIME_CONFIG names another file, which serve will read: unset it.\n")


def test_without_a_file_the_configuration_has_no_dataset() -> None:
    done = call("init", "--quiet")

    assert (done.status, done.err) == (0, "")
    assert "SELECT 42" in done.out
    assert configured().datasets == ()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("my orders (2).csv", "my_orders_2"),
        ('it\'s "it".JSONL', "it_s_it"),
        ("2024.csv.gz", "data_2024"),
        ("order.csv", "order"),  # the statement quotes it
        ("runtime.csv", "data_runtime"),
        ("pg_catalog.csv", "data_pg_catalog"),
        ("Ümläut.tsv", "Umlaut"),
        ("Größe Ærø.csv", "Grosse_r"),
        ("订单.csv", "data"),
        ("null: # &x.csv", "null_x"),
        ("[a]*?.csv", "a"),
        ("x" * 100 + ".csv", "x" * 63),
    ],
)
def test_any_file_name_makes_a_valid_name(file: str, name: str) -> None:
    Path(file).touch()

    done = call("init", file)

    assert f'FROM "{name}"' in done.out
    (dataset,) = configured().datasets
    assert dataset.name == name
    assert Path(dataset.from_.removeprefix("file:")).samefile(file)


def test_paths_are_kept_as_they_are_given(tmp_path: Path) -> None:
    Path("a.csv").touch()
    Path("b.csv").symlink_to("a.csv")

    assert call("init", f"/{tmp_path}/b.csv").status == 0  # two slashes begin a URL

    assert configured().datasets[0].location == str(tmp_path / "b.csv")


@pytest.mark.parametrize("name", ["runtime.yaml", "api_key"])
@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_overwritten(name: str, is_link: bool) -> None:
    Path("orders.csv").touch()
    if is_link:
        Path(name).symlink_to("nowhere")
    else:
        Path(name).write_text("mine")

    done = call("init", "orders.csv")

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"Error: {name} exists here, and nothing is overwritten: move it away")
    assert {file.name for file in Path().iterdir()} == {"orders.csv", name}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("absent.csv", "Error: absent.csv is not a file.\n"),
        (".", "Error: . is not a file.\n"),
        ("notes.txt", "Error: The format of notes.txt cannot be told from its name: it must end in one of .parquet, "),
        ("${ secrets:x }.csv", "Error: Nothing was written, because the runtime would refuse it: "),
        (os.fsdecode(b"\xe9.csv"), "Error: Nothing was written, because the runtime would refuse it: "),
    ],
)
def test_a_file_that_cannot_be_served_leaves_nothing_behind(file: str, message: str) -> None:
    if file[0] not in ".a":
        Path(file).touch()
    before = list(Path().iterdir())

    done = call("init", file)

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(message)
    assert list(Path().iterdir()) == before


def test_a_directory_that_cannot_be_written_is_an_output_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc/self/fd")  # not even root can create a file there

    done = call("init")

    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("Error: api_key cannot be written: ")
