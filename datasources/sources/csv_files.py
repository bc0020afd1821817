"""CSV files, as their parameters describe them."""

import codecs
import csv
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import duckdb

from datasources.errors import SourceError
from datasources.sources.formats import FileFormat, refuse_other_columns, refuse_repeated
from datasources.sources.pinned_file import PinnedFile
from datasources.sources.text_files import HEAD_BYTES, blocks, decoded, ends, marked_encoding, without_lines
from datasources.sql import identifier, literal, literals
from queryengine.manifest import Column
from runtimeconf.connectors.file_formats import NULL_SEPARATOR, has_time

logger = logging.getLogger(__name__)

_DELIMITERS = ",\t;|"

#: The rows in which a header that looks like data is searched for.
_HEADER_SAMPLE = 2048

#: Types that are found in text besides dates. With a `date_format`, dates have that format and no other.
_TYPES = ("BOOLEAN", "BIGINT", "HUGEINT", "DOUBLE", "TIME", "VARCHAR")

#: What the directives of a date format match, if not one or two digits.
_DATE_PATTERNS = {"Y": r"\d{4}", "f": r"\d+", **dict.fromkeys("aAbBp", r"[^\d\s]+"), "%": "%"}

_LINE_END = re.compile(rb"\r\n|\r|\n")

#: Dates with a time or without, whose year has two digits, or four.
_YEARS = tuple(rf"\s*\d{{1,2}}[^\d:]\d{{1,2}}[^\d:]\d{{{digits}}}(\D.*)?" for digits in (2, 4))

#: The characters that a thousands separator stands for: there are several spaces and apostrophes.
_ALIKE = {" ": " \u00a0\u202f", "'": "'\u2019"}

#: A warning about the file %s.
HEADER_LOOKS_LIKE_DATA = (
    "The first row of '%s' names the columns, but looks like data: set params.csv_has_header to false if it is data, "
    "else to true"
)
HEADER_LOOKS_LIKE_A_TITLE = (
    "The first row of '%s' names one column only: set params.skip_rows if it is a title, else params.csv_has_header to "
    "true"
)


