"""
File formats and their parameters, for every connector that reads files.

Parameters that Spice.ai also has use its names (`csv_...`).
"""

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Final

from runtimeconf.connector import Package, Param, Params
from runtimeconf.fields import ChoiceField, Field, FlagField, IntegerField, InvalidValueError, ParsedField
from runtimeconf.network import DEFAULT_CLIENT_TIMEOUT_S, ClientTimeout, MaxDownloadSize
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Node, Scalar, Sequence

#: The kind of each format, by `file_format` value and by file extension.
KINDS: Final[Mapping[str, str]] = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "ndjson": "json",
    "jsonl": "json",
    "xlsx": "xlsx",
}

#: The compression, by the extension that follows the format's extension.
COMPRESSIONS: Final[Mapping[str, str]] = {"gz": "GZIP", "zst": "ZSTD"}

_TIME_DIRECTIVES = frozenset("HIpMSf")
_DIRECTIVE = re.compile(r"%(-?)(.)", re.DOTALL)
#: The strptime directives for year, month and day, of which a date format needs one each, and all directives that it
#: may contain.
_DATE_PARTS = ("yY", "mbBh", "d")
_DIRECTIVES = frozenset("yYmbBhdaA%") | _TIME_DIRECTIVES
_UNPADDED = frozenset("ymdHIMS")

_MAX_NULL_VALUES = 100


def split_extension(name: str) -> tuple[str, str | None]:
    """Return the extension of *name* in lower case without its dot, and its compression, a value of `COMPRESSIONS`."""
    path = PurePosixPath(name.lower())
    compression = COMPRESSIONS.get(path.suffix.removeprefix("."))
    return (path.with_suffix("") if compression else path).suffix.removeprefix("."), compression


def kind_of(location: str, file_format: str | None) -> str | None:
    """Return the kind of the files, from *file_format* or their name; None if it depends on each file's name."""
    return KINDS.get(file_format or split_extension(location.rstrip("/"))[0])


def has_time(date_format: str) -> bool:
    """Return True if *date_format* includes a time of day."""
    return any(letter in _TIME_DIRECTIVES for _, letter in _DIRECTIVE.findall(date_format))


def _parse_character(text: str) -> str:
    if len(text) != 1:
        raise InvalidValueError("exactly one")
    if text.isalnum() or text in "\r\n\0":
        raise InvalidValueError("not a letter, a digit or a line end")
    return text


def _parse_delimiter(text: str) -> str:
    return _parse_character("\t" if text == r"\t" else text)


def _parse_ascii(text: str) -> str:
    if not text.isascii():
        raise InvalidValueError("in ASCII")
    return _parse_character(text)


def _parse_quote(text: str) -> str:
    return _parse_ascii(text) if text else text


def _parse_thousands(text: str) -> str:
    if text not in {".", ",", "'", " "}:
        raise InvalidValueError
    return text


def _parse_date_format(text: str) -> str:
    """Return a strptime format with year, month and day, with or without a time."""
    found = _DIRECTIVE.findall(text)
    for dash, letter in found:
        if letter not in _DIRECTIVES or (dash and letter not in _UNPADDED):
            raise InvalidValueError("a time zone is read only in ISO 8601 form" if letter in "zZ" else "")
    letters = [letter for _, letter in found]
    if any(sum(letter in part for letter in letters) != 1 for part in _DATE_PARTS):
        raise InvalidValueError("with one year (%Y, %y), one month (%m, %b, %B) and one day (%d)")
    if "%" in _DIRECTIVE.sub("", text) or not text.isprintable():
        raise InvalidValueError
    return text


def _parse_range(text: str) -> str:
    match = re.fullmatch(r"([A-Z]{1,3})([1-9][0-9]{0,6})?:([A-Z]{1,3})([1-9][0-9]{0,6})?", text.upper())
    if match is None or (match[4] and not match[2]):
        raise InvalidValueError
    (left, top, right, bottom) = match.groups()
    if (len(left), left) > (len(right), right) or (bottom and int(top) > int(bottom)):
        raise InvalidValueError("write the upper left corner first")
    return text.upper()


def _parse_sheet(text: str) -> str:
    if not text.strip() or len(text) > 31:
        raise InvalidValueError("1 to 31 characters")
    return text


