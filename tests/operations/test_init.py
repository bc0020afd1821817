"""`init`: what it writes is valid, it overwrites nothing, and its key opens the runtime."""

import io
import os
import re
import stat
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from authkeys import key_format
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from tests.runtimeclient.calling import call
from tests.runtimeclient.conftest import ROOT
from tests.runtimeclient.remote import Remote, problem
from tests.system.harness import clean_environ, write_program


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
        'curl -H "X-API-Key: $(cat api_key)" -d \'SELECT count(*) AS n FROM "orders"\' '
        "http://127.0.0.1:8090/v1/sql\n"
    )
    assert done.err.endswith(' set the key in this shell: export RUNTIME_API_KEY="$(cat api_key)"\n')
    config, key = configured(), Path("api_key").read_text().removesuffix("\n")
    assert [(dataset.name, dataset.location) for dataset in config.datasets] == [
        ("orders", str(Path("orders.parquet").absolute()))
    ]
    assert [named.sha256 for named in config.auth.named_keys] == [sha256(key.encode()).digest()]
    assert not key_format.has_typing_error(key)
    assert key not in done.out + done.err + Path("runtime.yaml").read_text()
    assert {stat.S_IMODE(Path(name).stat().st_mode) for name in ("api_key", "runtime.yaml")} == {0o600}
    assert call("apikey", "check", stdin=io.StringIO(key)).out.startswith("first, ")


def test_the_tutorial_shows_what_is_written() -> None:
    Path("orders.csv").touch()
    call("init", "orders.csv")

    written = Path("runtime.yaml").read_text().partition("\n")[2]
    shown = (ROOT / "docs" / "tutorial.md").read_text()

    assert re.sub("sha256: .*", "", written) in re.sub("sha256: .*", "", shown)


def test_the_program_of_a_clone_prints_lines_that_run_where_it_ran(tmp_path: Path) -> None:
    program = write_program(tmp_path / "venv")
    (tmp_path / "empty").mkdir()

    def first_line(shown: str, directory: Path, path: str) -> str:
        environ = clean_environ(PATH=path + os.environ["PATH"])
        done = subprocess.run([shown, "init"], cwd=directory, env=environ, check=True, capture_output=True, text=True)
        return done.stdout.partition("\n")[0]

    assert first_line("venv/bin/querykeep", tmp_path, "") == "venv/bin/querykeep serve"
    assert first_line("querykeep", tmp_path / "empty", f"{program.parent}:") == "querykeep serve"


def test_a_variable_that_names_another_configuration_is_warned_of(tmp_path: Path) -> None:
    assert "Warning" not in call("init", environ={"RUNTIME_CONFIG": f"{tmp_path}/runtime.yaml"}).err
    Path("runtime.yaml").unlink()
    Path("api_key").unlink()

    done = call("init", environ={"RUNTIME_CONFIG": "/etc/other.yaml"})

    assert done.err.startswith("Warning: RUNTIME_CONFIG is set to another file, which serve would read: unset it.\n")


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

    without = call("init")
    done = without if name == "runtime.yaml" else call("init", "orders.csv")

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"Error: {name} already exists and is not overwritten: move it away")
    assert {file.name for file in Path().iterdir()} == {"orders.csv", name}
    assert Path(name).is_symlink() or Path(name).read_text() == "mine"


def test_several_files_make_several_datasets_with_different_names() -> None:
    Path("b").mkdir()
    for file in ("orders.csv", "orders.parquet", "Orders.json", "b/x.csv"):
        Path(file).touch()

    done = call("init", "orders.csv", "orders.parquet", "Orders.json", "b/x.csv")

    assert (done.status, len(done.out.splitlines())) == (0, 2)
    assert 'FROM "orders"' in done.out
    assert [(dataset.name, dataset.from_) for dataset in configured().datasets] == [
        ("orders", "file:orders.csv"),
        ("orders_2", "file:orders.parquet"),
        ("Orders_3", "file:Orders.json"),
        ("x", "file:b/x.csv"),
    ]


def test_a_file_is_added_to_a_configuration() -> None:
    for file in ("orders.csv", "items.csv", "more.json"):
        Path(file).touch()
    call("init", "orders.csv")
    Path("runtime.yaml").chmod(0o640)
    key, before = Path("api_key").read_text(), Path("runtime.yaml").read_text()

    done = call("init", "items.csv", "more.json")

    assert done.status == 0
    assert done.out == (
        "querykeep reload\n"
        'curl -H "X-API-Key: $(cat api_key)" -d \'SELECT count(*) AS n FROM "items"\' '
        "http://127.0.0.1:8090/v1/sql\n"
    )
    assert "Added to runtime.yaml: items (from items.csv), more (from more.json).\n" in done.err
    assert [dataset.name for dataset in configured().datasets] == ["orders", "items", "more"]
    assert Path("runtime.yaml").read_text().startswith(before)
    assert Path("api_key").read_text() == key
    assert stat.S_IMODE(Path("runtime.yaml").stat().st_mode) == 0o640
    assert {file.name for file in Path().iterdir()} == {
        "runtime.yaml",
        "api_key",
        "orders.csv",
        "items.csv",
        "more.json",
    }


