import gzip
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasources.deadline import Deadline
from datasources.errors import SnapshotError, SourceError
from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from tests.datasources import support
from tests.datasources.support import builder, deadline, declare, new_load, open_below, rows

ONE_ROW = "a,b\n1,x\n"


def put(directory: Path, name: str, content: str | bytes = ONE_ROW) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_parquet(directory: Path, name: str, **columns: Sequence[object]) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def load(directory: Path, text: str, file_format: str | None = None) -> list[tuple[object, ...]]:
    dataset = declare(directory, text, file_format=file_format)
    return rows(directory, builder(directory).build(Order(dataset), deadline()))


def refusal(directory: Path, text: str, file_format: str | None = None) -> str:
    """As `support.refusal`; neither is a directory left."""
    sentence = support.refusal(directory, declare(directory, text, file_format=file_format), 20)
    assert {path.name for path in (directory / "state").rglob("*")} <= {"snapshots", "refresh_tmp"}
    return sentence


# --- which files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain.csv", "q'uo\"te $x.csv", "br[1].csv", "st*r.csv", "ü.CSV", "a b.csv.gz"])
def test_a_file_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, gzip.compress(ONE_ROW.encode()) if name.endswith(".gz") else ONE_ROW)
    put(tmp_path, "stxr.csv", "a,b\n2,other\n")

    assert load(tmp_path, name) == [(1, "x")]


def test_paths_with_dots_and_links_to_files_and_directories_are_followed(tmp_path: Path) -> None:
    put(tmp_path, "data/a.csv")
    (tmp_path / "yaml").mkdir()
    (tmp_path / "yaml/file.csv").symlink_to("../data/a.csv")
    (tmp_path / "yaml/directory").symlink_to("../data")

    for text in ("../data/./a.csv", "../data/*.csv", "file.csv", "directory"):
        assert load(tmp_path / "yaml", text) == [(1, "x")]


def test_a_directory_reads_the_files_below_it_except_markers(tmp_path: Path) -> None:
    put_parquet(tmp_path, "data/1.parquet", a=[1])
    put_parquet(tmp_path, "data/year=2024/2.parquet", a=[2])
    put(tmp_path, "data/_SUCCESS", b"")
    put(tmp_path, "data/.hidden", b"")
    put(tmp_path, "data/_temporary/3.csv", b"")

    assert sorted(load(tmp_path, "data")) == [(1,), (2,)]
    assert sorted(load(tmp_path, "data/")) == [(1,), (2,)]


def test_a_glob_gives_the_files_that_match_it(tmp_path: Path) -> None:
    put(tmp_path, "data/2023/a.csv", "n\n1\n")
    put(tmp_path, "data/2024/a.csv", "n\n2\n")
    put(tmp_path, "data/2024/b.txt", "n\n3\n")
    (tmp_path / "data/2024/c.csv").mkdir()

    assert sorted(load(tmp_path, "data/*/*.csv")) == [(1,), (2,)]
    assert sorted(load(tmp_path, "data/**/*.csv")) == [(1,), (2,)]
    assert load(tmp_path, "data/20?4/[a]*.csv") == [(2,)]


def test_a_glob_below_a_directory_with_brackets_in_its_name_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "my [data]"
    put(directory, "a.csv")
    # The configuration escapes the part of a glob that is not the user's pattern.
    dataset = declare(directory, "*.csv")
    escaped = declare(tmp_path / "my [[]data]", "*.csv")

    snapshot = builder(tmp_path).build(Order(escaped), deadline())

    assert dataset.location != escaped.location
    assert rows(tmp_path, snapshot) == [(1, "x")]


def test_a_file_without_an_extension_is_read_as_the_format_it_is_declared_to_have(tmp_path: Path) -> None:
    put(tmp_path, "table")
    put(tmp_path, "parts/1.dat")
    put(tmp_path, "parts/2.dat", "a,b\n2,y\n")
    put(tmp_path, "lines.json.txt", '{"a":1}\n')

    assert load(tmp_path, "table", "csv") == [(1, "x")]
    assert load(tmp_path, "parts", "csv") == [(1, "x"), (2, "y")]
    assert load(tmp_path, "lines.json.txt", "ndjson") == [(1,)]


# --- what is refused at once ------------------------------------------------------------------------------------------


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


