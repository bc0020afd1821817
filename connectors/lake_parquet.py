"""
Reads the Parquet files of a table with the table's schema, in small batches.

The schema may be newer than a file, with columns added, dropped, renamed or widened since. The table format defines how
a column is found in a file (`Column.key`). This module converts the values if no information is lost. A file that does
not match the schema ends the load.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field

from connectors.databases import parts_of
from connectors.lake import TableRoot
from datasources.errors import SnapshotError, SourceError
from datasources.sources.source import Bound, Load
from datasources.sources.streams import StreamScan

#: The target size of a batch, and its maximum number of rows.
_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_ROWS = 16 * 1024

#: The read-ahead for all columns of a file together, and the limits for one column.
_AHEAD_BYTES = 32 * 1024 * 1024
_MIN_AHEAD_BYTES, _MAX_AHEAD_BYTES = 64 * 1024, 4 * 1024 * 1024

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
#: Table types, and the file types that may be cast to them. Some writers do not mark bytes as strings.
_CONVERSIONS: Sequence[tuple[Callable[[pa.DataType], bool], Sequence[Callable[[pa.DataType], bool]]]] = (
    (pa.types.is_integer, (pa.types.is_integer,)),
    (pa.types.is_decimal, (pa.types.is_integer, pa.types.is_decimal)),
    (pa.types.is_timestamp, (pa.types.is_timestamp,)),
    (pa.types.is_date, (pa.types.is_date,)),
    (pa.types.is_time, (pa.types.is_time,)),
    (pa.types.is_string, (*_BYTES, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (pa.types.is_binary, (*_BYTES, pa.types.is_binary_view)),
)

#: Identifies a column in a file: the id or the name.
Key = int | str
#: The Arrow field metadata key of a Parquet column id.
FIELD_ID = b"PARQUET:field_id"
#: Returns the key of a file's column, from the column and its name path; None if it has none.
Identify = Callable[[pa.Field, tuple[str, ...]], Key | None]


class Column(Struct, frozen=True):
    """
    A column of the table, or a part of a column.

    *parts* are the fields of a struct, the element of a list, or the key and the value of a map.
    """

    name: str
    key: Key
    type: pa.DataType
    is_nullable: bool = True
    parts: "tuple[Column, ...]" = ()


class DataFile(Struct, frozen=True):
    """
    A file of the table. The path is relative to the root.

    *constants* are column values by key that are the same for all rows. *kept* is a mask that shows which of the first
    rows belong to the table. All rows after the mask belong to the table. If *kept* is None, all rows do.
    """

    path: str
    constants: Mapping[Key, pa.Scalar] = field(default_factory=dict)
    kept: pa.BooleanArray | None = None


def field_id(part: pa.Field) -> int | None:
    """Return the id of a file's column; None if it has none."""
    found = (part.metadata or {}).get(FIELD_ID)
    return int(found) if found is not None else None


def column_of(described: pa.Field, key: Callable[[pa.Field], Key]) -> Column:
    """
    Return the column for an Arrow field. *key* returns the key of a field at any depth.

    The column's type is the engine's type, without views, large types, ids or metadata of the table format.
    """
    kind = described.type
    parts: tuple[Column, ...] = ()
    if pa.types.is_struct(kind):
        parts = tuple(column_of(part, key) for part in kind)
        kind = pa.struct([pa.field(part.name, part.type) for part in parts])
    elif pa.types.is_map(kind):
        parts = (column_of(kind.key_field, key), column_of(kind.item_field, key))
        kind = pa.map_(parts[0].type, parts[1].type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = (column_of(kind.value_field, key),)
        kind = pa.list_(parts[0].type)
    elif pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        kind = pa.binary()
    return Column(described.name, key(described), kind, described.nullable, parts)


def batches(
    root: TableRoot, files: Iterable[DataFile], columns: Sequence[Column], identify: Identify, load: Load
) -> pa.RecordBatchReader:
    """
    Return the rows of *files* as *columns*.

    Raises, while it is read:
        SourceError: A file is missing, damaged, or does not match *columns*.
    """
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])

    def all_batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            load.deadline.check()
            with _explained(root, file.path), root.open(file.path) as opened:
                for arrays in _File(opened, file, columns, identify).arrays():
                    load.deadline.check()
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, all_batches())


