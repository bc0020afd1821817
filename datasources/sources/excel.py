"""
Excel workbooks (`.xlsx`): one sheet per workbook, or a range in it.

openpyxl reads row by row, so memory use does not depend on the size of the sheet. Each row is written to the scratch
space as CSV, which the engine reads with the types of the cells.
"""

import codecs
import csv
import io
import logging
import math
import mmap
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from functools import reduce
from importlib import import_module
from itertools import chain
from typing import Any, BinaryIO, ClassVar

import duckdb

from datasources.errors import SnapshotError, SourceError
from datasources.sources.csv_files import HEADER_LOOKS_LIKE_DATA
from datasources.sources.formats import UNNAMED, FileFormat, refuse_other_columns, refuse_repeated
from datasources.sources.pinned_file import PinnedFile
from datasources.sources.scratch_files import too_large
from datasources.sql import identifier, literal
from runtimeconf.file_formats import EXCEL

logger = logging.getLogger(__name__)

#: The maximum number of rows in a sheet.
_MAX_ROWS = 1_048_576
#: The maximum bytes kept in memory: strings and styles. Sheets are not kept.
_MAX_KEPT_BYTES = 128 * 1024 * 1024
_STREAMED = re.compile(r"/?xl/(?:worksheets|media|embeddings)/")

#: The size of a block of rows, in characters.
_BLOCK_CHARACTERS = 256 * 1024
#: The number of rows read between two deadline checks.
_ROWS_IN_BLOCK = 1000

#: The maximum number of sheets in an error.
_MAX_NAMED_SHEETS = 5

#: The results of failed formulas.
_ERRORS = frozenset(
    {
        *("#N/A", "#DIV/0!", "#REF!", "#NAME?", "#NULL!", "#NUM!", "#VALUE!", "#SPILL!", "#CALC!", "#FIELD!"),
        *("#BLOCKED!", "#CONNECT!", "#BUSY!", "#UNKNOWN!", "#GETTING_DATA"),
    }
)

#: The escape in workbooks for a UTF-16 code unit that XML does not preserve, such as a carriage return, and for an
#: underscore that would look like an escape. The library does not decode escapes.
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_SURROGATE = re.compile("[\ud800-\udfff]")

#: ISO 8601 dates and times in cells. The library truncates them to milliseconds and drops time zones. Python 3.14 reads
#: 24:00 as 00:00.
_ISO = re.compile(r"(?:\d{4}-\d\d-\d\d)?(?:T?(?!24)\d\d:\d\d(?::\d\d(?:\.\d{1,6}0*)?)?)?Z?")

#: The numbers of date formats in Chinese, Japanese and Korean editions, which the library does not know.
_ASIAN_DATES = frozenset([*range(27, 37), *range(50, 59)])

#: The literal text in a number format: escaped, skipped, repeated or quoted.
_LITERAL = re.compile(r'[\\_*].|"[^"]*"?', re.DOTALL)

#: Excel's number for 1900-02-29, a day that never existed.
_NO_DAY = 60

#: Excel's integers are floating-point numbers, exact up to this value. Other programs write more digits.
_MAX_INTEGER = 2**53

_MAX_HUGEINT = 10**38

#: The first bytes of encrypted workbooks and older file versions, and a marker that only encrypted ones contain.
_COMPOUND_FILE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")

#: The type of a column whose values have several types.
_WIDER = {
    frozenset({"BIGINT", "DOUBLE"}): "DOUBLE",
    frozenset({"BIGINT", "HUGEINT"}): "HUGEINT",
    frozenset({"DATE", "TIMESTAMP"}): "TIMESTAMP",
}


class _NoDate(float):
    """A number in a cell with a date format that is not a valid date."""


