"""Reads CSV files in the format that their parameters describe."""

import codecs
import csv
import io
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import duckdb

from datasources.errors import SourceError
from datasources.sources.csv_quotes import Counted, first_record, needs_one_thread
from datasources.sources.exact_types import (
    CHECKED,
    TEXT,
    Found,
    Place,
    Property,
    answers,
    by_format,
    exact_types,
    formats_that_keep,
    matches,
    types_that_keep,
)
from datasources.sources.formats import UNNAMED, FileFormat, refuse_other_columns, refuse_repeated
from datasources.sources.pinned_file import PinnedFile
from datasources.sources.text_files import blocks, decoded, emptied, ends, marked_encoding, without_lines
from datasources.sql import identifier, literal, literals
from queryengine.manifest import Column
from runtimeconf.file_formats import has_time

logger = logging.getLogger(__name__)

_DELIMITERS = ",\t;|"

#: The number of rows searched for problems that deserve a warning.
_SAMPLE = 2048
#: The number of rows from which the engine proposes types.
_SNIFFED = 20480

#: Types that the engine may propose. Dates are excluded because the engine would look for one date format in all
#: columns.
_TYPES = ("BOOLEAN", "BIGINT", "HUGEINT", "DOUBLE", "TIME", TEXT)

#: The first characters of non-text values.
_VALUE = re.compile(r"[-+.\d]|(?i:true|false|nan|inf|epoch)")

_LINE_END = re.compile(rb"\r\n|\r|\n")