def scan(  # noqa: PLR0913 (each is about the same table)
    root: TableRoot,
    files: Iterable[DataFile],
    columns: Sequence[Column],
    identify: Identify,
    load: Load,
    *,
    version: str,
) -> StreamScan:
    """Return the `Scan` of a table, with the columns that *load* wants. See `batches`."""
    wanted = [column for column in columns if load.wanted.columns is None or column.name.lower() in load.wanted.columns]
    reader = batches(root, files, wanted or columns[:1], identify, load)
    return StreamScan(reader, load, _explained_failure, version=version)


def _explained_failure(error: Exception) -> SourceError:
    """
    Return the error for an unexpected exception of the library.

    Raises:
        SnapshotError: The library ran out of memory.
    """
    if isinstance(error, MemoryError):
        raise SnapshotError("The load needs more memory than query.memory_limit allows.") from None
    return SourceError("The library that reads the table failed.")


def may_hold(bound: Bound, low: object, high: object) -> bool:
    """
    Return whether a value from *low* to *high* may satisfy *bound*; True if an exact comparison is impossible.

    Times are widened by a millisecond at both ends because statistics are often truncated to milliseconds.
    """
    value, (low, high) = _comparable(bound.value), (_comparable(low), _comparable(high))
    if value is None or low is None or high is None or type(low) is not type(value) or type(high) is not type(value):
        return True
    if isinstance(low, datetime) and isinstance(high, datetime):
        low, high = _moved(low, -1), _moved(high, 1)
    if bound.operator == "=":
        return bool(low <= value <= high)  # type: ignore[operator]
    end = low if bound.operator in {"<", "<="} else high
    return bool(_COMPARISONS[bound.operator](end, value))


