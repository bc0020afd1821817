"""Code shared by database sources: the columns and rows to select, and checks of a driver's batches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from datasources.errors import SourceError
from datasources.sources.source import Load, Value, Wanted
from datasources.sql import identifier, literal

#: The kinds of integers. Doubles represent the small ones exactly.
INTEGERS = frozenset({"small integer", "integer"})

_LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)

#: Converts a driver's array into an array that the engine reads.
Conversion = Callable[[pa.Array], pa.Array]


class UnfitValueError(Exception):
    """The value of *column* at *index* has a *problem*, which continues "Row 1 of the column has"."""

    def __init__(self, column: str, index: int, problem: str) -> None:
        self.column = column
        self.index = index
        self.problem = problem
        super().__init__(f"{column} has {problem}")


class Column(Struct, frozen=True, kw_only=True):
    """
    A column of the source.

    Args:
        name: The name in the source.
        expression: The expression to select, in the source's SQL.
        engine_type: The type that the engine casts the column to; None for no cast.
        convert: Applied to the values first.
        compared: The kinds of values (see `standard_literal`) that the source compares with the column as the engine
            does.
    """

    name: str
    expression: str
    engine_type: str | None = None
    convert: Conversion | None = None
    compared: AbstractSet[str] = frozenset()


_AnyColumn = TypeVar("_AnyColumn", bound=Column)


def chosen(columns: Sequence[_AnyColumn], wanted: Wanted) -> list[_AnyColumn]:
    """Return the columns that the load needs, or the first column if it needs none, since a row must have one."""
    needed = [column for column in columns if wanted.columns is None or column.name.lower() in wanted.columns]
    return needed or list(columns[:1])


def standard_literal(value: Value) -> tuple[str, str]:
    """Return the kind of *value* (empty if the source must not compare it) and the value as an SQL literal."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "small integer" if abs(value) <= 2**53 else "integer", str(value)
    if isinstance(value, Decimal) and value.is_finite():
        return "decimal", format(value, "f")
    if isinstance(value, float):
        return "double", f"{literal(repr(value))}::float8"
    if isinstance(value, datetime):
        kind, moment = ("timestamp", value) if value.tzinfo is None else ("timestamptz", value.astimezone(UTC))
        return kind, f"{kind.upper()} '{moment.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return "date", f"DATE '{value.isoformat()}'"
    return "", ""


def condition(
    columns: Sequence[Column],
    wanted: Wanted,
    *,
    quoted: Callable[[str], str] = identifier,
    literal_of: Callable[[Value], tuple[str, str]] = standard_literal,
) -> str:
    """
    Return ` WHERE ...` for the bounds that the source compares as the engine does; "" if there are none.

    *quoted* quotes a name and *literal_of* formats a value for sources that deviate from the SQL standard.
    """
    by_name = {column.name.lower(): column for column in columns}
    terms = []
    for bound in wanted.bounds:
        column = by_name.get(bound.column.lower())
        kind, value = literal_of(bound.value)
        if column is not None and kind in column.compared:
            terms.append(f"{quoted(column.name)} {bound.operator} {value}")
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def engine_types(columns: Sequence[Column]) -> Mapping[str, str]:
    """Return the types to cast to, by name."""
    return {column.name: column.engine_type for column in columns if column.engine_type is not None}


@contextmanager
def explained(load: Load, explain: Callable[[Exception], SourceError], *errors: type[Exception]) -> Iterator[None]:
    """Turn a driver's *errors* into the errors that *explain* returns. The deadline takes precedence."""
    try:
        yield
    except errors as exc:
        load.deadline.check()
        raise explain(exc) from None


def converted(reader: pa.RecordBatchReader, columns: Sequence[Column]) -> pa.RecordBatchReader:
    """
    Return *reader* with its first columns, which are *columns*, converted.

    Raises, while it is read:
        SourceError: A value cannot be converted. The error names the row, counted in the source's order.
    """
    rows = 0

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal rows
        try:
            arrays = [
                array if column.convert is None else column.convert(array)
                for column, array in zip(columns, batch.columns, strict=False)
            ]
        except UnfitValueError as exc:
            row = rows + exc.index + 1
            raise SourceError(f"Row {row} of the column '{exc.column}' has {exc.problem}.") from None
        rows += batch.num_rows
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])

    return mapped(reader, convert)