SUFFIXES = ["csv.gz", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("parquet", "csv", "json"))]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(Path.mkdir, "is a directory", id="R08 directory"),
        pytest.param(os.mkfifo, "is a named pipe", id="R08 FIFO"),
        pytest.param(make_socket, "is a socket", id="R08 socket"),
        pytest.param(link_to("/dev/zero"), "is a device", id="R08 device"),
        pytest.param(make_loop, "Too many levels of symbolic links", id="R08 symlink loop"),
        pytest.param(link_to("absent"), "does not exist", id="R08 dangling link"),
        pytest.param(lambda _: None, "does not exist", id="R08 absent"),
        pytest.param(Path.touch, "is empty (0 bytes)", id="R06 0 bytes"),
        pytest.param(link_to("/proc/self/environ"), "is empty (0 bytes)", id="file of the system"),
    ],
)
def test_anything_but_a_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], said: str, suffix: str
) -> None:
    make(tmp_path / f"t.{suffix}")
    began = time.monotonic()

    sentence = refusal(tmp_path, f"t.{suffix}")

    assert said in sentence
    assert f"t.{suffix}" in sentence
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "make", [os.mkfifo, make_socket, link_to("/dev/zero"), make_loop, link_to("absent"), Path.touch]
)
@pytest.mark.parametrize("text", ["data", "data/*.csv"])
def test_r08_one_irregular_file_among_others_is_refused_and_named(
    tmp_path: Path, make: Callable[[Path], None], text: str
) -> None:
    put(tmp_path, "data/a.csv")
    make(tmp_path / "data/b.csv")

    assert "'data/b.csv'" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("empty", "'empty' contains no files", id="R08 directory emptied"),
        pytest.param("empty/*.csv", "'empty/*.csv' matches no file", id="glob without a match"),
        pytest.param("file.csv/x.csv", "Not a directory", id="below a file"),
        pytest.param("a\0b.csv", "is not a path", id="NUL"),
        pytest.param("x" * 300 + ".csv", "File name too long", id="name too long"),
        pytest.param("unknown.dat", "set params.file_format", id="unknown extension"),
        pytest.param("unknown", "set params.file_format", id="no extension"),
        pytest.param("twice.parquet.gz", "compressed twice", id="gzipped Parquet"),
    ],
)
def test_a_path_without_files_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "empty/_temporary").mkdir(parents=True)
    for name in ("file.csv", "unknown.dat", "unknown", "twice.parquet.gz"):
        put(tmp_path, name)

    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize("file_format", [None, "csv"])
@pytest.mark.parametrize("other", ["b.json", "b.parquet", "b.csv.gz"])
def test_mixed_kinds_are_refused(tmp_path: Path, other: str, file_format: str | None) -> None:
    put(tmp_path, "data/a.csv")
    put(tmp_path, f"data/{other}", b"x")

    sentence = refusal(tmp_path, "data", file_format)

    assert "mixes formats" in sentence
    assert other in sentence


def test_r08_a_revoked_permission_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "data/a.csv")
    put(tmp_path, "tree/sub/b.csv")
    texts = ("data/a.csv", "data", "data/*.csv", "tree", "tree/")
    script = f"""
import os, threading
import datasources.sources.files, runtimeconf.files
from pathlib import Path
from datasources.sources.registry import source_of
from datasources.sources.source import Load
from tests.datasources.support import deadline, declare
os.chmod("{tmp_path}/data/a.csv", 0)
for name in ("data", "tree/sub"):
    os.chmod(f"{tmp_path}/{{name}}", 0)
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
load = Load(deadline=deadline(), scratch=Path("{tmp_path}"), scratch_bytes=0)
for text in {texts}:
    try:
        with source_of(declare(Path("{tmp_path}"), text)).open(load):
            print("opened")
    except Exception as exc:
        print(type(exc).__name__, exc)
"""
    for directory in (tmp_path, *tmp_path.parents[:-2]):
        directory.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for name in ("data", "tree/sub"):
        (tmp_path / name).chmod(0o755)

    assert done.stdout.splitlines() == [f"SourceError '{text}' cannot be read: Permission denied." for text in texts]