def _comparable(value: object) -> Decimal | date | datetime | None:
    """Return *value* as a type that Python and the engine compare in the same way (not a float or a string)."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return value if isinstance(value, date) else None


def _moved(value: datetime, milliseconds: int) -> datetime:
    try:
        return value + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if milliseconds > 0 else datetime.min.replace(tzinfo=UTC)


class _File:
    """
    One open file.

    Raises:
        _UnfitError: The file does not match *columns*.
        pa.ArrowException: The file is damaged.
    """

    def __init__(self, opened: pa.NativeFile, file: DataFile, columns: Sequence[Column], identify: Identify) -> None:
        self._metadata = pq.read_metadata(opened)
        found = {key: part for key, (_, part) in _by_key(self._metadata.schema.to_arrow_schema(), (), identify).items()}
        if not found:
            raise _UnfitError("its columns have no IDs")
        self._file = file
        self._columns = columns
        self._identify = identify
        self._found = found
        missing = [column for column in columns if column.key not in found and column.key not in file.constants]
        self._read = [
            found[column.key].name for column in columns if column.key in found and column.key not in file.constants
        ]
        ahead = max(_MIN_AHEAD_BYTES, min(_MAX_AHEAD_BYTES, _AHEAD_BYTES // max(1, len(self._read))))
        self._parquet = pq.ParquetFile(
            opened, metadata=self._metadata, buffer_size=ahead, pre_buffer=False, coerce_int96_timestamp_unit="us"
        )
        of_leaves = [self._metadata.schema.column(index) for index in range(self._metadata.num_columns)]
        old = [leaf.path.split(".") for leaf in of_leaves if leaf.physical_type == "INT96"]
        # A path does not show which of its dots belong to a name.
        starts = {".".join(path[:count]) for path in old for count in range(1, len(path) + 1)}
        self._old = [name for name in self._read if name in starts]
        self._exact = pq.ParquetFile(opened, metadata=self._metadata, buffer_size=ahead, pre_buffer=False)
        folded = _folded(found) if missing else {}
        for column in missing:
            if isinstance(column.key, str) and (other := folded.get(column.key.lower())):
                raise _UnfitError(f"it has the column '{other}' where the table has '{column.key}'")
            if not column.is_nullable:
                raise _UnfitError(f"it lacks the column '{column.name}', which cannot be null")

    def arrays(self) -> Iterator[list[pa.Array]]:
        """Read the columns in batches, without deleted rows."""
        position = 0
        kept = self._file.kept
        if kept is not None and len(kept) > self._metadata.num_rows:
            raise _UnfitError("it has deletes for rows that it does not contain")
        for rows, batch in self._batches():
            mask = None if kept is None or position >= len(kept) else kept.slice(position, rows)
            position += rows
            arrays = [self._column(column, batch, rows) for column in self._columns]
            if mask is not None:
                if len(mask) < rows:
                    mask = pa.concat_arrays([mask, pa.array([True] * (rows - len(mask)))])
                arrays = [array.filter(mask) for array in arrays]
            yield arrays

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not self._read:
            rows = self._metadata.num_rows
            for start in range(0, rows, _BATCH_ROWS):
                yield min(_BATCH_ROWS, rows - start), None
            return
        for group in range(self._metadata.num_row_groups):
            about = self._metadata.row_group(group)
            rows = max(1, _BATCH_BYTES * max(1, about.num_rows) // max(1, about.total_byte_size))
            size = max(1, min(_BATCH_ROWS, rows))
            exact = self._exact.iter_batches(size, [group], self._old, use_threads=False) if self._old else None
            for batch in self._parquet.iter_batches(size, [group], self._read, use_threads=False):
                if exact is not None:
                    self._refuse_cut(batch, next(exact))
                yield batch.num_rows, batch

    def _refuse_cut(self, batch: pa.RecordBatch, exact: pa.RecordBatch) -> None:
        """Refuse INT96 timestamps with sub-microsecond digits, using the same rows in nanoseconds."""
        for name in self._old:
            for cut, whole in zip(parts_of(batch.column(name)), parts_of(exact.column(name)), strict=True):
                if cut.type == whole.type:
                    continue
                # Beyond the nanosecond range both sides overflow alike, so the difference is correct.
                rest = pc.subtract(whole.view(pa.int64()), pc.multiply(cut.view(pa.int64()), 1000))
                if pc.any(pc.not_equal(rest, 0)).as_py():
                    raise _UnfitError(f"the column '{name}' has a time with sub-microsecond digits")

    def _column(self, column: Column, batch: pa.RecordBatch, rows: int) -> pa.Array:
        if column.key in self._file.constants:
            return pa.repeat(self._file.constants[column.key].cast(column.type), rows)
        if column.key not in self._found:
            return pa.nulls(rows, column.type)
        name = self._found[column.key].name
        values = _projected(batch.column(name), column, (name,), self._identify)
        if values.null_count and not column.is_nullable:
            raise _UnfitError(f"the column '{column.name}' has nulls, but cannot be null")
        return values


def _projected(values: pa.Array, column: Column, path: tuple[str, ...], identify: Identify) -> pa.Array:
    """
    Return *values*, whose name path in the file is *path*, as values of *column*.

    Raises:
        _UnfitError: Their type cannot be converted to the column's type without loss.
        pa.ArrowException: A value does not fit.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind, wanted = values.type, column.type
    if pa.types.is_struct(wanted) and pa.types.is_struct(kind):
        return _struct(values, column, path, identify)
    if pa.types.is_map(wanted) and pa.types.is_map(kind):
        names = ((*path, "key"), (*path, "value"))
        keys, items = (
            _projected(child, part, name, identify)
            for child, part, name in zip((values.keys, values.items), column.parts, names, strict=True)
        )
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=wanted)
    if pa.types.is_list(wanted) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        if pa.types.is_large_list(kind):
            values = values.cast(pa.list_(kind.value_field))
        element = _projected(values.values, column.parts[0], (*path, "element"), identify)
        return pa.ListArray.from_arrays(_offsets(values), element, type=wanted)
    if kind == wanted:
        return values
    if isinstance(wanted, pa.BaseExtensionType) and kind == wanted.storage_type:
        return pa.ExtensionArray.from_storage(wanted, values)
    if not _becomes(kind.value_type if pa.types.is_dictionary(kind) else kind, wanted):
        raise _UnfitError(f"the column '{column.name}' has the type {kind}, but the table has {wanted}")
    return values.cast(wanted)