class Csv(FileFormat):
    """
    CSV files with the same columns. Types come from all rows.

    Without parameters: RFC 4180 in UTF-8, with the names of the columns in the first line, and the delimiter that is
    most frequent in it: comma, tab, semicolon or bar.
    """

    name = "CSV"
    kind = "csv"
    reasons: ClassVar[Mapping[str, str]] = {
        "Invalid unicode": "it is not UTF-8: set params.encoding",
        "unterminated quote": "a quote is not closed, or something follows the closing one",
        "Expected Number of Columns": "it has more or fewer fields than the header",
        "state machine reached an invalid state": "the line ends are mixed, or a quote is misplaced",
        "Maximum line size": "it is longer than 2 MB",
        # Types come from all rows, so only a refresh_sql asks for one that does not fit.
        "converting column": "a value does not fit the type of its column",
        "Unexpected end of GZIP": "it was cut short",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check the first line of each file, as `Scan.bind` promises."""
        self._quote = self.params.get("csv_quote", '"')
        self._escape = self.params.get("csv_escape", self._quote)
        self._has_header = self.params.get("csv_has_header", "true") == "true"
        self._decode()
        self._names, delimiter = self._header(self.files[0])
        self._has_one_order = True
        for file in self.files[1:]:
            names, other_delimiter = self._header(file)
            refuse_other_columns(self._names, self.files[0], names, file)
            self._has_one_order = self._has_one_order and names == self._names
            if other_delimiter != delimiter:
                raise SourceError(f"'{file.shown}' has another delimiter than '{self.files[0].shown}'.")
        nulls = self._nulls(delimiter)
        self._dialect = [
            *("skip = 0", f"delim = {literal(delimiter)}", f"quote = {literal(self._quote)}", "comment = ''"),
            f"escape = {literal(self._escape)}",
            # Escapes outside of quotes are not strict to the engine.
            f"strict_mode = {'true' if self._quote or not self._escape else 'false'}",
            self.engine_compression,
        ]
        if self._escape and not self._quote:
            self._refuse_wider_rows(connection)
        self._dialect += [f"nullstr = {literals(nulls)}"] if nulls else []
        everything = ("sample_size = -1", "files_to_sniff = -1", "union_by_name = true")
        options = (*self._header_options(has_header=self._has_header), *everything)
        scan = self._scan(self.paths, *options, *self._types())
        if "%Y" in self.params.get("date_format", ""):
            scan = self._scan(self.paths, *options, *self._types(), *self._misread_dates(connection, scan, options))
        return self._ungrouped(connection, scan) if "thousands_separator" in self.params else scan

    def accept(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> None:
        """Check names and dates, and warn of a first line that is a title, or whose fields have the types of data."""
        super().accept(connection, columns)
        dated = [column.name for column in columns if column.type in {"DATE", "TIMESTAMP"}]
        if dated and "date_format" not in self.params:
            self._refuse_mixed_dates(connection, dated)
        unnamed = sum(name == f"column{index}" for index, name in enumerate(self._names))
        if "csv_has_header" not in self.params and unnamed == len(self._names) - 1 > 1:
            logger.warning(HEADER_LOOKS_LIKE_A_TITLE, self.files[0].shown)
        typed = {column.name.lower() for column in columns if column.type != "VARCHAR"}
        if "csv_has_header" in self.params or not typed:
            return
        options = (*self._header_options(has_header=False), *self._types(), f"sample_size = {_HEADER_SAMPLE}")
        texts = _columns_of(connection, self._scan(self.paths[:1], *options), "VARCHAR")
        if typed.isdisjoint(map(str.lower, texts)):
            logger.warning(HEADER_LOOKS_LIKE_DATA, self.files[0].shown)

    def details(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """Read the columns as text if the engine could not tell their types: only then does it name the line."""
        if "sniffing" not in str(error):
            return str(error)
        for path in self.paths:
            scan = self._scan([path], *self._texts())
            try:
                connection.execute(f"SELECT count(*) FROM {scan}").fetchall()  # noqa: S608 - quoted by us
            except duckdb.InvalidInputException as exact:
                return str(exact)
        return str(error)

    def _decode(self) -> None:
        """Keep copies of the files in UTF-8 without the lines to skip, unless they are like that already."""
        self.skipped_lines = int(self.params.get("skip_rows", 0))
        starts = [next(self._blocks(file), b"") for file in self.files]
        encodings = [self.params.get("encoding") or marked_encoding(start) or "utf-8" for start in starts]
        # The engine does not see a quote after a byte order mark.
        quote = re.escape(self._quote.encode())
        special = re.escape((self.params.get("csv_delimiter", "") + _DELIMITERS).encode())
        unseen = re.compile(codecs.BOM_UTF8 + quote + b"[^" + quote + b"]*[\r\n" + special + b"]") if quote else None
        is_unseen = unseen is not None and any(map(unseen.match, starts))
        if self.skipped_lines or is_unseen or set(encodings) != {"utf-8"}:
            self._copy(
                without_lines(decoded(self._blocks(file), encoding, file.shown), self.skipped_lines, file.shown)
                for file, encoding in zip(self.files, encodings, strict=True)
            )

    def _blocks(self, file: PinnedFile) -> Iterator[bytes]:
        return blocks(file, self.compression, self.deadline)

    def _copy(self, contents: Iterable[Iterator[bytes]]) -> None:
        """Read *contents*, those of each file, instead of the files."""
        self.use([self.space.save(each, file.shown) for each, file in zip(contents, self.files, strict=True)])
        self.compression = "UNCOMPRESSED"

    def _header(self, file: PinnedFile) -> tuple[list[str], str]:
        """Return the names of the columns, and the delimiter."""
        head, _ = ends(file, self.compression, self.deadline)
        record = self._first_record(head)
        line = f"'{file.shown}', line {1 + self.skipped_lines}"
        if record is None:
            raise SourceError(f"{line}: a quote is not closed, or the line is longer than 2 MB.")
        # The engine takes the first line end of the file for that of all lines.
        inside, end = set(_LINE_END.findall(record)), _LINE_END.match(head, len(record))
        if end is not None and not inside <= {end[0]}:
            raise SourceError(
                f"{line}: it has a line end in quotes that differs from those of the lines. If it names the columns, "
                "set params.skip_rows to its number of lines, and params.csv_has_header to false."
            )
        if b"\0" in record:
            raise SourceError(f"{line}: it is not text, or in UTF-16: set params.encoding.")
        try:
            header = record.decode("utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"{line}: it is not UTF-8: set params.encoding.") from None
        if re.fullmatch('"?sep=.?"?', header):
            raise SourceError(f"{line}: it names the delimiter, as Excel has it: set params.skip_rows.")
        if not header.strip():
            raise SourceError(f"'{file.shown}' has no columns: its first line must name them.")
        quote = re.escape(self._quote)
        outside_quotes = re.sub(f"{quote}[^{quote}]*{quote}", "", header) if quote else header
        delimiter = self.params.get("csv_delimiter") or max(_DELIMITERS, key=outside_quotes.count)
        try:
            fields = next(
                csv.reader(
                    io.StringIO(header, newline=""),
                    delimiter=delimiter,
                    quotechar=self._quote or None,
                    quoting=csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
                    escapechar=self._escape if self._escape != self._quote else None,
                )
            )
        except csv.Error:
            raise SourceError(f"{line}: it does not name columns.") from None
        if not self._has_header:
            return [f"column{index}" for index in range(len(fields))], delimiter
        # Name a field without a name (an index column, a delimiter at the end) as the engine does.
        names = [field.strip() or f"column{index}" for index, field in enumerate(fields)]
        hint = "each column needs a name of its own; without a header line, set params.csv_has_header to false"
        refuse_repeated(names, file, hint)
        return names, delimiter

    def _first_record(self, head: bytes) -> bytes | None:
        """Return the first line, ignoring line ends between quotes; None if it does not end."""
        quote, escape = self._quote.encode(), self._escape.encode()
        escaped = re.escape(escape) + b".|" if escape != quote else b""
        quoted = False
        for match in re.finditer(escaped + (re.escape(quote) + b"|" if quote else b"") + rb"[\r\n]", head, re.DOTALL):
            if match[0] == quote:
                quoted = not quoted
            elif not quoted and len(match[0]) == 1:
                return head[: match.start()]
        return None if quoted or len(head) >= HEAD_BYTES else head

    def _refuse_wider_rows(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse rows with more fields than the first line: the engine drops these unless it is strict."""
        # Beyond the last column, only a field that the row does not have is null.
        options = [*self._texts(1), "null_padding = true", r"nullstr = '\0'"]
        for file in self.files:
            scan = self._scan([file.path], *options)
            query = f"SELECT count(*) FROM {scan} WHERE c{len(self._names)} IS NOT NULL"  # noqa: S608 - quoted by us
            if connection.execute(query).fetchone() != (0,):
                raise SourceError(f"'{file.shown}': a row has more fields than the first line.")

    def _texts(self, more: int = 0) -> list[str]:
        """Return the options for columns c0, c1 and so on, which are texts; there are *more* than the file has."""
        columns = ", ".join(f"{literal(f'c{index}')}: 'VARCHAR'" for index in range(len(self._names) + more))
        return [f"header = {self._has_header}", "auto_detect = false", f"columns = {{{columns}}}"]

    def _scan(self, paths: Sequence[str], *options: str) -> str:
        return f"read_csv({', '.join([literals(paths), *self._dialect, *options])})"

    def _header_options(self, *, has_header: bool) -> list[str]:
        # By itself the engine keeps some spaces around names.
        names = [f"names = {literals(self._names)}"] if self._has_one_order or not has_header else []
        return [f"header = {has_header}", *names]

    def _nulls(self, delimiter: str) -> list[str]:
        r"""
        Return the texts of nulls for the engine; none for its default.

        The engine takes no null that holds the escape, such as `\N` of MySQL: these become empty fields first.
        """
        values = list(filter(None, self.params.get("null_values", "").split(NULL_SEPARATOR)))
        if any(delimiter in value for value in values):
            raise SourceError(f"'{self._shown}': one of params.null_values holds the delimiter.")
        escaped = [value for value in values if self._escape and self._escape in value]
        if escaped:
            self._copy(_emptied(self._blocks(file), escaped, delimiter) for file in self.files)
        return ["", *(value for value in values if value not in escaped)] if values else []

    def _types(self) -> list[str]:
        """Return the options for the types of columns."""
        options = []
        if "decimal_separator" in self.params:
            options = [f"decimal_separator = {literal(self.params['decimal_separator'])}"]
        if (date_format := self.params.get("date_format")) is not None:
            option, type_ = ("timestampformat", "TIMESTAMP") if has_time(date_format) else ("dateformat", "DATE")
            options += [f"{option} = {literal(date_format)}", f"auto_type_candidates = {literals([*_TYPES, type_])}"]
        return options

    def _misread_dates(self, connection: duckdb.DuckDBPyConnection, scan: str, options: Sequence[str]) -> Sequence[str]:
        """Return the option that makes columns text whose years lack digits: the engine takes 26 for the year 26."""
        # Every second part is the letter of a directive.
        parts = enumerate(re.split("%-?(.)", self.params["date_format"]))
        date = "".join(_DATE_PATTERNS.get(part, r"\d{1,2}") if at % 2 else re.escape(part) for at, part in parts)
        texts = self._scan(self.paths, *options, "all_varchar = true")
        dated = _columns_of(connection, scan, "DATE", "TIMESTAMP")
        good = _matching(connection, texts, dated, rf"\s*{date}\s*")
        types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in dated if name not in good)
        return [f"types = {{{types}}}"] if types else []

    def _refuse_mixed_dates(self, connection: duckdb.DuckDBPyConnection, dated: Sequence[str]) -> None:
        """
        Refuse dates that the engine reads in different ways.

        It takes 26 for the year 26 if another year of the file has four digits, and finds out for each file alone
        whether 03/04/2026 is in March or in April.
        """
        options = (*self._header_options(has_header=self._has_header), "sample_size = -1")
        texts = self._scan(self.paths, *options, "union_by_name = true", "all_varchar = true")
        years = [
            " AND ".join(f"bool_or(regexp_full_match({identifier(name)}, {literal(year)}))" for year in _YEARS)
            for name in dated
        ]
        found = connection.execute(f"SELECT {', '.join(years)} FROM {texts}").fetchone() or ()  # noqa: S608 - quoted
        for name, has_both in zip(dated, found, strict=True):
            if has_both:
                raise SourceError(
                    f"'{self._shown}': the column '{name}' has years of two and of four digits: set params.date_format."
                )
        formats: dict[str, tuple[str, PinnedFile]] = {}
        for file in self.files if len(self.files) > 1 else ():
            arguments = ", ".join([literal(file.path), *self._dialect, *options, *self._types()])
            query = f"SELECT DateFormat FROM sniff_csv({arguments})"  # noqa: S608 - quoted by us
            (format_,) = connection.execute(query).fetchone() or (None,)
            if format_ is not None:
                other, first = formats.setdefault(re.sub("%[dmy]", "", format_), (format_, file))
                if other != format_:
                    raise SourceError(
                        f"The dates of '{file.shown}' could have another order of day, month and year than those of "
                        f"'{first.shown}': set params.date_format."
                    )

    def _ungrouped(self, connection: duckdb.DuckDBPyConnection, scan: str) -> str:
        """
        Return *scan* with numbers for text columns in which every value is a number, some with grouped digits.

        The engine would drop separators anywhere, so that 1.5 became 15.
        """
        separator, decimal = self.params["thousands_separator"], self.params.get("decimal_separator", ".")
        group = f"[{re.escape(_ALIKE.get(separator, separator))}]"
        # A leading zero means a code, not a number, as everywhere else.
        number = rf"\s*[-+]?(0|[1-9]\d{{0,2}}({group}\d{{3}})+|[1-9]\d*)({re.escape(decimal)}\d*)?\s*"
        integer = rf"\s*[-+]?(0|[1-9]\d{{0,2}}({group}\d{{3}}){{0,5}}|[1-9]\d{{0,17}})\s*"
        numbers = _matching(connection, scan, _columns_of(connection, scan, "VARCHAR"), number)
        integers = _matching(connection, scan, numbers, integer)
        casts = [
            f"CAST(replace(regexp_replace({column}, {literal(group)}, '', 'g'), {literal(decimal)}, '.') "
            f"AS {'BIGINT' if name in integers else 'DOUBLE'}) AS {column}"
            for name, column in ((name, identifier(name)) for name in numbers)
        ]
        return f"(SELECT * REPLACE ({', '.join(casts)}) FROM {scan})" if casts else scan  # noqa: S608 - quoted by us


