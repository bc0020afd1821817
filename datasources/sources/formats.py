"""
The base class of file formats, and Parquet. A format reads pinned files and explains why a file cannot be read.

Each format reads strictly. A row that does not fit is an error, because a guess would lose data. The Parquet class also
refuses values that the engine accepts but would change, such as a decimal that it would round.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import duckdb

from datasources.errors import SourceError
from datasources.sources.pinned_file import DESCRIPTORS, PinnedFile
from datasources.sources.scratch_files import ScratchSpace
from datasources.sources.source import Scan, reason_for
from datasources.sql import identifier, literals
from queryengine.manifest import Column
from runtimeconf.file_formats import FileParams, misplaced

#: The maximum number of decimal digits that the engine keeps exactly.
_MAX_DECIMAL_DIGITS = 38

#: The replacement for an empty name in a header.
UNNAMED = "a column without a name gets its number as its name, such as column1"

#: Patterns for the engine's names of types whose values change meaning in any type but text. Text comes last. The
#: engine converts booleans to numbers, points in time from and to times without a zone, and text to bytes.
_KINDS = (
    r"\bBOOLEAN\b",
    r"\b(?:DATE|TIMESTAMP(?:_S|_MS|_NS)?)\b(?! WITH)",
    r"\bTIMESTAMP(?: WITH|TZ)",
    r"\b(?:VARCHAR|JSON)\b",
)

#: Part of the engine's message about a file that was renamed since the load began, and our reason.
_MOVED = (
    "file system operations are disabled",
    "it was moved while it was being read; the next refresh will read it again",
)


class FileFormat(Scan):
    """
    A `Scan` of pinned files of one format.

    Args:
        files: The files.
        shown: The name of the files in errors.
        space: The space where a format may store converted files.
        params: The parameters of the dataset.
        compression: A value of `file_compression_type`.
        version, confirm: See `Scan`.

    Raises:
        SourceError: A parameter does not apply to this format.
    """

    name: ClassVar[str]
    #: See `runtimeconf.file_formats.KINDS`.
    kind: ClassVar[str]
    #: Our reasons, by a substring of the engine's message. The message itself may quote contents, paths and options.
    reasons: ClassVar[Mapping[str, str]]
    #: The number of lines before the first line that the engine sees.
    skipped_lines = 0

    def __init__(  # noqa: PLR0913 (each is about the same files)
        self,
        files: Sequence[PinnedFile],
        shown: str,
        space: ScratchSpace,
        params: FileParams,
        *,
        compression: str,
        version: str | None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        for name, problem in misplaced(params.given, self.kind).items():
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
        """See `Scan.bind`."""

    def accept(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> None:
        """Refuse *columns* that differ from the files' columns. The engine has dropped a column or invented a name."""
        if {column.name.lower() for column in columns} != set(map(str.lower, self._names)):
            raise SourceError(f"'{self.files[0].shown}': its first line is not a header.")

    def confirm(self) -> None:
        """Check that the files did not change."""
        self._confirm()

    def explain(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> SourceError:
        """Return an error that names the file that cannot be read, and the reason."""
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
        """Return the engine's message, or a more exact one if available."""
        return str(error)

    def other_reason(self, _text: str) -> str:
        """Return the reason for a message that is not in `reasons`."""
        return f"the engine cannot read it as {self.name}"

    @property
    def engine_compression(self) -> str:
        """The engine's option for `compression`."""
        return f"compression = '{'none' if self.compression == 'UNCOMPRESSED' else self.compression.lower()}'"


class Parquet(FileFormat):
    """Parquet files with the same columns. If a column has different types in the files, the widest type is used."""

    name = "Parquet"
    kind = "parquet"
    reasons: ClassVar[Mapping[str, str]] = {
        "No magic bytes": "it is not a Parquet file, or it was cut short",
        "too small to be a Parquet": "it is not a Parquet file, or it was cut short",
        "Need at least one non-root column": "it has no columns",
        "encrypted": "it is encrypted",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check the names and types in every file; see `Scan.bind`."""
        types: list[dict[str, str]] = []
        for file in self.files:
            self.deadline.check()
            found = self._types_in(connection, file)
            names = [name for name, _ in found]
            refuse_repeated(names, file)
            self._names = self._names or names
            refuse_other_columns(self._names, self.files[0], names, file)
            types.append({name.lower(): type_ for name, type_ in found})
        scan = (
            f"read_parquet({literals(self.paths)}, union_by_name = true, hive_partitioning = false, filename = false)"
        )
        if any(each != types[0] for each in types):
            self._refuse_rounding(connection, scan, types)
        return scan

    def _types_in(self, connection: duckdb.DuckDBPyConnection, file: PinnedFile) -> list[tuple[str, str]]:
        """Return the names and types of the columns in *file*. Refuse values that the engine does not keep exactly."""
        rows = connection.execute(
            "SELECT name, coalesce(num_children, 0), coalesce(precision, 0), type, duckdb_type FROM parquet_schema($1)",
            [file.path],
        ).fetchall()
        for name, _, precision, *_ in rows:
            if precision > _MAX_DECIMAL_DIGITS:
                raise SourceError(
                    f"'{file.shown}': the column '{name}' has decimals of {precision} digits; the engine supports at "
                    f"most {_MAX_DECIMAL_DIGITS}."
                )
        if any(type_ == "INT96" for _, _, _, type_, _ in rows):
            self._refuse_nanoseconds(file)
        # The tree is listed depth first: the root, then each node before its children.
        columns: list[tuple[str, str]] = []
        nodes: list[tuple[list[str], int]] = []  # The names in each open node, and the number of its children.
        for name, children, _, _, type_ in rows[1:]:
            if not nodes:
                columns.append((name, str(type_)))
            else:
                nodes[-1][0].append(name)
            if children:
                nodes.append(([], children))
            while nodes and len(nodes[-1][0]) == nodes[-1][1]:
                refuse_repeated(nodes.pop()[0], file, "names in a column must be unique")
        return columns

    def _refuse_nanoseconds(self, file: PinnedFile) -> None:
        """Refuse times of the legacy type INT96 with sub-microsecond digits, which the engine truncates."""
        # Imported here because it uses memory that other loads do not need.
        parquet, compute = import_module("pyarrow.parquet"), import_module("pyarrow.compute")
        exact, cut = (parquet.ParquetFile(file.path, coerce_int96_timestamp_unit=unit) for unit in ("ns", "us"))
        for at in range(len(exact.schema)):
            column = exact.schema.column(at)
            if column.physical_type != "INT96":
                continue
            row = 1
            for batches in zip(*(one.iter_batches(columns=[column.path]) for one in (exact, cut)), strict=True):
                self.deadline.check()
                nanoseconds, microseconds = (_leaf(batch.column(0)).cast("int64") for batch in batches)
                # Both sides wrap around in years that nanoseconds since 1970 cannot represent.
                differs = compute.not_equal(compute.multiply(microseconds, 1000), nanoseconds)
                first = compute.index(differs, True).as_py()
                if first >= 0:
                    name, _, is_nested = column.path.partition(".")
                    place = f", row {row + first}" if not is_nested else ""
                    raise SourceError(
                        f"'{file.shown}'{place}: the column '{name}' has nanoseconds in the old type INT96, which "
                        "the engine would truncate to microseconds: write it as TIMESTAMP(NANOS)."
                    )
                row += batches[0].num_rows

    def _refuse_rounding(
        self, connection: duckdb.DuckDBPyConnection, scan: str, types: Sequence[Mapping[str, str]]
    ) -> None:
        """Refuse files whose values would change in the wider type that other files require for a column."""
        described = connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()  # noqa: S608 - quoted by us
        for file, own in zip(self.files, types, strict=True):
            others = [(name, own[name.lower()], wide) for name, wide, *_ in described if own[name.lower()] != wide]
            if not others:
                continue
            checks = ", ".join(
                f"bool_and(TRY_CAST(TRY_CAST({identifier(name)} AS {wide}) AS {type_}) IS NOT DISTINCT FROM "
                f"{identifier(name)})"
                for name, type_, wide in others
            )
            kept = connection.execute(f"SELECT {checks} FROM read_parquet({literals([file.path])})").fetchone() or ()  # noqa: S608 - quoted by us
            for (name, type_, wide), is_kept in zip(others, kept, strict=True):
                if is_kept is False or _changes_meaning(type_, wide):
                    raise SourceError(
                        f"'{file.shown}': some values of the column '{name}' ({type_:.80}) would change as {wide:.80}, "
                        "its type in other files: write it with one type in all files."
                    )

    def other_reason(self, text: str) -> str:
        """Return the engine's first line, which for Parquet describes the structure, not the contents."""
        line = re.sub(r"^[A-Z][A-Za-z ]+: ", "", text.partition("\n")[0])
        line = re.sub(rf"(?:\b(?:the )?file )?['\"]?{DESCRIPTORS}/\d+['\"]?", "the file", line).strip().rstrip(".")
        return f"the engine cannot read it as Parquet: {line[:300]}"


def _changes_meaning(own: str, wide: str) -> bool:
    """Return whether values of the type *own* change meaning in the type *wide* of other files."""
    *lost, text = (len(re.findall(kind, own)) - len(re.findall(kind, wide)) for kind in _KINDS)
    return text > 0 or any(number > max(0, -text) for number in lost)


def _leaf(array: Any) -> Any:
    """Return the innermost values of a pyarrow array that contains one column of a file."""
    while array.type.num_fields:
        array = array.items if str(array.type).startswith("map") else array.flatten()
        array = array[0] if isinstance(array, list) else array
    return array


def refuse_repeated(names: Iterable[str], file: PinnedFile, hint: str = "column names must be unique") -> None:
    """
    Refuse column *names* that SQL cannot distinguish.

    Raises:
        SourceError: Two names are equal or differ only in case. The message names *file* and ends with *hint*.
    """
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            pair = (
                f"column '{name}' twice"
                if other == name
                else f"columns '{other}' and '{name}', which differ only in case"
            )
            raise SourceError(f"'{file.shown}' has the {pair}; {hint}.")
        seen[name.lower()] = name


def refuse_other_columns(expected: Sequence[str], first: PinnedFile, names: Sequence[str], file: PinnedFile) -> None:
    """
    Refuse column *names* in *file* that are not the names *expected* from the *first* file, in any order.

    Raises:
        SourceError: They differ.
    """
    wanted, found = set(map(str.lower, expected)), set(map(str.lower, names))
    if wanted == found:
        return
    differences = [f"lacks '{name}'" for name in expected if name.lower() not in found]
    differences += [f"adds '{name}'" for name in names if name.lower() not in wanted]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    found_here = ", ".join(differences[:3])
    raise SourceError(f"'{file.shown}' has different columns than '{first.shown}': it {found_here}{more}.")
