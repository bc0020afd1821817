"""
How files of each format are read, and the reasons why one cannot be.

Each format reads strictly: a row that does not fit is an error, because a guess would lose data. This module checks
what the engine lets pass: a JSON array cut after a comma, a decimal that it would round.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import duckdb

from datasources.errors import SourceError
from datasources.sources.pinned_file import DESCRIPTORS, PinnedFile
from datasources.sources.scratch import ScratchSpace
from datasources.sources.source import Scan, reason_for
from datasources.sources.text_files import ends
from datasources.sql import literals
from queryengine.manifest import Column
from runtimeconf.connectors.file_formats import misplaced

#: The most digits of a decimal that the engine keeps exactly.
_MAX_DECIMAL_DIGITS = 38

#: Part of the engine's message about a file that was renamed since the load began, and our reason.
_MOVED = ("file system operations are disabled", "it was moved while it was read; the next refresh reads it again")


class FileFormat(Scan):
    """
    A `Scan` of pinned files of one format.

    Args:
        files: The files.
        shown: The name of all of them in errors.
        space: Where a format may keep other forms of them.
        params: The parameters of the dataset.
        compression: A value of `file_compression_type`.
        version, confirm: As in `Scan`.

    Raises:
        SourceError: A parameter does not apply to this format.
    """

    name: ClassVar[str]
    #: As in `runtimeconf.connectors.file_formats.KINDS`.
    kind: ClassVar[str]
    #: Our reasons, by a part of the engine's message, which may quote contents, paths and options.
    reasons: ClassVar[Mapping[str, str]]
    #: The lines of a file that the engine does not see, because they come before its first one.
    skipped_lines = 0

    def __init__(  # noqa: PLR0913 (each is about the same files)
        self,
        files: Sequence[PinnedFile],
        shown: str,
        space: ScratchSpace,
        params: Mapping[str, str],
        *,
        compression: str,
        version: str | None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        for name, problem in misplaced(params, self.kind).items():
            raise SourceError(f"'{shown}': params.{name} {problem}.")
        self.use(files)
        self.version = version
        self._confirm = confirm
        self._shown = shown
        self.space = space
        self.deadline = space.deadline
        self.params = params
        self.compression = compression
        self._names: list[str] = []

    def use(self, files: Sequence[PinnedFile]) -> None:
        """Read *files* from now on."""
        self.files = tuple(files)
        self.paths = tuple(file.path for file in files)

    @abstractmethod
    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """As `Scan.bind`."""

    def accept(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> None:
        """Refuse other *columns* than those of the files: the engine dropped one or made up a name."""
        if {column.name.lower() for column in columns} != set(map(str.lower, self._names)):
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
        place = f", line {int(line[1]) + self.skipped_lines}" if line else ""
        return SourceError(f"'{shown}'{place}: {reason}.")

    def details(self, _connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """Return the engine's message, or a more exact one if there is any."""
        return str(error)

    def other_reason(self, _text: str) -> str:
        """Return the reason for a message that `reasons` does not know."""
        return f"the engine cannot read it as {self.name}"

    @property
    def engine_compression(self) -> str:
        """The option of the engine for `compression`."""
        return f"compression = '{'none' if self.compression == 'UNCOMPRESSED' else self.compression.lower()}'"


class Parquet(FileFormat):
    """Parquet files with the same columns; a column has the widest of its types in the files."""

    name = "Parquet"
    kind = "parquet"
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
            refuse_repeated(names, file)
            self._names = self._names or names
            refuse_other_columns(self._names, self.files[0], names, file)
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


class Json(FileFormat):
    """JSON files: an array of objects, or a sequence of objects, such as one per line. Keys may differ."""

    name = "JSON"
    kind = "json"
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
            head, last = ends(file, self.compression, self.deadline)
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

    def accept(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> None:
        """Refuse keys that differ only in case: the engine renames the second to `KEY_1`."""
        folded = {column.name.lower() for column in columns}
        if not any((match := re.fullmatch(r"(.*)_\d+", name)) and match[1] in folded for name in folded):
            return
        keys = connection.execute(
            f"SELECT DISTINCT unnest(json_keys(json)) FROM read_json_objects({self._common})"  # noqa: S608 - our SQL
        ).fetchall()
        refuse_repeated(sorted(key for (key,) in keys), self.files[0])

    @property
    def _common(self) -> str:
        return f"{literals(self.paths)}, format = '{self._layout}', {self.engine_compression}"


def refuse_repeated(names: Iterable[str], file: PinnedFile, hint: str = "each column needs a name of its own") -> None:
    """
    Refuse *names* of columns that SQL could not distinguish.

    Raises:
        SourceError: Two are equal or differ only in case; the sentence names *file* and ends with *hint*.
    """
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            pair = f"column '{name}' twice" if other == name else f"columns '{other}' and '{name}', alike but for case"
            raise SourceError(f"'{file.shown}' has the {pair}; {hint}.")
        seen[name.lower()] = name


def refuse_other_columns(expected: Sequence[str], first: PinnedFile, names: Sequence[str], file: PinnedFile) -> None:
    """
    Refuse *names* of the columns of *file* that are not those *expected* from the *first* file, in any order.

    Raises:
        SourceError: They differ.
    """
    wanted, found = set(map(str.lower, expected)), set(map(str.lower, names))
    if wanted == found:
        return
    differences = [f"lacks '{name}'" for name in expected if name.lower() not in found]
    differences += [f"adds '{name}'" for name in names if name.lower() not in wanted]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    raise SourceError(f"'{file.shown}' has other columns than '{first.shown}': it {', '.join(differences[:3])}{more}.")