def test_too_many_files_are_refused_with_a_remedy(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = max(int(path.name) for path in Path("/proc/self/fd").iterdir())  # other tests leave some in this process
    limit = max(230, taken + 60)
    allowed = (limit - 128) // 2
    for number in range(allowed + 9):
        put(tmp_path, f"data/{number}.csv")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        sentence = refusal(tmp_path, "data")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert f"more than {allowed} files" in sentence
    assert "ulimit -n" in sentence


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    put(tmp_path, "data/a.csv")
    put(tmp_path, "data/b.csv", "")

    refusal(tmp_path, "data")
    load(tmp_path, "data/a.csv")

    assert open_below(tmp_path) == []


def test_nothing_is_opened_after_the_deadline(tmp_path: Path) -> None:
    put(tmp_path, "data/a.csv")

    for text in ("data", "data/*.csv", "data/a.csv"):
        with (
            pytest.raises(SnapshotError, match="refresh_timeout"),
            source_of(declare(tmp_path, text)).open(new_load(tmp_path, 0)),
        ):
            pass


# --- one version of what is read --------------------------------------------------------------------------------------


class ChangedMeanwhile(Deadline):
    """Changes something after the files were bound and before their rows are read."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__(60.0, threading.Event())
        self._change = change
        self._guards = 0

    @contextmanager
    def guard(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        self._guards += 1
        if self._guards == 2:
            self._change()
        with super().guard(connection):
            yield


@pytest.mark.parametrize(
    "refresh_sql", [None, pytest.param("SELECT * FROM d WHERE a = 1", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    "name",
    ["a.csv", *(pytest.param(f"a.{kind}", marks=pytest.mark.exhaustive) for kind in ("csv.gz", "json", "parquet"))],
)
@pytest.mark.parametrize("change", ["renamed over", "deleted"])
def test_r09_a_load_reads_the_file_that_it_began_with(
    tmp_path: Path, name: str, change: str, refresh_sql: str | None
) -> None:
    for file, value in ((name, 1), (f"new-{name}", 2)):
        duckdb.sql(f"COPY (SELECT {value} AS a, 'x' AS b) TO '{tmp_path / file}'")
    new, path = tmp_path / f"new-{name}", tmp_path / name
    meanwhile = ChangedMeanwhile(path.unlink if change == "deleted" else lambda: new.replace(path))

    snapshot = builder(tmp_path).build(Order(declare(tmp_path, name), refresh_sql), meanwhile)

    assert rows(tmp_path, snapshot) == [(1, "x")]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet"])
def test_r09_a_file_moved_elsewhere_while_it_is_read_is_said_to_be(tmp_path: Path, name: str) -> None:
    duckdb.sql(f"COPY (SELECT 1 AS a, 'x' AS b) TO '{tmp_path / name}'")
    meanwhile = ChangedMeanwhile(lambda: (tmp_path / name).rename(tmp_path / "elsewhere"))

    said = f"^'{re.escape(name)}': it was moved while it was being read; the next refresh will read it again\\.$"
    with pytest.raises(SourceError, match=said):
        builder(tmp_path).build(Order(declare(tmp_path, name)), meanwhile)


@pytest.mark.parametrize(
    ("text", "change", "said"),
    [
        *(
            pytest.param("data/b.csv", lambda data, new=new: put(data, "b.csv", new), "'data/b.csv' changed", id=new)
            for new in ("a,b\n2,y\n", ONE_ROW * 2)
        ),
        *(
            pytest.param(text, change, f"The files of '{text}' changed", id=f"{text} {name}")
            for text in ("data", "data/*.csv")
            for name, change in (
                ("added", lambda data: put(data, "c.csv")),
                ("removed", lambda data: (data / "b.csv").unlink()),
                ("renamed over", lambda data: put(data.parent, "new").replace(data / "b.csv")),
            )
        ),
    ],
)
def test_r09_files_that_change_while_they_are_read_are_refused(
    tmp_path: Path, text: str, change: Callable[[Path], object], said: str
) -> None:
    put(tmp_path, "data/a.csv")
    put(tmp_path, "data/b.csv")
    with source_of(declare(tmp_path, text)).open(new_load(tmp_path)) as scan:
        change(tmp_path / "data")

        with pytest.raises(
            SourceError, match=f"^{re.escape(said)} while .* the next refresh will (read it again|retry)"
        ):
            scan.confirm()