def _columns_of(connection: duckdb.DuckDBPyConnection, scan: str, *types: str) -> list[str]:
    """Return the names of the columns of *scan* that have one of *types*."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()  # noqa: S608 - quoted by us
    return [name for name, type_, *_ in described if type_ in types]


def _matching(connection: duckdb.DuckDBPyConnection, scan: str, columns: Sequence[str], pattern: str) -> list[str]:
    """Return those of *columns*, texts, in which there are values and *pattern* matches each."""
    if not columns:
        return []
    checks = ", ".join(f"bool_and(regexp_full_match({identifier(name)}, {literal(pattern)}))" for name in columns)
    found = connection.execute(f"SELECT {checks} FROM {scan}").fetchone() or ()  # noqa: S608 - quoted by us
    return [name for name, matches in zip(columns, found, strict=True) if matches]


def _emptied(contents: Iterable[bytes], values: Sequence[str], delimiter: str) -> Iterator[bytes]:
    """Yield *contents* without the fields that are one of *values*, unquoted."""
    end = re.escape(delimiter.encode())
    either = b"|".join(re.escape(value.encode()) for value in values)
    field = re.compile(rb"(?:^|(?<=" + end + rb"))(?:" + either + rb")(?=" + end + rb"|\r?$)", re.MULTILINE)
    unfinished = b""
    for block in contents:
        whole, newline, unfinished = (unfinished + block).rpartition(b"\n")
        yield field.sub(b"", whole + newline)
    yield field.sub(b"", unfinished)