class _Table:
    """The table in a sheet: the column `names`, and for each column the `types` of its values."""

    def __init__(self, first: Sequence[Any], shown: str, nulls: frozenset[str], *, has_header: bool) -> None:
        self._shown = shown
        self._nulls = nulls | _ERRORS | {""}
        #: The number of cells with an error.
        self.errors = 0
        self.types: list[set[str]] = [set() for _ in first]
        found = [self._text(value) for value in first]
        #: The types of the first row if it were data.
        self.first_types = [type_ for type_, _ in found]
        self.is_named = [has_header and text.strip() != "" for _, text in found]
        pairs = zip(self.is_named, found, strict=True)
        self.names = [text.strip() if named else f"column{at}" for at, (named, (_, text)) in enumerate(pairs)]

    def texts(self, row: Sequence[Any], number: int) -> list[str]:
        """
        Return the strings of a *row* for the engine. *number* is the row number in the sheet.

        Raises:
            SourceError: The row is wider than the first row.
        """
        if any(value is not None for value in row[len(self.names) :]):
            raise SourceError(
                f"'{self._shown}', row {number}: it has more cells than the first one: set params.range, or "
                "params.skip_rows if a title comes first."
            )
        texts = [""] * len(self.names)
        for index, value in enumerate(row[: len(self.names)]):
            if value is not None:
                if isinstance(value, float) and not math.isfinite(value):
                    raise SourceError(
                        f"'{self._shown}', row {number}: the number in the column '{self.names[index]}' exceeds "
                        "Excel's range: correct it, or store it as text."
                    )
                if isinstance(value, _NoDate):
                    raise SourceError(
                        f"'{self._shown}', row {number}: the column '{self.names[index]}' has the date number "
                        f"{value:.15g}, which is not a date from 1900-01-01 to 9999-12-31: correct it, or "
                        "format the cell as a number."
                    )
                type_, texts[index] = self._text(value)
                if type_:
                    self.types[index].add(type_)
        return texts

    def _text(self, value: Any) -> tuple[str, str]:
        """Return the type of a value and its text for the engine. Both are empty for a null."""
        type_, text = _typed(value)
        if text not in self._nulls:
            return type_, text
        self.errors += text in _ERRORS
        return "", ""