def mapped(reader: pa.RecordBatchReader, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return *reader* with every batch changed and then checked."""

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield checked(change(batch))

    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in reader.schema], schema=reader.schema)
    return pa.RecordBatchReader.from_batches(change(nothing).schema, batches())


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """
    Return a driver's *batch* after checking every offset, index and string in it.

    The engine trusts Arrow data and would follow an offset beyond the end. It also truncates digits that its types
    lack.

    Raises:
        SourceError: The batch is damaged, or the engine would change a value.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            # 24:00:00 is a valid time in SQL but not in Arrow.
            viewed(column, lambda kind: pa.int64() if pa.types.is_time64(kind) else kind).validate(full=True)
        except pa.ArrowInvalid:
            kind = "a string is not UTF-8" if pa.types.is_string(column.type) else "a value does not match its type"
            raise SourceError(f"The source sent damaged data in the column '{name}': {kind}.") from None
        changed = (
            ("an interval with sub-microsecond digits", _would_be_cut),
            ("a time below 0 or above 24 hours", _is_beyond_day),
            ("a date after the year 5881580", _is_beyond_dates),
        )
        for what, is_changed in changed:
            if any(map(is_changed, parts_of(column))):
                raise SourceError(
                    f"The column '{name}' has a value that the engine cannot represent exactly: {what}. Read it as "
                    "text through a view."
                )
    return batch


def parts_of(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the non-nested arrays that *array* consists of."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        yield from parts_of(array.storage)
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            yield from parts_of(part)
    elif pa.types.is_map(kind):
        yield from parts_of(array.keys)
        yield from parts_of(array.items)
    elif any(is_list(kind) for is_list in _LISTS):
        yield from parts_of(array.flatten())
    elif pa.types.is_dictionary(kind):
        yield from parts_of(array.dictionary)
    elif pa.types.is_run_end_encoded(kind):
        yield from parts_of(array.values)
    elif pa.types.is_union(kind):
        for index in range(kind.num_fields):
            yield from parts_of(array.field(index))
    else:
        yield array


def _would_be_cut(array: pa.Array) -> bool:
    """Return whether *array* has intervals with sub-microsecond digits, which the engine's intervals lack."""
    if array.type == pa.duration("ns"):
        numbers = array.view(pa.int64())
    elif pa.types.is_interval(array.type):
        # 16 bytes: months, days, and nanoseconds.
        halves = pa.Array.from_buffers(pa.int64(), 2 * (array.offset + len(array)), [None, array.buffers()[1]])
        places = pa.array(range(2 * array.offset + 1, len(halves), 2), pa.int64())
        numbers = pc.if_else(array.is_null(), 0, halves.take(places))
    else:
        return False
    whole = pc.multiply(pc.divide(numbers, 1000), 1000)
    return bool(pc.any(pc.not_equal(numbers, whole)).as_py())


def _is_beyond_day(array: pa.Array) -> bool:
    """Return whether *array* has times outside a day, which ends with 24:00:00."""
    if not pa.types.is_time64(array.type):
        return False
    day = 24 * 60 * 60 * (10**6 if array.type.unit == "us" else 10**9)
    numbers = array.view(pa.int64())
    return bool(pc.any(pc.or_(pc.less(numbers, 0), pc.greater(numbers, day))).as_py())


def _is_beyond_dates(array: pa.Array) -> bool:
    """Return whether *array* has dates in milliseconds whose days do not fit 32 bits, which the engine truncates."""
    if not pa.types.is_date64(array.type):
        return False
    days = pc.abs(pc.divide(array.view(pa.int64()), 24 * 60 * 60 * 1000))
    return bool(pc.any(pc.greater(days, 2**31 - 1)).as_py())


def viewed(array: pa.Array, other: Callable[[pa.DataType], pa.DataType]) -> pa.Array:
    """Return *array* with *other* applied to each non-nested type. Nothing is copied."""
    kind = viewed_type(array.type, other)
    return array if kind == array.type else array.view(kind)


def viewed_type(kind: pa.DataType, other: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type that `viewed` gives an array of type *kind*."""

    def field(part: pa.Field) -> pa.Field:
        return part.with_type(viewed_type(part.type, other))

    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([field(part) for part in kind])
    return other(kind)