class _NullValuesField(Field[tuple[str, ...]]):
    """A list of strings, or one comma-separated string. YAML's words for null are ordinary strings here."""

    expected = "a list of strings, or one comma-separated string"

    def read(self, node: Node, path: YamlPath) -> tuple[str, ...] | None:
        items = node.items if isinstance(node, Sequence) else (node,)
        texts = [item.text for item in items if isinstance(item, Scalar)]
        if isinstance(node, Scalar):
            texts = [part.strip() for part in node.text.split(",")]
        if len(texts) < len(items) or not all(texts) or not 0 < len(texts) <= _MAX_NULL_VALUES:
            self.refuse(
                node, path, hint=f"1 to {_MAX_NULL_VALUES}, and none of them empty: an empty field is always null"
            )
            return None
        if not all(text.isprintable() for text in texts):
            self.refuse(node, path, hint="one of them contains a control character")
            return None
        return tuple(texts)


_CSV = ("csv",)
_TABLES = ("csv", "xlsx")


class FileParams(Params):
    """
    The file format, if the file names do not show it, and how files of that format are read.

    None means the default of the format.
    """

    file_format: Annotated[str | None, Param(ChoiceField(*KINDS))] = None
    file_compression_type: Annotated[
        str | None, Param(ChoiceField(*COMPRESSIONS.values(), "UNCOMPRESSED"), kinds=("csv", "json"))
    ] = None
    csv_has_header: Annotated[bool | None, Param(FlagField(), kinds=_TABLES)] = None
    csv_delimiter: Annotated[
        str | None, Param(ParsedField("one character, such as ; or \\t", _parse_delimiter), kinds=_CSV)
    ] = None
    csv_quote: Annotated[
        str | None, Param(ParsedField("one character, or empty for none", _parse_quote), kinds=_CSV)
    ] = None
    csv_escape: Annotated[str | None, Param(ParsedField("one character", _parse_ascii), kinds=_CSV)] = None
    encoding: Annotated[str | None, Param(ChoiceField("utf-8", "utf-16", "latin-1", "windows-1252"), kinds=_CSV)] = None
    skip_rows: Annotated[int | None, Param(IntegerField(0, 10_000), kinds=_TABLES)] = None
    null_values: Annotated[tuple[str, ...] | None, Param(_NullValuesField(), kinds=_TABLES)] = None
    date_format: Annotated[
        str | None, Param(ParsedField("a strptime format such as %d.%m.%Y", _parse_date_format), kinds=_CSV)
    ] = None
    decimal_separator: Annotated[str | None, Param(ChoiceField(".", ","), kinds=_CSV)] = None
    thousands_separator: Annotated[
        str | None, Param(ParsedField("a point, a comma, an apostrophe or a space", _parse_thousands), kinds=_CSV)
    ] = None
    sheet: Annotated[str | None, Param(ParsedField("a sheet name", _parse_sheet), kinds=("xlsx",))] = None
    range: Annotated[
        str | None, Param(ParsedField("a cell range such as B3:F200 or B3:F", _parse_range), kinds=("xlsx",))
    ] = None

    def problem(self, location: str) -> str | None:
        """Return the problem with the combination; see `Params.problem`."""
        delimiter, escape = self.csv_delimiter, self.csv_escape
        quote = '"' if self.csv_quote is None else self.csv_quote
        if delimiter is not None and delimiter in {quote, escape}:
            return f"has csv_delimiter equal to {'csv_quote' if delimiter == quote else 'csv_escape'}"
        if self.thousands_separator == (self.decimal_separator or "."):
            return "has thousands_separator equal to decimal_separator, which defaults to ."
        for value in self.null_values or ():
            if any(part and part in value for part in (delimiter, quote)):
                return "has null_values that contain the csv_delimiter or csv_quote, which can never match a field"
        return None

    @property
    def given(self) -> frozenset[str]:
        """The names of the file parameters that are set."""
        return frozenset(name for name in FileParams.declared if getattr(self, name) is not None)


class DownloadParams(FileParams):
    """Parameters for files that are downloaded first."""

    client_timeout: ClientTimeout = DEFAULT_CLIENT_TIMEOUT_S
    max_download_size: MaxDownloadSize = None


#: Reads Excel workbooks.
EXCEL: Final = Package(
    "openpyxl",
    "openpyxl~=3.1",
    is_needed=lambda location, values: kind_of(location, values.get("file_format")) == "xlsx",
)


def misplaced(given: Collection[str], kind: str | None) -> dict[str, str]:
    """Map each of the parameters *given* that does not apply to *kind* to an error. *kind* None means any kind."""
    return {
        param.name: f"is a parameter of {' and '.join(param.kinds)} files, not of {kind} files"
        for param in FileParams.declared.values()
        if kind is not None and param.name in given and param.kinds and kind not in param.kinds
    }