#: Types that the engine reads from text in the same way as `exact_types`.
_READ_BY_THE_ENGINE = frozenset(
    {TEXT, "BOOLEAN", "BIGINT", "HUGEINT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}
)

#: Patterns of non-text values, and of dates.
_LIKE_VALUES = r"\s*(?:[-+.]?\d.*|(?i:-?infinity|true|false))\s*"
_LIKE_DATES = r"\s*(?:[-+]?\d{1,6}[-/.]\d{1,2}[-/.]\d{1,4}(?:[ T].*)?|(?i:-?infinity))\s*"

#: Date formats other than ISO 8601. A format is used if it is the only one that fits all values of a column.
_DAYS = tuple(part.replace("/", mark) for mark in "/-." for part in ("%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d"))
_FORMATS = dict.fromkeys(_DAYS, "DATE") | {
    f"{day} {clock}": "TIMESTAMP" for day in _DAYS for clock in ("%H:%M:%S", "%I:%M:%S %p")
}

#: Types that are tried if the engine proposes text for a column, and the types to propose if they fit.
_TRIED = {
    type_: type_ for type_ in ("BOOLEAN", "BIGINT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
} | {
    "TIMESTAMP_NS": "TIMESTAMP",
    "TIMESTAMPTZ_NS": "TIMESTAMP WITH TIME ZONE",
    "TIME_NS": "TIME",
    "HUGEINT": "HUGEINT",
}
_AS_TEXT = Found(TEXT)
#: Characters that count as the same thousands separator: several spaces, and several apostrophes.
_ALIKE = {" ": " \u00a0\u202f", "'": "'\u2019"}

#: Warnings about the file %s.
HEADER_LOOKS_LIKE_DATA = (
    "The first row of '%s' is used as the header, but looks like data: set params.csv_has_header to false if it "
    "is data, or to true if not"
)
HEADER_LOOKS_LIKE_A_TITLE = (
    "The first row of '%s' has only one column name: set params.skip_rows if it is a title, or params.csv_has_header "
    "to true if not"
)
UNCERTAIN_DATES = (
    "The column %s of '%s' looks like dates, but no single format fits all values: it stays text unless "
    "params.date_format sets their format"
)
COMMAS_IN_NUMBERS = (
    "The column %s of '%s' looks like numbers with a comma but is read as text: set params.decimal_separator or "
    "params.thousands_separator"
)
#: Numbers with an optional decimal comma, or with commas between groups of digits.
_WITH_COMMA = rf"\s*[-+]?(?:\d+(?:[.{''.join(_ALIKE.values())}]\d{{3}})*(?:,\d+)?|\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?)\s*"


class Csv(FileFormat):
    """
    CSV files with the same columns. The column types are determined from all rows.

    The default is RFC 4180 in UTF-8, with column names in the first line. The delimiter is whichever of comma, tab,
    semicolon and vertical bar is most frequent in that line.
    """

    name = "CSV"
    kind = "csv"
    reasons: ClassVar[Mapping[str, str]] = {
        "Invalid unicode": "it is not UTF-8: set params.encoding",
        "unterminated quote": "a quote is not closed, or is followed by other characters",
        "Expected Number of Columns|to 'ENUM": "it has more or fewer fields than the header",
        "state machine reached an invalid state": "the line endings are mixed, or a quote is misplaced",
        "Maximum line size": "it is longer than 2 MB",
        # Types come from all rows, so only a refresh_sql can request a type that does not fit.
        "converting column": "a value does not fit the type of its column",
        "Unexpected end of GZIP": "it was cut short",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check the first line of each file; see `Scan.bind`."""
        self._quote = '"' if self.params.csv_quote is None else self.params.csv_quote
        self._escape = self._quote if self.params.csv_escape is None else self.params.csv_escape
        self._has_header = self.params.csv_has_header is not False
        self._decode()
        self._names, delimiter = self._header(self.files[0])
        self._orders = [self._names]
        for file in self.files[1:]:
            names, other_delimiter = self._header(file)
            refuse_other_columns(self._names, self.files[0], names, file)
            self._orders.append(names)
            if other_delimiter != delimiter:
                raise SourceError(f"'{file.shown}' has a different delimiter than '{self.files[0].shown}'.")
        nulls = self._nulls(delimiter)
        self._dialect = [
            *("skip = 0", f"delim = {literal(delimiter)}", f"quote = {literal(self._quote)}", "comment = ''"),
            f"escape = {literal(self._escape)}",
            # The engine's strict mode does not allow escapes outside quotes.
            f"strict_mode = {'true' if self._quote or not self._escape else 'false'}",
            self.engine_compression,
        ]
        counted = [self._counted(connection, file, delimiter) for file in self.files]
        if self._quote == self._escape != "" and needs_one_thread(
            connection, self._scan(self.paths, *self._texts()), counted
        ):
            self._dialect.append("parallel = false")
        self._dialect += [f"nullstr = {literals(nulls)}"] if nulls else []
        return self._typed(connection)

    def accept(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> None:
        """Check names and dates, and warn if the first line is a title or its fields look like data."""
        super().accept(connection, columns)
        for said, names in (
            (UNCERTAIN_DATES, self._uncertain),
            (COMMAS_IN_NUMBERS, self._with_commas(connection, columns)),
        ):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                logger.warning(said, f"'{names[0]}'{more}", self._shown)
        unnamed = sum(name == f"column{index}" for index, name in enumerate(self._names))
        if self.params.csv_has_header is None and unnamed == len(self._names) - 1 > 1:
            logger.warning(HEADER_LOOKS_LIKE_A_TITLE, self.files[0].shown)
        typed = {column.name.lower() for column in columns if column.type != TEXT}
        if self.params.csv_has_header is not None or not typed or not all(map(_VALUE.match, typed)):
            return
        options = (*self._header_options(has_header=False), *self._types(), f"sample_size = {_SAMPLE}")
        texts = _columns_of(connection, self._scan(self.paths[:1], *options), "VARCHAR")
        if typed.isdisjoint(map(str.lower, texts)):
            logger.warning(HEADER_LOOKS_LIKE_DATA, self.files[0].shown)

    def details(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """If the engine failed to find types, read the columns as text, so that its message contains the line."""
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
        """Copy the files as UTF-8 without the lines to skip, unless that changes nothing."""
        self.skipped_lines = self.params.skip_rows or 0
        starts = [next(self._blocks(file), b"") for file in self.files]
        encodings = [self.params.encoding or marked_encoding(start) or "utf-8" for start in starts]
        # The engine does not recognise a quote after a byte order mark.
        quote = re.escape(self._quote.encode())
        special = re.escape(((self.params.csv_delimiter or "") + _DELIMITERS).encode())
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
        """Read *contents*, one for each file, instead of the files."""
        self.use([self.space.save(each, file.shown) for each, file in zip(contents, self.files, strict=True)])
        self.compression = "UNCOMPRESSED"

    def _header(self, file: PinnedFile) -> tuple[list[str], str]:
        """Return the column names and the delimiter."""
        head, _ = ends(file, self.compression, self.deadline)
        record = first_record(head, self._quote.encode(), self._escape.encode())
        line = f"'{file.shown}', line {1 + self.skipped_lines}"
        if record is None:
            raise SourceError(f"{line}: a quote is not closed, or the line is longer than 2 MB.")
        # The engine assumes that all lines have the same line ending as the first line.
        inside, end = set(_LINE_END.findall(record)), _LINE_END.match(head, len(record))
        if end is not None and not inside <= {end[0]}:
            raise SourceError(
                f"{line}: it has a quoted line ending that differs from the file's line endings. If it is the header, "
                "set params.skip_rows to its number of lines, and params.csv_has_header to false."
            )
        if b"\0" in record:
            raise SourceError(f"{line}: it is not text, or is in UTF-16: set params.encoding.")
        try:
            header = record.decode("utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"{line}: it is not UTF-8: set params.encoding.") from None
        if re.fullmatch('"?sep=.?"?', header):
            raise SourceError(f"{line}: it is an Excel delimiter line (sep=): set params.skip_rows.")
        if not header.strip():
            raise SourceError(f"'{file.shown}' has no columns: its first line must name them.")
        quote = re.escape(self._quote)
        outside_quotes = re.sub(f"{quote}[^{quote}]*{quote}", "", header) if quote else header
        delimiter = self.params.csv_delimiter or max(_DELIMITERS, key=outside_quotes.count)
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
            raise SourceError(f"{line}: it is not a list of column names.") from None
        if not self._has_header:
            return [f"column{index}" for index in range(len(fields))], delimiter
        # Name an unnamed field (an index column, a trailing delimiter) as the engine does.
        names = [field.strip() or f"column{index}" for index, field in enumerate(fields)]
        hint = "column names must be unique; if the file has no header line, set params.csv_has_header to false"
        refuse_repeated(names, file, hint if all(map(str.strip, fields)) else f"{UNNAMED}; {hint}")
        return names, delimiter

    def _counted(self, connection: duckdb.DuckDBPyConnection, file: PinnedFile, delimiter: str) -> Counted:
        """Count the rows, and refuse one with more fields than the first line. The engine would drop an empty field."""
        # Beyond the last column, a field is null only if the row does not have it. A wrong type gives its line.
        options = [*self._texts("ENUM('no field')"), "null_padding = true", "nullstr = '\ue000'", "parallel = false"]
        scan = self._scan([file.path], *options)
        query = f"SELECT count(*), count(c{len(self._names)}) FROM {scan}"  # noqa: S608 - quoted by us
        rows, more = connection.execute(query).fetchone() or (0, 0)
        if more:
            raise SourceError(f"'{file.shown}': a row has more fields than the first line.")
        return Counted(
            shown=file.shown, content=partial(self._blocks, file), rows=rows, delimiter=delimiter, quote=self._quote,
            has_header=self._has_header, lines_before=self.skipped_lines,
        )  # fmt: skip

    def _texts(self, *more: str) -> list[str]:
        """Return the options for text columns c0, c1 and so on, plus columns of *more* types not in the file."""
        types = [TEXT] * len(self._names) + list(more)
        columns = ", ".join(f"{literal(f'c{index}')}: {literal(type_)}" for index, type_ in enumerate(types))
        return [f"header = {self._has_header}", "auto_detect = false", f"columns = {{{columns}}}"]

    def _scan(self, paths: Sequence[str], *options: str) -> str:
        return f"read_csv({', '.join([literals(paths), *self._dialect, *options])})"

    def _header_options(self, *, has_header: bool) -> list[str]:
        # By default the engine keeps some spaces around names.
        has_one_order = all(names == self._names for names in self._orders)
        names = [f"names = {literals(self._names)}"] if has_one_order or not has_header else []
        return [f"header = {has_header}", *names]

    def _nulls(self, delimiter: str) -> list[str]:
        r"""
        Return the null strings for the engine; none for its default.

        The engine does not accept null strings with the escape character, such as MySQL's `\N`. They are first replaced
        by empty fields.
        """
        values = list(self.params.null_values or ())
        if any(delimiter in value for value in values):
            raise SourceError(f"'{self._shown}': one of params.null_values contains the delimiter.")
        marked = [value for value in values if self._escape and self._escape in value]
        if marked:
            self._copy(emptied(self._blocks(file), marked, delimiter, self._quote, self._escape) for file in self.files)
        return ["", *(value for value in values if value not in marked)] if values else []

    @property
    def _decimal_option(self) -> list[str]:
        decimal = self.params.decimal_separator
        return [] if decimal is None else [f"decimal_separator = {literal(decimal)}"]

    def _types(self) -> list[str]:
        """Return the options for column types."""
        options = self._decimal_option
        if (date_format := self.params.date_format) is not None:
            option, type_ = ("timestampformat", "TIMESTAMP") if has_time(date_format) else ("dateformat", "DATE")
            options = [
                *options,
                f"{option} = {literal(date_format)}",
                f"auto_type_candidates = {literals([*_TYPES, type_])}",
            ]
        return options

    def _typed(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Return a relation whose columns have types that keep all values exactly; see `exact_types`."""
        self._uncertain: list[str] = []
        # The code below determines the types from all values, so a sample is enough for the engine.
        everything = ("files_to_sniff = -1", "union_by_name = true", f"auto_type_candidates = {literals(_TYPES)}")
        rows = -1 if self.params.thousands_separator is not None else _SNIFFED
        options = (*self._header_options(has_header=self._has_header), *everything, f"sample_size = {rows}")
        scan = self._scan(self.paths, *options, *self._decimal_option)
        described = connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()  # noqa: S608 - quoted by us
        by_name = {name.lower(): type_ for name, type_, *_ in described}
        if by_name.keys() != set(map(str.lower, self._names)):
            return scan  # `accept` refuses the column.
        proposed = {name: by_name[name.lower()] for name in self._names}
        texts = self._read(dict.fromkeys(self._names, TEXT))
        found = self._described_dates(connection, texts, proposed)
        numbers = self._ungrouped(connection, texts, [name for name, type_ in proposed.items() if type_ == TEXT])
        known = {*found, *numbers}
        words = [name for name, type_ in proposed.items() if type_ == TEXT and name not in known]
        looked = self._looked_at(connection, texts, words)
        types = proposed | {name: type_ for name, type_ in looked.items() if type_ in CHECKED}
        places = {name: self._place(name, type_) for name, type_ in types.items()} | {
            name: place for name, (place, _) in numbers.items()
        }
        checked = {name: type_ for name, type_ in types.items() if type_ in CHECKED and name not in known} | {
            name: type_ for name, (_, type_) in numbers.items()
        }
        kept = exact_types(connection, texts, {places[name]: type_ for name, type_ in checked.items()}, words=True)
        found |= {name: Found(kept[places[name]]) for name in checked}
        found |= self._dates(connection, [name for name in looked if found.get(name, _AS_TEXT).type == TEXT])
        direct = {
            name: read.type
            for name, read in found.items()
            if read.type in _READ_BY_THE_ENGINE and read.type == proposed[name] and read.date_format is None
        }
        relation = self._read({name: direct.get(name, TEXT) for name in self._names})
        # List all columns, because the engine is slow to replace many columns of a star.
        columns = [
            identifier(name)
            if name in direct or found.get(name, _AS_TEXT).type == TEXT
            else f"{found[name].of(places[name].root)} AS {identifier(name)}"
            for name in self._names
        ]
        has_casts = columns != list(map(identifier, self._names))
        return f"(SELECT {', '.join(columns)} FROM {relation})" if has_casts else relation  # noqa: S608 - quoted

    def _looked_at(self, connection: duckdb.DuckDBPyConnection, texts: str, words: Sequence[str]) -> dict[str, str]:
        """
        Return the types to try for those of the columns *words* whose first values are not words.

        *words* are the columns that the engine proposes as text. It looks for one date format in all columns, and
        proposes text for a column without values in its sample. For dates that are not in ISO 8601, the type is text.
        """
        types: dict[str, str] = {}
        # With %Y-%d-%m, a date that looks like ISO 8601 is a different date.
        is_other = (self.params.date_format or "").startswith("%Y")
        candidates = [type_ for type_ in _TRIED if not (is_other and type_.startswith(("DATE", "TIMESTAMP")))]
        for relation in (f"(FROM {texts} LIMIT {_SAMPLE})", texts):
            are_values = _answers(connection, relation, words, lambda text: matches(text, _LIKE_VALUES))
            places = {
                self._place(name, "DOUBLE"): name for name, is_one in zip(words, are_values, strict=True) if is_one
            }
            tried = [(place, type_) for place in places for type_ in candidates]
            fitting = types_that_keep(connection, relation, tried, words=True)
            are_dates = _answers(connection, relation, list(places.values()), lambda text: matches(text, _LIKE_DATES))
            for (place, name), is_date in zip(places.items(), are_dates, strict=True):
                if place in fitting or (is_date and self.params.date_format is None):
                    types[name] = _TRIED[fitting[place]] if place in fitting else TEXT
            words = [name for name, is_one in zip(words, are_values, strict=True) if is_one is None]
        return types

    def _described_dates(
        self, connection: duckdb.DuckDBPyConnection, texts: str, proposed: Mapping[str, str]
    ) -> dict[str, Found]:
        """Return how to read the columns in which all values match `date_format`, by column name."""
        if (described := self.params.date_format) is None:
            return {}
        names = [name for name, type_ in proposed.items() if type_ not in {"TIME", "BOOLEAN"}]
        first = _answers(connection, f"(FROM {texts} LIMIT {_SAMPLE})", names, by_format(described))
        names = [name for name, fits in zip(names, first, strict=True) if fits is not False]
        fitting = self._fitting(connection, names, [described])
        type_ = "TIMESTAMP" if has_time(described) else "DATE"
        return {name: Found(type_, described) for name, fits in fitting.items() if fits == {(described,)}}

    def _dates(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> dict[str, Found]:
        """
        Return how to read the columns among *names* whose dates are not in ISO 8601, by column name.

        Exactly one format must fit, and it must be the same in each file. The engine itself reads 03/04/2026 as 3
        April, or as 4 March if another date in the file requires it.
        """
        found = {}
        for name, fits in self._fitting(connection, names, list(_FORMATS)).items():
            if len(fits) == 1 and len(one := fits.pop()) == 1:
                found[name] = Found(_FORMATS[one[0]], one[0])
            else:
                self._uncertain.append(name)
        return found

    def _fitting(
        self, connection: duckdb.DuckDBPyConnection, names: Sequence[str], formats: Sequence[str]
    ) -> dict[str, set[tuple[str, ...]]]:
        """Return the date *formats* that fit all values of the columns *names*, for each file."""
        file = next(name for at in itertools.count() if (name := f"file{at}") not in map(str.lower, self._names))
        relation = self._read(dict.fromkeys(self._names, TEXT), f"filename = {literal(file)}")
        places = {name: self._place(name, TEXT) for name in names}
        fits = formats_that_keep(connection, relation, list(places.values()), formats, identifier(file))
        return {name: set(fits[place]) for name, place in places.items()}

    def _place(self, name: str, type_: str) -> Place:
        """Return the `Place` of the text in the column *name*, for values of *type_*."""
        quick, decimal = identifier(name), self.params.decimal_separator or "."
        if decimal != "." and type_ == "DOUBLE":
            # A point is then not a decimal separator: 1.234 may mean 1234.
            quick = f"translate({quick}, {literal(decimal + '.')}, {literal('.' + decimal)})"
        return Place(f"trim({quick})", quick=quick)

    def _read(self, types: Mapping[str, str], *options: str) -> str:
        """Return a relation over the files with the column *types*. The column order may differ between files."""
        by_name = {name.lower(): (name, type_) for name, type_ in types.items()}
        pairs = zip(self._orders, self.paths, strict=True)
        scans = []
        for order, files in itertools.groupby(pairs, key=lambda pair: list(map(str.lower, pair[0]))):
            columns = ", ".join(f"{literal(by_name[name][0])}: {literal(by_name[name][1])}" for name in order)
            more = [f"header = {self._has_header}", "auto_detect = false", f"columns = {{{columns}}}", *options]
            scans.append(self._scan([path for _, path in files], *more, *self._decimal_option))
        return scans[0] if len(scans) == 1 else f"({' UNION ALL BY NAME '.join(f'FROM {scan}' for scan in scans)})"

    def _with_commas(self, connection: duckdb.DuckDBPyConnection, columns: Sequence[Column]) -> list[str]:
        """Return the names of text columns whose first values are numbers, some with commas."""
        texts = [column.name for column in columns if column.type == TEXT]
        if {"decimal_separator", "thousands_separator"} & self.params.given or not texts:
            return []
        first = f"(FROM {self._read(dict.fromkeys(self._names, TEXT))} LIMIT {_SAMPLE})"
        numbers = _matching(connection, first, texts, _WITH_COMMA)
        plain = frozenset(_matching(connection, first, numbers, r"[^,]*"))
        return [name for name in numbers if name not in plain]

    def _ungrouped(
        self, connection: duckdb.DuckDBPyConnection, texts: str, words: Sequence[str]
    ) -> dict[str, tuple[Place, str]]:
        """
        Return the columns in *words* that contain only numbers, some with grouped digits, and the types to try.

        The engine itself would drop separators anywhere, and so turn 1.5 into 15.
        """
        if self.params.thousands_separator is None:
            return {}
        separator, decimal = self.params.thousands_separator, (self.params.decimal_separator or ".")
        group = f"[{re.escape(_ALIKE.get(separator, separator))}]"
        # A leading zero means a code, not a number, as everywhere else.
        number = rf"\s*[-+]?(0|[1-9]\d{{0,2}}({group}\d{{3}})+|[1-9]\d*)({re.escape(decimal)}\d*)?\s*"
        integer = rf"\s*[-+]?(0|[1-9]\d{{0,2}}({group}\d{{3}})*|[1-9]\d*)\s*"
        numbers = _matching(connection, texts, words, number)
        integers = frozenset(_matching(connection, texts, numbers, integer))
        found = {}
        for name in numbers:
            digits = f"regexp_replace(ltrim(trim({identifier(name)}), '+'), {literal(group)}, '', 'g')"
            type_ = "BIGINT" if name in integers else "DOUBLE"
            found[name] = Place(f"replace({digits}, {literal(decimal)}, '.')"), type_
        return found


def _columns_of(connection: duckdb.DuckDBPyConnection, scan: str, *types: str) -> list[str]:
    """Return the names of the columns in *scan* with one of *types*."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()  # noqa: S608 - quoted by us
    return [name for name, type_, *_ in described if type_ in types]


def _answers(
    connection: duckdb.DuckDBPyConnection, relation: str, columns: Sequence[str], has: Property
) -> list[bool | None]:
    """Return whether all text in each of *columns* has a property; None for a column without text."""
    found = answers(connection, relation, [(Place(identifier(name)), has) for name in columns])
    return found[0] if found else [None] * len(columns)


def _matching(connection: duckdb.DuckDBPyConnection, scan: str, columns: Sequence[str], pattern: str) -> list[str]:
    """Return the text columns in *columns* that have values, all of which match *pattern*."""
    found = _answers(connection, scan, columns, lambda text: matches(text, pattern))
    return [name for name, is_matched in zip(columns, found, strict=True) if is_matched]