class Excel(FileFormat):
    """Workbooks whose sheets or ranges have the same columns. The first row has the column names."""

    name = "Excel"
    kind = "xlsx"
    reasons: ClassVar = {"Maximum line size": "a row is longer than 2 MB"}

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Copy the rows of each file; see `Scan.bind`."""
        tables: list[_Table] = []
        copies = []
        for file in self.files:
            table, lines = self._open(file)
            copies.append(self.space.save(lines, file.shown))
            unnamed = [] if all(table.is_named) or not any(table.is_named) else [f"{UNNAMED}: name each column"]
            refuse_repeated(table.names, file, *unnamed)
            refuse_other_columns(tables[0].names if tables else table.names, self.files[0], table.names, file)
            tables.append(table)
            if table.errors:
                logger.warning("'%s' has %d cells with an error such as #N/A, read as null", file.shown, table.errors)
        found: dict[str, set[str]] = {name.lower(): set() for name in tables[0].names}
        for table in tables:
            for name, seen in zip(table.names, table.types, strict=True):
                found[name.lower()] |= seen
        types = {name: _type(seen) for name, seen in found.items()}
        self._names = [
            name
            for name, is_named in zip(tables[0].names, tables[0].is_named, strict=True)
            # A column without a name and without values is a margin.
            if is_named or found[name.lower()]
        ]
        if not self._names:
            raise SourceError(f"'{self._shown}' has no columns.")
        self._warn(tables[0], types)
        self.use(copies)
        selected = ", ".join(map(identifier, self._names))
        return "({})".format(
            " UNION ALL BY NAME ".join(
                f"SELECT {selected} FROM {_scan(file, table, types)}"  # noqa: S608 - quoted by us
                for file, table in zip(copies, tables, strict=True)
            )
        )

    def details(self, _connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """Leave out the line number, which refers to a copy."""
        return str(error).replace("on Line: ", "")

    def other_reason(self, _text: str) -> str:
        """Return a general reason. The engine's message is about a copy that this class wrote."""
        return "its rows cannot be read"

    def _warn(self, table: _Table, types: Mapping[str, str]) -> None:
        """Warn if the fields of the header have the types of their columns, because the header may be data."""
        typed = [
            first
            for name, first in zip(table.names, table.first_types, strict=True)
            if types[name.lower()] != "VARCHAR"
        ]
        if self.params.csv_has_header is None and typed and not {"", "VARCHAR"} & set(typed):
            logger.warning(HEADER_LOOKS_LIKE_DATA, self.files[0].shown)

    def _open(self, file: PinnedFile) -> tuple[_Table, Iterator[bytes]]:
        """Return the table in *file*, and its rows as CSV. Reading the rows completes the table's types."""
        rows = self._rows(file)
        number, first = next(rows, (0, ()))
        if self.params.range is None:
            first = first[: max((at for at, value in enumerate(first, 1) if value is not None), default=0)]
        if not first:
            raise SourceError(f"'{file.shown}' contains no data.")
        nulls = frozenset(self.params.null_values or [""])
        has_header = self.params.csv_has_header is not False
        table = _Table(first, file.shown, nulls, has_header=has_header)
        return table, _lines(rows if has_header else chain([(number, first)], rows), table)

    def _rows(self, file: PinnedFile) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the number and the values of each non-empty row."""
        skipped = self.params.skip_rows or 0
        with open(file.path, "rb") as raw, _explained(file):  # noqa: PTH123 - a descriptor's path
            self._refuse_excess(raw, file)
            book = _library(file).load_workbook(raw, read_only=True, data_only=True, keep_links=False)
            # Cells refer to their style by its position.
            styles = enumerate(book._cell_styles)  # noqa: SLF001 (the library has no option for it)
            book._date_formats |= {at for at, style in styles if style.numFmtId in _ASIAN_DATES}  # noqa: SLF001
            sheet = self._sheet(book, file)
            sheet.reset_dimensions()  # Some programs write wrong dimensions.
            area = _area(self.params.range) if self.params.range is not None else {}
            top = area.get("min_row", 1)
            for number, row in enumerate(sheet.iter_rows(**area, values_only=True), top):
                if number > _MAX_ROWS:
                    raise SourceError(f"'{file.shown}' has more than {_MAX_ROWS:,} rows, the maximum for a sheet.")
                if number % _ROWS_IN_BLOCK == 0:
                    self.deadline.check()
                if number >= top + skipped and any(value is not None for value in row):
                    yield number, row

    def _refuse_excess(self, raw: BinaryIO, file: PinnedFile) -> None:
        """Refuse a workbook that is much larger than its file, before reading its content."""
        with zipfile.ZipFile(raw) as parts:
            sizes = {part.filename: part.file_size for part in parts.infolist()}
        if sum(sizes.values()) > self.space.left_bytes:
            raise too_large(file.shown, "query.temp_directory_limit")
        if sum(size for name, size in sizes.items() if not _STREAMED.match(name)) > _MAX_KEPT_BYTES:
            raise SourceError(f"'{file.shown}' has more than {_MAX_KEPT_BYTES // 1024**2} MiB of strings and styles.")

    def _sheet(self, book: Any, file: PinnedFile) -> Any:
        """Return the sheet named in `sheet`, or the first visible sheet."""
        wanted = self.params.sheet
        if not book.worksheets:
            raise SourceError(f"'{file.shown}' has no sheet: save it as Excel Workbook, not as Strict Open XML.")
        for sheet in book.worksheets:
            if sheet.title == wanted or (wanted is None and sheet.sheet_state == "visible"):
                return sheet
        if wanted is None:
            raise SourceError(f"'{file.shown}' has no visible sheet: set params.sheet.")
        names = ", ".join(f"'{sheet.title}'" for sheet in book.worksheets[:_MAX_NAMED_SHEETS])
        raise SourceError(f"'{file.shown}' has no sheet '{wanted}', only {names}.")


def _typed(value: Any) -> tuple[str, str]:  # noqa: PLR0911 (a table of types)
    """Return the type of a value and its text for the engine. Both are empty for None."""
    match value:
        case str():
            return "VARCHAR", _unescaped(value)
        case bool():
            return "BOOLEAN", str(value).lower()
        case int() if abs(value) > _MAX_INTEGER:
            return ("HUGEINT" if abs(value) < _MAX_HUGEINT else "VARCHAR"), str(value)
        case int() | float():
            is_whole = abs(value) <= _MAX_INTEGER and value == int(value)
            return ("BIGINT", str(int(value))) if is_whole else ("DOUBLE", repr(float(value)))
        case datetime():
            return ("DATE", str(value.date())) if value.time() == time() else ("TIMESTAMP", str(value))
        case date():
            return "DATE", str(value)
        case time():
            return "TIME", str(value)
        case timedelta():
            return "INTERVAL", f"{value.days} days {value - timedelta(days=value.days)}"
        case _:
            return "", ""


def _library(file: PinnedFile) -> Any:
    """Import the library. Startup refuses a missing library only if the configuration shows that it is needed."""
    if not EXCEL.is_installed:
        raise SourceError(f"'{file.shown}' needs a library from the sources extra: {EXCEL.install_command}.")
    library = import_module(EXCEL.module)
    reader: Any = import_module("openpyxl.worksheet._reader")  # The library has no option for this either.
    reader.from_ISO8601, reader.from_excel = _moment, _date
    styles, numbers = import_module("openpyxl.styles.stylesheet"), import_module("openpyxl.styles.numbers")
    for name in ("is_date_format", "is_timedelta_format"):
        setattr(styles, name, _without_literals(getattr(numbers, name)))
    books: Any = import_module("openpyxl.reader.excel")
    books.read_string_table = _strings
    return library


def _without_literals(test: Callable[[str], bool]) -> Callable[[str | None], bool]:
    """Return *test* for number formats without their literal text, in which the library misreads a semicolon."""
    return lambda code: test(_LITERAL.sub("", code or ""))


def _strings(xml: Any) -> list[str]:
    """Return the shared strings of a workbook as written. The library removes `x005F_`, part of an escape."""
    text, functions = import_module("openpyxl.cell.text"), import_module("openpyxl.xml.functions")
    tag = f"{{{import_module('openpyxl.xml.constants').SHEET_MAIN_NS}}}si"
    found = []
    for _, node in functions.iterparse(xml):
        if node.tag == tag:
            found.append(text.Text.from_tree(node).content)
            node.clear()
    return found


def _date(number: float, epoch: datetime, *, timedelta: bool = False) -> Any:
    """Return the date, time or duration of a *number*. The library mishandles numbers that are not dates."""
    calendar: Any = import_module("openpyxl.utils.datetime")
    # Excel has 1900-02-29, a day that never existed, and has no day for a negative number.
    if not timedelta and (number < 0 or (epoch == calendar.WINDOWS_EPOCH and int(number) == _NO_DAY)):
        return _NoDate(number)
    try:
        return calendar.from_excel(number, epoch, timedelta=timedelta)
    except (OverflowError, ValueError):
        return _NoDate(number)


def _moment(text: str) -> Any:
    """Return the date or time in a cell of that type, or *text* if Python cannot represent it exactly."""
    plain = text.removesuffix("Z")
    with suppress(ValueError):
        if text.startswith("P"):
            return import_module("openpyxl.utils.datetime").from_ISO8601(text)
        if not _ISO.fullmatch(text):
            return text
        if ":" not in plain:
            return date.fromisoformat(plain)
        return datetime.fromisoformat(plain) if "-" in plain else time.fromisoformat(plain.removeprefix("T"))
    return text


def _unescaped(text: str) -> str:
    """Replace the escapes in *text* with their characters. Lone surrogates are left unchanged."""
    if "_x" not in text:
        return text
    found = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text).encode("utf-16", "surrogatepass")
    return _SURROGATE.sub(lambda match: f"_x{ord(match[0]):04X}_", found.decode("utf-16", "surrogatepass"))


@contextmanager
def _explained(file: PinnedFile) -> Iterator[None]:
    """Suppress the library's warnings, and convert its errors of any type to `SourceError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (SourceError, SnapshotError, MemoryError):
        raise
    except Exception as exc:  # A damaged file can cause any error.
        raise SourceError(f"'{file.shown}' {_reason(file)}.") from exc


