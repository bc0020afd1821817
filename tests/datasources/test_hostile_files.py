"""
Check R07: a file that lies, or grows without end when it is read, costs the load of it and nothing else.

Each is loaded in the process that loads under `serve`. What comes of it is one sentence; the process takes no more
memory than a load may, and the next load finds everything as it was.
"""

import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from datasources.errors import DatasetError, SnapshotError, SourceError
from datasources.loading.columns import MAX_COLUMNS, MAX_SCHEMA_LENGTH
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.loader_process import SPARE_BYTES
from datasources.snapshots.snapshot import Order
from queryengine.manifest import snapshot_path
from runtimeconf.model import GIB
from tests.datasources.hostile import (
    BYTE_ARRAY,
    DELTA_BINARY_PACKED,
    GZIP,
    INT64,
    PLAIN,
    Parquet,
    gzip_bomb,
    plain,
    sparse,
    varint,
)
from tests.datasources.support import MIB, builder, deadline, declare, files_below, loaded, rows
from tests.datasources.test_loader import child_of, peak_bytes, peaks_of

MEMORY_LIMIT_MIB = 64

TOO_LARGE = (
    "The load needs more memory than query.memory_limit, or more temporary space than query.temp_directory_limit."
)

GOOD = Parquet()
GOOD_ROWS = [(b"x",), (b"yy",), (b"x",)]