def _struct(values: pa.StructArray, column: Column, path: tuple[str, ...], identify: Identify) -> pa.Array:
    found = _by_key(values.type, path, identify)
    children = []
    for part in column.parts:
        if part.key in found:
            index, described = found[part.key]
            child = values.field(index)
            children.append(_projected(child, part, (*path, described.name), identify))
        elif isinstance(part.key, str) and (other := _folded(found).get(part.key.lower())):
            raise _UnfitError(f"it has the field '{other}' of '{path[0]}' where the table has '{part.key}'")
        elif not part.is_nullable:
            raise _UnfitError(f"it lacks the field '{part.name}' of '{path[0]}', which cannot be null")
        else:
            children.append(pa.nulls(len(values), part.type))
    return pa.StructArray.from_arrays(children, fields=list(column.type), mask=values.is_null())


def _folded(found: Iterable[Key]) -> dict[str, str]:
    """Return the names in *found*, by lower-case name."""
    return {key.lower(): key for key in found if isinstance(key, str)}


def _by_key(parts: Iterable[pa.Field], path: tuple[str, ...], identify: Identify) -> dict[Key, tuple[int, pa.Field]]:
    """
    Return the index and the type of each column of a file, or of each field of the struct *path*, by key.

    Raises:
        _UnfitError: Two columns have the same key.
    """
    found: dict[Key, tuple[int, pa.Field]] = {}
    for index, part in enumerate(parts):
        key = identify(part, (*path, part.name))
        if key is not None and found.setdefault(key, (index, part))[0] != index:
            what = f"field '{part.name}' of '{path[0]}'" if path else f"column '{part.name}'"
            raise _UnfitError(f"it has the {what} twice")
    return found


def _offsets(values: pa.Array) -> pa.Array:
    """Return the offsets of the lists, with null for a null list."""
    if not values.null_count:
        return values.offsets
    nulls = pa.concat_arrays([values.is_null(), pa.array([False])])
    return pc.if_else(nulls, pa.scalar(None, pa.int32()), values.offsets)


def _becomes(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether *kind* can be cast to *wanted*. The cast fails if a value does not fit."""
    types = pa.types
    if types.is_integer(kind) and types.is_floating(wanted):
        # Integers that a double's or float's mantissa represents exactly.
        return bool(kind.bit_width <= (32 if wanted == pa.float64() else 16))
    if types.is_floating(kind) and types.is_floating(wanted):
        return bool(kind.bit_width < wanted.bit_width)
    if types.is_date(kind) and types.is_timestamp(wanted):
        return wanted.tz is None
    return types.is_null(kind) or any(
        target(wanted) and any(test(kind) for test in tests) for target, tests in _CONVERSIONS
    )


class _UnfitError(Exception):
    """A file does not match the table. The message continues "The file cannot be read: "."""


@contextmanager
def _explained(root: TableRoot, path: str) -> Iterator[None]:
    """Turn file errors into a sentence that names the file, but not its contents."""
    try:
        with root.reading(path):
            yield
    except _UnfitError as exc:
        raise SourceError(f"The file '{path}' of '{root.shown}' cannot be read: {exc}.") from None
    except MemoryError:
        raise
    except pa.ArrowException:
        raise SourceError(
            f"The file '{path}' of '{root.shown}' cannot be read: it is damaged, is not Parquet, or a value does not "
            "match its column's type."
        ) from None
