"""
How files of each format are read, and the reasons why one cannot be.

Each format reads strictly: a row that does not fit is an error, because a guess would lose data. This module checks
what the engine lets pass: a wrong gzip checksum, a JSON array cut after a comma, a decimal that it would round.
"""

import csv
import gzip
import hashlib
import io
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import duckdb

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.source import Scan, reason_for
from datasources.sql import literal, literals

#: The bytes of a text file that are searched for its header. The engine takes lines of up to 2 MB.
_HEAD_BYTES = 2 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024

#: The most digits of a decimal that the engine keeps exactly.
_MAX_DECIMAL_DIGITS = 38

#: The directory in which the system lists the open descriptors of this process.
DESCRIPTORS = "/proc/self/fd"

#: Part of the engine's message about a file that was renamed since the load began, and our reason.
_MOVED = ("file system operations are disabled", "it was moved while it was read; the next refresh reads it again")

_DELIMITERS = ",\t;|"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


#: A file written to within this time (seconds) may be written to again under the same modification time, since the
#: kernel stamps files by its tick.
SETTLED_S = 0.05


class Identity(NamedTuple):
    """A file and its version: equal identities mean equal bytes, once the file has settled."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> "Identity":
        """Return the identity of the file that `stat` describes."""
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether every later change will show in the modification time."""
        return not 0 <= time.time_ns() - self.modified_ns < SETTLED_S * 1e9


