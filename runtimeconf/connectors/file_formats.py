"""
The formats of files and their parameters, for every connector that reads files.

Parameters have the names of Spice.ai where it has them (`csv_...`).
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from runtimeconf.connectors.connector import Package, Param
from runtimeconf.fields import ChoiceField, Field, IntegerField, InvalidValueError, ParsedField
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Node, Scalar, Sequence

#: The kind of each format, by the value of `file_format` and by the extension of a file.
KINDS: Final[Mapping[str, str]] = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "ndjson": "json",
    "jsonl": "json",
    "xlsx": "xlsx",
}

#: Compression by the extension that follows that of the format.
COMPRESSIONS: Final[Mapping[str, str]] = {"gz": "GZIP", "zst": "ZSTD"}

#: Separates the items of `null_values` in its text.
NULL_SEPARATOR: Final = "\n"

_TIME_DIRECTIVES = frozenset("HIpMSf")
_DIRECTIVE = re.compile(r"%(-?)(.)", re.DOTALL)
#: What stands for a year, a month and a day, and what else a date may hold (strptime).
_DATE_PARTS = ("yY", "mbBh", "d")
_DIRECTIVES = frozenset("yYmbBhdaA%") | _TIME_DIRECTIVES
_UNPADDED = frozenset("ymdHIMS")

_MAX_NULL_VALUES = 100


def split_extension(name: str) -> tuple[str, str | None]:
    """Return the extension of *name* in lower case without its dot, and its compression, a value of `COMPRESSIONS`."""
    path = PurePosixPath(name.lower())
    compression = COMPRESSIONS.get(path.suffix.removeprefix("."))
    return (path.with_suffix("") if compression else path).suffix.removeprefix("."), compression


def kind_of(location: str, params: Mapping[str, str]) -> str | None:
    """Return the kind of the files by `file_format` or their name; None if only their names will show it."""
    return KINDS.get(params.get("file_format") or split_extension(location.rstrip("/"))[0])


def has_time(date_format: str) -> bool:
    """Return whether *date_format* has a time of day."""
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
    """Return a strptime format that names a day: year, month and day, with or without a time."""
    found = _DIRECTIVE.findall(text)
    for dash, letter in found:
        if letter not in _DIRECTIVES or (dash and letter not in _UNPADDED):
            raise InvalidValueError("a time zone is read as in ISO 8601 only" if letter in "zZ" else "")
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
        raise InvalidValueError("the upper left corner comes first")
    return text.upper()


def _parse_sheet(text: str) -> str:
    if not text.strip() or len(text) > 31:
        raise InvalidValueError("1 to 31 characters")
    return text


class _NullValuesField(Field[str]):
    """A list of texts, or one text with commas. The words that YAML takes for null are texts here."""

    expected = "a list of texts, or one text with commas between them"

    def read(self, node: Node, path: YamlPath) -> str | None:
        items = node.items if isinstance(node, Sequence) else (node,)
        texts = [item.text for item in items if isinstance(item, Scalar)]
        if isinstance(node, Scalar):
            texts = [part.strip() for part in node.text.split(",")]
        if len(texts) < len(items) or not all(texts) or not 0 < len(texts) <= _MAX_NULL_VALUES:
            self.refuse(node, path, hint=f"1 to {_MAX_NULL_VALUES}, and none empty: an empty field is null anyway")
            return None
        if not all(text.isprintable() for text in texts):
            self.refuse(node, path, hint="one of them holds a control character")
            return None
        return NULL_SEPARATOR.join(texts)


_TRUE_OR_FALSE = ChoiceField("true", "false")
_CSV = ("csv",)
_TABLES = ("csv", "xlsx")

#: The format of the files, if their names do not show it, and how files of that format are read.
FILE_PARAMS: Final = (
    Param("file_format", ChoiceField(*KINDS)),
    Param("file_compression_type", ChoiceField(*COMPRESSIONS.values(), "UNCOMPRESSED"), kinds=("csv", "json")),
    Param("csv_has_header", _TRUE_OR_FALSE, kinds=_TABLES),
    Param("csv_delimiter", ParsedField("one character, such as ; or \\t", _parse_delimiter), kinds=_CSV),
    Param("csv_quote", ParsedField("one character, or empty for none", _parse_quote), kinds=_CSV),
    Param("csv_escape", ParsedField("one character", _parse_ascii), kinds=_CSV),
    Param("encoding", ChoiceField("utf-8", "utf-16", "latin-1", "windows-1252"), kinds=_CSV),
    Param("skip_rows", IntegerField(0, 10_000), kinds=_TABLES),
    Param("null_values", _NullValuesField(), kinds=_TABLES),
    Param("date_format", ParsedField("a strptime format such as %d.%m.%Y", _parse_date_format), kinds=_CSV),
    Param("decimal_separator", ChoiceField(".", ","), kinds=_CSV),
    Param(
        "thousands_separator", ParsedField("a point, a comma, an apostrophe or a space", _parse_thousands), kinds=_CSV
    ),
    Param("sheet", ParsedField("the name of a sheet", _parse_sheet), kinds=("xlsx",)),
    Param("range", ParsedField("a range of cells such as B3:F200 or B3:F", _parse_range), kinds=("xlsx",)),
)

#: Reads Excel workbooks.
EXCEL: Final = Package(
    "openpyxl", "openpyxl~=3.1", is_needed=lambda location, params: kind_of(location, params) == "xlsx"
)


def misplaced(params: Mapping[str, str], kind: str | None) -> dict[str, str]:
    """Return what is wrong with each of *params* that does not apply to files of *kind*, by its name; None is any."""
    return {
        param.name: f"is a parameter of {' and '.join(param.kinds)} files, and not of {kind}"
        for param in FILE_PARAMS
        if kind is not None and param.name in params and param.kinds and kind not in param.kinds
    }


def check_files(params: Mapping[str, str]) -> str | None:
    """Return what is wrong with the combination of `FILE_PARAMS`; None if nothing is."""
    delimiter, quote = params.get("csv_delimiter"), params.get("csv_quote", '"')
    escape = params.get("csv_escape")
    if delimiter is not None and delimiter in {quote, escape}:
        return f"has csv_delimiter equal to {'csv_quote' if delimiter == quote else 'csv_escape'}"
    if params.get("thousands_separator") == params.get("decimal_separator", "."):
        return "has thousands_separator equal to decimal_separator, which is . unless set"
    for value in params.get("null_values", "").split(NULL_SEPARATOR):
        if value and any(part and part in value for part in (delimiter, quote)):
            return "has null_values that hold the csv_delimiter or the csv_quote, which no field can"
    return None