class Process:
    """The process that loads, in a directory for all tests, and what it may take of memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        made = builder(directory, MEMORY_LIMIT_MIB)
        self.loader = LoaderProcess(replace(made, temp_directory_limit_bytes=MEMORY_LIMIT_MIB * MIB))
        assert self.rows_of("good.parquet", GOOD.content()) == GOOD_ROWS
        self._base_bytes = peak_bytes(child_of(self.loader))

    def rows_of(self, name: str, content: bytes) -> list[tuple[object, ...]]:
        """Load a file that the engine takes, and return its rows."""
        (self.directory / name).write_bytes(content)
        snapshot = loaded(self.loader, declare(self.directory, name), None, deadline())
        found = rows(self.directory, snapshot)
        snapshot_path(self.directory / "state", snapshot).unlink()
        return found

    def refusal(self, name: str, limit_s: float = 60.0) -> DatasetError:
        """Load a file that is refused, and return the error."""
        self.loader.start()
        with peaks_of(child_of(self.loader)) as peaks, pytest.raises(DatasetError) as caught:
            self.loader.build(Order(declare(self.directory, name)), deadline(limit_s))
        assert max(peaks, default=0) < self._base_bytes + 1.25 * MEMORY_LIMIT_MIB * MIB + SPARE_BYTES
        assert files_below(self.directory) == []
        assert re.fullmatch(r"[^\n]{1,500}\.", str(caught.value))
        assert str(self.directory) not in str(caught.value)
        return caught.value


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    made = Process(tmp_path_factory.mktemp("hostile"))
    yield made
    made.loader.close()


# --- Parquet that lies ------------------------------------------------------------------------------------------------


def test_the_generator_writes_good_files_where_nothing_is_changed(process: Process) -> None:
    assert process.rows_of("a.parquet", replace(GOOD, codec=GZIP).content()) == GOOD_ROWS
    texts = replace(GOOD, encoding=PLAIN, body=plain([b"x", b"yy", b"x"]))
    assert process.rows_of("a.parquet", texts.content()) == GOOD_ROWS


_HUGE32, _HUGE64 = 2**31 - 1, 2**62

DAMAGED = {
    "rows huge": replace(GOOD, num_rows=_HUGE64, page_values=3, chunk_values=3),
    "rows below 0": replace(GOOD, num_rows=-1, page_values=3, chunk_values=3),
    "rows of the group huge": replace(GOOD, group_rows=_HUGE64),
    "rows of the group below 0": replace(GOOD, group_rows=-5),
    "all counts of rows huge": replace(GOOD, num_rows=2**40, page_values=3),
    "values of the chunk huge": replace(GOOD, chunk_values=_HUGE64),
    "values of the chunk below 0": replace(GOOD, chunk_values=-_HUGE64),
    "values of the page huge": replace(GOOD, num_rows=_HUGE32),
    "dictionary empty": replace(GOOD, dictionary_values=0),
    "dictionary below 0": replace(GOOD, dictionary_values=-1),
    "index beyond the dictionary": replace(GOOD, body=b"\x02\x03\xff\xff"),
    "index of 32 bits beyond the dictionary": replace(GOOD, body=b"\x20\x06\xff\xff\xff\x7f"),
    "index wider than 32 bits": replace(GOOD, body=b"\x21\x03" + b"\xff" * 10),
    "index of 255 bits": replace(GOOD, body=b"\xff\x03\xff\xff"),
    "indices missing": replace(GOOD, body=b"\x01"),
    "page empty": replace(GOOD, body=b""),
    "page size below 0": replace(GOOD, uncompressed=-1),
    "page larger than it says": replace(GOOD, codec=GZIP, uncompressed=1),
    "compressed size beyond the file": replace(GOOD, compressed=_HUGE32),
    "compressed size below 0": replace(GOOD, compressed=-1),
    "chunk beyond the file": replace(GOOD, chunk_compressed=_HUGE64),
    "data before the file": replace(GOOD, data_offset=-1),
    "dictionary beyond the file": replace(GOOD, dictionary_offset=_HUGE64),
    "dictionary before the file": replace(GOOD, dictionary_offset=-5),
    "dictionary in the middle of a page": replace(GOOD, dictionary_offset=30),
    "text beyond the dictionary": replace(GOOD, dictionary=b"\xff\xff\xff\x7fabc"),
    "text of a length below 0": replace(GOOD, dictionary=b"\xff\xff\xff\xffabc"),
    "text beyond the page": replace(GOOD, encoding=PLAIN, body=b"\xff\xff\xff\x7fabc"),
    "delta of a huge block": replace(
        GOOD, kind=INT64, encoding=DELTA_BINARY_PACKED, body=b"\xff\xff\xff\xff\x0f\x04\x03"
    ),
    "delta of huge counts": replace(
        GOOD, kind=INT64, encoding=DELTA_BINARY_PACKED, body=varint(128) + varint(0) + varint(2**60) + b"\0"
    ),
    "no groups": replace(GOOD, groups=0),
    "children beyond the schema": replace(GOOD, children=_HUGE32),
    "children below 0": replace(GOOD, children=-1),
    "no children": replace(GOOD, children=0),
    "footer empty": replace(GOOD, footer_length=0),
    "footer cut short": replace(GOOD, footer_length=20),
    "footer one byte too long": replace(GOOD, footer_length=len(GOOD.content())),
    "footer of 2 GiB": replace(GOOD, footer_length=_HUGE32),
    "footer of 4 GiB": replace(GOOD, footer_length=2**32 - 1),
    "codec unknown": replace(GOOD, codec=77),
    "type unknown": replace(GOOD, kind=77),
    "encoding unknown": replace(GOOD, encoding=77),
    "name that is no text": replace(GOOD, name=b"\xff\xfe"),
    "length of a chunk below 0": replace(GOOD, chunk_compressed=-1),
}

#: Each is made in its test: one has 100 MB.
BOMBS: dict[str, Callable[[], Parquet]] = {
    "dictionary of 2 billion texts": lambda: replace(GOOD, dictionary_values=_HUGE32),
    "page of 2 GiB": lambda: replace(GOOD, uncompressed=_HUGE32),
    "compressed page of 2 GiB": lambda: replace(GOOD, codec=GZIP, uncompressed=_HUGE32),
    "compressed dictionary of 2 GiB": lambda: replace(GOOD, codec=GZIP, dictionary_uncompressed=_HUGE32),
    "page that grows a thousandfold": lambda: replace(
        GOOD, codec=GZIP, encoding=PLAIN, num_rows=1, body=plain([b"x" * 100_000_000])
    ),
    "schema of 2 billion parts": lambda: replace(GOOD, schema_items=_HUGE32),
    "2 billion groups": lambda: replace(GOOD, groups=_HUGE32),
}


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lie, id=name, marks=pytest.mark.exhaustive if number % 3 else ())
        for number, (name, lie) in enumerate(DAMAGED.items())
    ],
)
def test_r07_inconsistent_parquet_is_refused(process: Process, lie: Parquet) -> None:
    (process.directory / "a.parquet").write_bytes(lie.content())

    said = process.refusal("a.parquet")

    assert isinstance(said, SourceError)
    assert re.match(r"'a\.parquet': |The engine failed: ", str(said))


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_r07_parquet_that_asks_for_much_memory_is_refused(process: Process, bomb: Callable[[], Parquet]) -> None:
    (process.directory / "a.parquet").write_bytes(bomb().content())

    assert str(process.refusal("a.parquet")) == TOO_LARGE


def test_r07_parquet_of_2_billion_rows_in_150_bytes_ends_with_its_time(process: Process) -> None:
    run = b"\x01" + varint(_HUGE32 << 1) + b"\0"
    (process.directory / "a.parquet").write_bytes(replace(GOOD, num_rows=_HUGE32, body=run).content())

    assert str(process.refusal("a.parquet", limit_s=1)).startswith("The load was stopped after 1 s")


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(replace(GOOD, page_values=_HUGE32), id="values of the page"),
        pytest.param(replace(GOOD, data_offset=_HUGE64), id="data offset beside a dictionary offset"),
    ],
)
def test_r07_an_inconsistency_in_unused_fields_changes_no_row(process: Process, lie: Parquet) -> None:
    assert process.rows_of("a.parquet", lie.content()) == GOOD_ROWS


def test_r06_parquet_cut_short_anywhere_is_refused(process: Process) -> None:
    content = GOOD.content()

    for cut in (1, 4, 11, 12, 100, len(content) // 3, len(content) // 2, len(content) - 8, len(content) - 1):
        (process.directory / "a.parquet").write_bytes(content[:cut])
        said = process.refusal("a.parquet")
        assert str(said) == "'a.parquet': it is not a Parquet file, or it was cut short."


def test_r07_flipped_bytes_give_an_error_or_rows(process: Process) -> None:
    chance = random.Random(7)
    for _ in range(25):
        content = bytearray(replace(GOOD, kind=BYTE_ARRAY).content())
        for _ in range(3):
            content[chance.randrange(len(content))] = chance.randrange(256)
        with suppress(SourceError, SnapshotError):
            process.rows_of("a.parquet", bytes(content))
    assert process.rows_of("a.parquet", GOOD.content()) == GOOD_ROWS


# --- text without end -------------------------------------------------------------------------------------------------


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "a\n" + "1\n" * 1_000_000)


def _keys(count: int) -> Iterator[str]:
    return (f"c{index}" for index in range(count))


CUT = "it was cut short|the JSON was cut short"
LINE = r"line 1: a quote is not closed, or the line is longer than 2 MB\.$"
OBJECT = r"an object is larger than 16 MB\.$"
MEMORY = f"^{re.escape(TOO_LARGE)}$"
#: Which limit a line without end meets first depends on the memory that is free.
LONG = rf"{MEMORY}|it is longer than 2 MB\.$"

TEXTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "line of 1 GiB": ("csv", lambda path: sparse(path, b"a\n1\n", GIB), LONG),
    "first line of 1 GiB": ("csv", lambda path: sparse(path, b"a", GIB), LINE),
    "gzipped line": ("csv.gz", lambda path: gzip_bomb(path, b"a\n1\n", b"x" * 16 * MIB, 24), LONG),
    "gzipped lines in quotes": ("csv.gz", lambda path: gzip_bomb(path, b'a\n1\n"', b"x\n" * 8 * MIB, 24), LONG),
    "quote never closed": ("csv", lambda path: path.write_bytes(b'a,b\n1,"' + b"x\n" * 2 * MIB), "line 2: a quote is"),
    "a million columns": ("csv", lambda path: path.write_text(",".join(_keys(1_000_000)) + "\n"), LINE),
    "a zip": ("csv", _zip, "line 1: it is not text"),
    "array of 1 GiB": ("json", lambda path: sparse(path, b'[{"a": 1}', GIB), "the JSON was cut short"),
    "object of 1 GiB": ("ndjson", lambda path: sparse(path, b'{"a": 1}\n{"a":', GIB), OBJECT),
    "gzipped text": ("json.gz", lambda path: gzip_bomb(path, b'{"a": "', b"x" * 16 * MIB, 24), OBJECT),
    "a million keys": (
        "json",
        lambda path: path.write_text(json.dumps(dict.fromkeys(_keys(1_000_000), 1))),
        MEMORY,
    ),
    "many objects of one key": (
        "ndjson",
        lambda path: path.write_text("\n".join(f'{{"{key}":1}}' for key in _keys(300_000))),
        MEMORY,
    ),
    "depth of a million": (
        "json",
        lambda path: path.write_text('{"a": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}"),
        "query.memory_limit|cannot read it as JSON|failed because its process ended",
    ),
}


#: The others take seconds each, and the limits that they meet are the same.
SAMPLES = {"line of 1 GiB", "quote never closed", "a million columns", "a zip", "object of 1 GiB", "a million keys"}


@pytest.mark.parametrize(
    ("suffix", "write", "said"),
    [
        pytest.param(*text, id=name, marks=() if name in SAMPLES else pytest.mark.exhaustive)
        for name, text in TEXTS.items()
    ],
)
def test_r07_endless_text_is_refused(process: Process, suffix: str, write: Callable[[Path], object], said: str) -> None:
    path = process.directory / f"a.{suffix}"
    write(path)
    try:
        assert re.search(said, str(process.refusal(path.name)))
    finally:
        path.unlink()


# --- more columns than a dataset may have -----------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_more_columns_than_a_dataset_may_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(replace(GOOD, columns=MAX_COLUMNS + 1).content())
    (tmp_path / "b.csv").write_text("a\n1\n")
    sql = f"SELECT {', '.join(f'a AS {name}' for name in _keys(MAX_COLUMNS + 1))} FROM d"
    made = builder(tmp_path, memory_mib=1024)

    for order in (Order(declare(tmp_path, "a.parquet")), Order(declare(tmp_path, "b.csv"), sql)):
        with pytest.raises(
            SourceError, match=r"^The source of d has 10001 columns: a dataset can have at most 10000\.$"
        ):
            made.build(order, deadline())

    assert files_below(tmp_path) == []


def test_names_longer_than_a_dataset_may_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(replace(GOOD, name=b"a" * MAX_SCHEMA_LENGTH).content())

    with pytest.raises(SourceError, match=r"^The names and types of the columns of d have 2000004 characters: "):
        builder(tmp_path).build(Order(declare(tmp_path, "a.parquet")), deadline())