def version_of(identities: Sequence[Identity]) -> str | None:
    """Return a text that changes as soon as one of the files, or their number, changes; None until all have settled."""
    if not all(identity.is_settled for identity in identities):
        return None
    return hashlib.sha256(repr([tuple(identity) for identity in identities]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A regular file held open by *descriptor*; *shown* is its path as written in the YAML."""

    descriptor: int
    shown: str
    identity: Identity

    @property
    def path(self) -> str:
        """A path by which this process opens this file even if it is renamed."""
        return f"{DESCRIPTORS}/{self.descriptor}"


class FileFormat(Scan):
    """
    A `Scan` of pinned files of one format, *gzipped* or not.

    *shown* names all of them in errors; *version* and *confirm* are as in `Scan`.
    """

    name: ClassVar[str]
    #: Our reasons, by a part of the engine's message, which may quote contents, paths and options.
    reasons: ClassVar[Mapping[str, str]]

    def __init__(  # noqa: PLR0913 (each is about the same files)
        self,
        files: Sequence[PinnedFile],
        shown: str,
        deadline: Deadline,
        *,
        gzipped: bool,
        version: str | None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = tuple(files)
        self.paths = tuple(file.path for file in files)
        self.version = version
        self._confirm = confirm
        self._shown = shown
        self.deadline = deadline
        self.compression = "gzip" if gzipped else "none"
        self._names: list[str] = []

    def accept(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Refuse other *names* than those of the files: the engine dropped a column or made up a name."""
        if set(map(str.lower, names)) != set(map(str.lower, self._names)):
            raise SourceError(f"'{self.files[0].shown}': its first line does not name its columns.")

    def confirm(self) -> None:
        """Check that the files did not change."""
        self._confirm()

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Return which file cannot be read and why."""
        shown = self._shown
        text = self.details(connection, error)
        named = re.search(rf"{DESCRIPTORS}/(\d+)", text)
        by_descriptor = {file.descriptor: file.shown for file in self.files}
        if named is not None:
            shown = by_descriptor.get(int(named[1]), shown)
        elif len(self.files) == 1:
            shown = self.files[0].shown
        reason = reason_for(text, [*self.reasons.items(), _MOVED]) or self.other_reason(text)
        line = re.search(r"(?:on Line: |in line )(\d+)", text)
        place = f", line {line[1]}" if line else ""
        return SourceError(f"'{shown}'{place}: {reason}.")

    def details(self, _connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """Return the engine's message, or a more exact one if there is any."""
        return str(error)

    def other_reason(self, _text: str) -> str:
        """Return the reason for a message that `reasons` does not know."""
        return f"the engine cannot read it as {self.name}"


class Parquet(FileFormat):
    """Parquet files with the same columns; a column has the widest of its types in the files."""

    name = "Parquet"
    reasons: ClassVar[Mapping[str, str]] = {
        "No magic bytes": "it is not a Parquet file, or it was cut short",
        "too small to be a Parquet": "it is not a Parquet file, or it was cut short",
        "Need at least one non-root column": "it has no columns",
        "encrypted": "it is encrypted",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check names and decimals of every file, as `Scan.bind` promises."""
        for file in self.files:
            self.deadline.check()
            names = self._names_in(connection, file)
            _refuse_repeated(names, file)
            self._names = self._names or names
            _refuse_other_columns(self._names, self.files[0], names, file)
        return (
            f"read_parquet({literals(self.paths)}, union_by_name = true, hive_partitioning = false, filename = false)"
        )

    def _names_in(self, connection: duckdb.DuckDBPyConnection, file: PinnedFile) -> list[str]:
        rows = connection.execute(
            "SELECT name, coalesce(num_children, 0), coalesce(precision, 0) FROM parquet_schema($1)", [file.path]
        ).fetchall()
        for name, _, precision in rows:
            if precision > _MAX_DECIMAL_DIGITS:
                raise SourceError(
                    f"'{file.shown}': the column '{name}' has decimals of {precision} digits; the engine keeps at most "
                    f"{_MAX_DECIMAL_DIGITS} exactly."
                )
        # The tree is listed depth first: the root, then each node before its children.
        names, nested = [], 0
        for name, children, _ in rows[1:]:
            if nested:
                nested -= 1
            else:
                names.append(name)
            nested += children
        return names

    def other_reason(self, text: str) -> str:
        """Pass on the engine's first line: for Parquet it names structure, not contents."""
        line = re.sub(r"^[A-Z][A-Za-z ]+: ", "", text.partition("\n")[0])
        line = re.sub(rf"(?:\b(?:the )?file )?['\"]?{DESCRIPTORS}/\d+['\"]?", "the file", line).strip().rstrip(".")
        return f"the engine cannot read it as Parquet: {line[:300]}"


class Csv(FileFormat):
    """
    CSV files (RFC 4180, UTF-8) whose first line names the columns, the same ones in each file.

    The delimiter is the most frequent one in the header: comma, tab, semicolon or bar. Types come from all rows.
    """

    name = "CSV"
    reasons: ClassVar[Mapping[str, str]] = {
        "Invalid unicode": "it is not UTF-8",
        "unterminated quote": "a quote is not closed, or something follows the closing one",
        "Expected Number of Columns": "it has more or fewer fields than the header",
        "state machine reached an invalid state": "the line ends are mixed, or a quote is misplaced",
        "Maximum line size": "it is longer than 2 MB",
        # Types come from all rows, so only a refresh_sql asks for one that does not fit.
        "converting column": "a value does not fit the type of its column",
        "Unexpected end of GZIP": "it was cut short",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check each header, as `Scan.bind` promises."""
        self._names, delimiter = self._header(self.files[0])
        for file in self.files[1:]:
            names, other_delimiter = self._header(file)
            _refuse_other_columns(self._names, self.files[0], names, file)
            if other_delimiter != delimiter:
                raise SourceError(f"'{file.shown}' has another delimiter than '{self.files[0].shown}'.")
        self._dialect = (
            f"header = true, skip = 0, delim = {literal(delimiter)}, quote = '\"', escape = '\"', comment = '', "
            f"strict_mode = true, compression = '{self.compression}'"
        )
        options = "sample_size = -1, files_to_sniff = -1, union_by_name = true"
        return f"read_csv({literals(self.paths)}, {self._dialect}, {options})"

    def details(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """Read the columns as text if the engine could not tell their types: only then does it name the line."""
        if "sniffing" not in str(error):
            return str(error)
        columns = ", ".join(f"{literal(f'c{index}')}: 'VARCHAR'" for index in range(len(self._names)))
        for file in self.files:
            scan = f"read_csv({literals([file.path])}, {self._dialect}, auto_detect = false, columns = {{{columns}}})"
            try:
                connection.execute(f"SELECT count(*) FROM {scan}").fetchall()  # noqa: S608 - the SQL of two lines above
            except duckdb.InvalidInputException as exact:
                return str(exact)
        return str(error)

    def _header(self, file: PinnedFile) -> tuple[list[str], str]:
        head, _ = _ends(file, self)
        record = _first_record(head)
        if record is None:
            raise SourceError(f"'{file.shown}', line 1: a quote is not closed, or the line is longer than 2 MB.")
        try:
            header = record.decode("utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"'{file.shown}', line 1: it is not UTF-8.") from None
        if not header.strip():
            raise SourceError(f"'{file.shown}' has no columns: its first line must name them.")
        outside_quotes = re.sub(r'"[^"]*"', "", header)
        delimiter = max(_DELIMITERS, key=outside_quotes.count)
        try:
            fields = next(csv.reader(io.StringIO(header, newline=""), delimiter=delimiter))
        except csv.Error:
            raise SourceError(f"'{file.shown}', line 1: it does not name columns.") from None
        # Name a field without a name (an index column, a delimiter at the end) as the engine does.
        names = [field.strip() or f"column{index}" for index, field in enumerate(fields)]
        _refuse_repeated(names, file)
        return names, delimiter


class Json(FileFormat):
    """JSON files: an array of objects, or a sequence of objects, such as one per line. Keys may differ."""

    name = "JSON"
    reasons: ClassVar[Mapping[str, str]] = {
        "UTF-8": "it is not UTF-8",
        "unexpected end of data": "the JSON was cut short",
        "Malformed JSON": "the JSON is malformed",
        "duplicate key": "an object has the same key twice",
        "expected records": "it has no columns: it must hold objects that have keys",
        "maximum_object_size": "an object is larger than 16 MB",
        "Unexpected end of GZIP": "it was cut short",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check how each file ends, as `Scan.bind` promises."""
        firsts = set()
        for file in self.files:
            head, last = _ends(file, self)
            first = head.lstrip()[:1]
            # The engine accepts an array that was cut after a comma.
            if first == b"[" and last != b"]":
                raise SourceError(f"'{file.shown}': the JSON was cut short.")
            firsts.add(first)
        # The engine does not recognise an array behind a byte order mark.
        self._layout = "array" if firsts == {b"["} else "auto"
        return (
            f"read_json({self._common}, records = 'true', union_by_name = true, sample_size = -1, "
            "maximum_sample_files = 1000000, map_inference_threshold = -1, field_appearance_threshold = 0)"
        )

    def accept(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Refuse keys that differ only in case: the engine renames the second to `KEY_1`."""
        folded = set(map(str.lower, names))
        if not any((match := re.fullmatch(r"(.*)_\d+", name)) and match[1] in folded for name in folded):
            return
        keys = connection.execute(
            f"SELECT DISTINCT unnest(json_keys(json)) FROM read_json_objects({self._common})"  # noqa: S608 - our SQL
        ).fetchall()
        _refuse_repeated(sorted(key for (key,) in keys), self.files[0])

    @property
    def _common(self) -> str:
        return f"{literals(self.paths)}, format = '{self._layout}', compression = '{self.compression}'"


def _ends(file: PinnedFile, reader: FileFormat) -> tuple[bytes, bytes]:
    """
    Return the first bytes of a text file (at most `_HEAD_BYTES`), and its last byte that is not white space.

    A byte order mark is left out. A gzipped file is read to its end, because the engine ignores its checksum.

    Raises:
        SourceError: It holds nothing but white space, or its compression is damaged.
    """
    head, last = _probe_gzip(file, reader) if reader.compression == "gzip" else _probe_plain(file, reader)
    if not last:
        raise SourceError(f"'{file.shown}' has no data in it.")
    return head.removeprefix(_BYTE_ORDER_MARK), last


def _probe_plain(file: PinnedFile, reader: FileFormat) -> tuple[bytes, bytes]:
    head = os.pread(file.descriptor, _HEAD_BYTES, 0)
    end = file.identity.size
    while end > 0:
        reader.deadline.check()
        start = max(0, end - _BLOCK_BYTES)
        block = os.pread(file.descriptor, end - start, start).rstrip()
        if block:
            return head, block[-1:]
        end = start
    return head, b""


def _probe_gzip(file: PinnedFile, reader: FileFormat) -> tuple[bytes, bytes]:
    head, last = b"", b""
    try:
        with open(file.path, "rb") as raw, gzip.GzipFile(fileobj=raw) as stream:  # noqa: PTH123 - a descriptor's path
            while block := stream.read(_BLOCK_BYTES):
                reader.deadline.check()
                if len(head) < _HEAD_BYTES:
                    head += block
                last = block.rstrip()[-1:] or last
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise SourceError(
            f"'{file.shown}' is damaged: it was cut short, its checksum is wrong, or it is not gzip at all."
        ) from None
    return head[:_HEAD_BYTES], last


def _first_record(head: bytes) -> bytes | None:
    """Return the first line, ignoring line ends between quotes; None if it does not end."""
    quoted = False
    for match in re.finditer(rb'["\r\n]', head):
        if match[0] == b'"':
            quoted = not quoted
        elif not quoted:
            return head[: match.start()]
    return None if quoted or len(head) >= _HEAD_BYTES else head


def _refuse_repeated(names: Iterable[str], file: PinnedFile) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            pair = f"column '{name}' twice" if other == name else f"columns '{other}' and '{name}', alike but for case"
            raise SourceError(f"'{file.shown}' has the {pair}; each column needs a name of its own.")
        seen[name.lower()] = name


def _refuse_other_columns(expected: Sequence[str], first: PinnedFile, names: Sequence[str], file: PinnedFile) -> None:
    wanted, found = set(map(str.lower, expected)), set(map(str.lower, names))
    if wanted == found:
        return
    differences = [f"lacks '{name}'" for name in expected if name.lower() not in found]
    differences += [f"adds '{name}'" for name in names if name.lower() not in wanted]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    raise SourceError(f"'{file.shown}' has other columns than '{first.shown}': it {', '.join(differences[:3])}{more}.")


FORMATS: Mapping[str, type[FileFormat]] = {
    "parquet": Parquet,
    "csv": Csv,
    "tsv": Csv,
    "json": Json,
    "ndjson": Json,
    "jsonl": Json,
}