def _reason(file: PinnedFile) -> str:
    with mmap.mmap(file.descriptor, 0, prot=mmap.PROT_READ) as content:
        if content[: len(_COMPOUND_FILE)] != _COMPOUND_FILE:
            return "is not an Excel workbook (.xlsx), or is damaged"
        if content.find(_ENCRYPTED) >= 0:
            return "is protected with a password: save it without one"
    return "is a workbook of Excel 2003 or older (.xls): save it as .xlsx"


def _area(text: str) -> dict[str, int]:
    """Return the bounds of a range such as B3:F200, B3:F or B:F."""
    letters, digits = re.findall("[A-Z]+", text), re.findall("[A-Z]([0-9]*)", text)
    left, right = (reduce(lambda number, letter: 26 * number + ord(letter) - 64, word, 0) for word in letters)
    top, bottom = digits
    return {"min_col": left, "max_col": right, "min_row": int(top or 1), "max_row": int(bottom or _MAX_ROWS)}


def _lines(rows: Iterable[tuple[int, Sequence[Any]]], table: _Table) -> Iterator[bytes]:
    """Yield *rows* of *table* as CSV, in blocks."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")  # The writer quotes strings that contain either character.
    yield codecs.BOM_UTF8  # The engine skips it. Otherwise it would skip the same character in the first cell.
    for number, row in rows:
        writer.writerow(table.texts(row, number))
        if buffer.tell() > _BLOCK_CHARACTERS:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()


def _scan(file: PinnedFile, table: _Table, types: Mapping[str, str]) -> str:
    columns = ", ".join(f"{literal(name)}: '{types[name.lower()]}'" for name in table.names)
    return (
        f"read_csv([{literal(file.path)}], columns = {{{columns}}}, header = false, delim = ',', quote = '\"', "
        "escape = '\"', new_line = '\\r\\n', auto_detect = false)"
    )


def _type(types: AbstractSet[str]) -> str:
    """Return the type of a column whose values have *types*; text if no other type fits."""
    return next(iter(types)) if len(types) == 1 else _WIDER.get(frozenset(types), "VARCHAR")