MINE = """\
# Mine.
runtime: {http: {bind: "127.0.0.1:8099"}}   # flow

datasets:
- from: file:a.csv   # the first
  name: a

# A view.
views:
  - {name: b, sql: SELECT * FROM a}
"""


def test_the_text_and_the_comments_of_a_configuration_are_kept() -> None:
    for file in ("a.csv", "b.csv"):
        Path(file).touch()
    Path("runtime.yaml").write_text(MINE)
    new = "- from: file:b.csv\n  name: b_2\n  acceleration:\n    enabled: true\n"
    new += "    refresh_check_interval: 10s  # a changed file is loaded again\n"

    done = call("init", "b.csv")

    assert (done.status, done.out) == (0, "querykeep reload\n")  # without api_key, no query to paste
    assert Path("runtime.yaml").read_text() == MINE.replace("  name: a\n", f"  name: a\n{new}")
    Path("api_key").touch()
    Path("c.csv").touch()
    assert " http://127.0.0.1:8099/v1/sql\n" in call("init", "c.csv").out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("datasets: [{from: 'file:a.csv', name: a}]\n", "datasets is not a list in block style, with a dash before"),
        ("{name: x}\n", "its top level is not a mapping in block style"),
        ("name: x\n...\n", "its end is marked with ..."),
        ("datasets: &all\n  - {from: 'file:a.csv', name: a}\n", "datasets is not a list in block style"),
    ],
)
def test_a_configuration_that_cannot_be_extended_is_not_changed(text: str, said: str) -> None:
    for file in ("a.csv", "b.csv"):
        Path(file).touch()
    Path("runtime.yaml").write_text(text)

    done = call("init", "b.csv")

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("- from: file:b.csv\n  name: b\n")
    assert f"Error: runtime.yaml was not changed, because {said}" in done.err
    assert Path("runtime.yaml").read_text() == text
    assert {file.name for file in Path().iterdir()} == {"a.csv", "b.csv", "runtime.yaml"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("a.csv",), "a.csv is already a dataset in runtime.yaml: a.\n"),
        (("link.csv",), "link.csv is already a dataset in runtime.yaml: a.\n"),
        (("b.csv", "./b.csv"), "b.csv is given twice.\n"),
        (("b.csv", "absent.csv"), "absent.csv is not a file.\n"),
        (("${ secrets:x }.csv",), "runtime.yaml was not changed, because the runtime would refuse it: "),
    ],
)
def test_a_file_that_cannot_be_added_changes_nothing(tmp_path: Path, files: tuple[str, ...], said: str) -> None:
    for file in ("a.csv", "b.csv", "${ secrets:x }.csv"):
        Path(file).touch()
    Path("link.csv").symlink_to("a.csv")
    Path("runtime.yaml").write_text(MINE)
    before = set(Path().iterdir())

    done = call("init", *files)

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"Error: {said}")
    assert ".part" not in done.err
    assert Path("runtime.yaml").read_text() == MINE
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize("text", ["mine", "datasets:\n  - nane: a\n", b"\xff"])
def test_nothing_is_added_to_a_configuration_that_is_not_valid(text: str | bytes) -> None:
    Path("b.csv").touch()
    Path("runtime.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())

    done = call("init", "b.csv")

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("Error: runtime.yaml exists, but datasets cannot be added to it: ")


def test_a_configuration_behind_a_link_is_not_replaced() -> None:
    for file in ("a.csv", "b.csv"):
        Path(file).touch()
    Path("real.yaml").write_text(MINE)
    Path("runtime.yaml").symlink_to("real.yaml")

    done = call("init", "b.csv")

    assert (done.status, done.err) == (1, "Error: runtime.yaml was not written: it is a symbolic link.\n")
    assert Path("real.yaml").read_text() == MINE


def test_a_client_without_a_key_is_told_of_the_key_beside_it(remote: Remote) -> None:
    remote.on("GET", "/v1/status", problem(401, "unauthorized", "No."))
    hint = ' The file api_key here may have it: export RUNTIME_API_KEY="$(cat api_key)"\n'

    without = remote.call("status")
    call("init")
    beside, wrong = remote.call("status"), remote.call("status", "--api-key", "wrong")

    assert (without.status, beside.status, wrong.status) == (4, 4, 4)
    assert without.err.endswith(" requires an API key: use --api-key-file, RUNTIME_API_KEY or the command login.\n")
    assert beside.err == without.err.removesuffix("\n") + hint
    assert "api_key" not in wrong.err


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("absent.csv", "Error: absent.csv is not a file.\n"),
        (".", "Error: . is not a file.\n"),
        (
            "notes.txt",
            "Error: The format of notes.txt cannot be determined from its name: it must end in one of .parquet, ",
        ),
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
