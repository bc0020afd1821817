"""
Reads JSON files.

The engine detects the types, and `exact_types` compares every value with its type. The engine keeps long integers, but
reads any number with a fraction or an exponent as a double. If that changes a number, the load reads a copy of the file
in which the number is a string.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, ClassVar

import duckdb
from msgspec.structs import replace

from datasources.errors import SourceError
from datasources.sources.exact_types import (
    CHECKED,
    TEXT,
    Found,
    Place,
    exact_types,
    is_text_of_its_double,
    keeps_as_double,
)
from datasources.sources.formats import FileFormat, refuse_repeated
from datasources.sources.text_files import blocks, ends
from datasources.sql import identifier, literal, literals

#: Types that the engine reads from JSON strings in the same way as `exact_types`.
_READ_BY_THE_ENGINE = frozenset({*CHECKED - {"BIGNUM"}, "TIMESTAMP_NS", "TIMESTAMPTZ_NS", "TIME_NS", TEXT})

#: Numbers that a double might not keep because of many digits or a large exponent, with the preceding character. The
#: text of a string is preceded by a quote instead.
_LONG_NUMBER = r"[:,\[\s]-?\d[\d.]{15,}(?:[eE][-+]?\d+)?|[:,\[\s]-?\d[\d.]*[eE][-+]?\d{3,}"

#: A string or a number, and a possible beginning of either at the end of a block.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|-?\d[\d.]*(?:[eE][-+]?\d*)?|-\Z', re.DOTALL)
#: The minimum length of a number with a fraction that a double might not keep.
_LONG = 17

#: JSON integers are exact in these types.
_EXACT = frozenset({"BIGINT", "BOOLEAN"})

_DUPLICATE = re.compile(r'Duplicate name "+(.*?)"+ in struct')
_EMPTY_KEY = "an object has an empty key"


class Json(FileFormat):
    """JSON files: an array of objects, or a sequence of objects, such as one per line. Keys may differ."""

    name = "JSON"
    kind = "json"
    reasons: ClassVar[Mapping[str, str]] = {
        "UTF-8": "it is not UTF-8",
        "unexpected end of data": "the JSON was cut short",
        "Malformed JSON": "the JSON is malformed",
        "duplicate key": "an object has the same key twice",
        _EMPTY_KEY: "an object has an empty key, which cannot be a column name: rename the key",
        "expected records": "it has no columns: it must contain objects with keys",
        "maximum_object_size": "an object is larger than 16 MB",
        "Unexpected end of GZIP": "it was cut short",
    }

    def bind(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Check the end and the keys of each file; see `Scan.bind`."""
        firsts = set()
        for file in self.files:
            head, last = ends(file, self.compression, self.deadline)
            first = head.lstrip()[:1]
            # The engine accepts an array that was truncated after a comma.
            if first == b"[" and last != b"]":
                raise SourceError(f"'{file.shown}': the JSON was cut short.")
            firsts.add(first)
        # The engine does not recognise an array after a byte order mark.
        self._layout = "array" if firsts == {b"["} else "auto"
        try:
            columns = self._proposed(connection)
        except duckdb.InvalidInputException as exc:
            if b"[" in firsts or "unexpected end of data" not in str(exc):
                raise
            # After an object on the first line, the engine expects one on each line.
            self._layout = "unstructured"
            try:
                columns = self._proposed(connection)
            except duckdb.InvalidInputException:
                raise exc from None
        self._names = list(columns)
        self._refuse_similar_keys(connection)
        return self._typed(connection, columns)

    def details(self, connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> str:
        """If the engine found no keys, look for an empty key, because its message is the same in both cases."""
        if "expected records" in str(error):
            query = f"SELECT bool_or(list_contains(json_keys(json), '')) FROM read_json_objects({self._common})"  # noqa: S608 - our SQL
            if connection.execute(query).fetchone() == (True,):
                return _EMPTY_KEY
        # The engine numbers the lines of malformed JSON from 2.
        return re.sub(r"(Malformed JSON .* in line )(\d+)", lambda found: f"{found[1]}{int(found[2]) - 1}", str(error))

    def other_reason(self, text: str) -> str:
        """Return a reason that names a key if the engine cannot distinguish two keys of an object in a column."""
        if (found := _DUPLICATE.search(text)) is not None:
            return f"objects in a column have the key '{found[1]}' twice in different case: rename one of the keys"
        return super().other_reason(text)

    @property
    def _common(self) -> str:
        return f"{literals(self.paths)}, format = '{self._layout}', {self.engine_compression}"

    def _proposed(self, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        """Return the columns and the types that the engine proposes."""
        scan = (
            f"read_json({self._common}, records = 'true', union_by_name = true, sample_size = -1, "
            "maximum_sample_files = 1000000, map_inference_threshold = -1, field_appearance_threshold = 0)"
        )
        described = connection.execute(f"FROM {scan} LIMIT 0").description or []
        return {name: type_ for name, type_, *_ in described}

    def _refuse_similar_keys(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse keys that differ only in case, because the engine renames the second to `KEY_1`."""
        folded = set(map(str.lower, self._names))
        if not any((match := re.fullmatch(r"(.*)_\d+", name)) and match[1] in folded for name in folded):
            return
        keys = connection.execute(
            f"SELECT DISTINCT unnest(json_keys(json)) FROM read_json_objects({self._common})"  # noqa: S608 - our SQL
        ).fetchall()
        refuse_repeated(sorted(key for (key,) in keys), self.files[0], "rename one of the keys")

    def _typed(self, connection: duckdb.DuckDBPyConnection, columns: Mapping[str, Any]) -> str:
        """Return a relation whose columns have types that keep all values exactly; see `exact_types`."""
        leaves = {
            leaf: type_ for name, found in columns.items() for leaf, type_ in _leaves(Place(identifier(name)), found)
        }
        is_exact = {"DOUBLE", "JSON"}.isdisjoint(leaves.values()) or self._keep_digits(connection)
        unchecked = _EXACT | {"DOUBLE"} if is_exact else _EXACT
        # If one of the values is -0, the engine proposes a wider type.
        checked = {
            leaf: "BIGINT" if type_ == "HUGEINT" else type_
            for leaf, type_ in leaves.items()
            if type_ in CHECKED - unchecked
        }
        roots = {leaf.root for leaf in checked}
        texts = self._read(
            {name: found for name, found in columns.items() if identifier(name) in roots}, dict.fromkeys(checked, TEXT)
        )
        kept = exact_types(connection, texts, checked, words=False)
        direct = {leaf: type_ if type_ in _READ_BY_THE_ENGINE else TEXT for leaf, type_ in kept.items()}
        cast = {leaf.root for leaf, type_ in kept.items() if direct[leaf] != type_}
        relation = self._read(columns, direct)
        # List all columns, because the engine is slow to replace many columns of a star.
        selected = [
            Found(_type(Place(quoted), found, kept)).of(quoted) + f" AS {quoted}" if quoted in cast else quoted
            for quoted, found in ((identifier(name), found) for name, found in columns.items())
        ]
        return f"(SELECT {', '.join(selected)} FROM {relation})" if cast else relation  # noqa: S608 - quoted

    def _read(self, columns: Mapping[str, Any], types: Mapping[Place, str]) -> str:
        """Return a relation with *columns*, which maps names to types. At some places, *types* replace these types."""
        declared = ", ".join(
            f"{literal(name)}: {literal(_type(Place(identifier(name)), found, types))}"
            for name, found in columns.items()
        )
        return f"read_json({self._common}, records = 'true', columns = {{{declared}}})"

    def _keep_digits(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """
        If the engine would round any numbers, read copies of the files in which these numbers are strings.

        Returns:
            Whether a double keeps all numbers, including integers.
        """
        pattern, is_integer = literal(_LONG_NUMBER), "regexp_full_match(n, '-?[0-9]+')"
        numbers = (
            f"(SELECT unnest(regexp_extract_all(json, {pattern}))[2:] AS n FROM read_json_objects({self._common}) "  # noqa: S608 - our SQL
            f"WHERE regexp_matches(json, {pattern}))"
        )
        rounded = connection.execute(
            f"SELECT DISTINCT {is_integer} FROM {numbers} WHERE NOT {keeps_as_double('n')}"  # noqa: S608 - our SQL
        ).fetchall()
        found = {is_one for (is_one,) in rounded}
        # Beside a rounded number, a column is not DOUBLE, so no number in it may have the digits of its double.
        differing = f"SELECT n FROM {numbers} WHERE NOT {is_integer} AND NOT {is_text_of_its_double('n')} LIMIT 1"  # noqa: S608 - our SQL
        if False in found or (found and connection.execute(differing).fetchone()):
            contents = (with_long_numbers_quoted(blocks(file, self.compression, self.deadline)) for file in self.files)
            self.use([self.space.save(each, file.shown) for each, file in zip(contents, self.files, strict=True)])
            self.compression = "UNCOMPRESSED"
        return not found


def with_long_numbers_quoted(contents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *contents*, which is JSON, and write numbers as strings if the text of their double is another number."""
    rest = b""
    for block in contents:
        text = rest + block
        parts, end, cut = [], 0, len(text)
        for token in _TOKEN.finditer(text):
            if token.end() == len(text):  # The token may continue in the next block.
                cut = token.start()
            elif not token[0].startswith(b'"') and _is_rounded(token[0]):
                parts += [text[end : token.start()], b'"', token[0], b'"']
                end = token.end()
        yield b"".join([*parts, text[end:cut]])
        rest = text[cut:]
    yield rest


def _is_rounded(token: bytes) -> bool:
    """Return True if the text of its double is another number, for a number with a fraction or an exponent."""
    if len(token) < _LONG and b"e" not in token.lower():
        return False
    number = token.decode("ascii", "replace")
    if not re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", number) or number.lstrip("-").isdecimal():
        return False
    # The repr of an infinite double is not a JSON number.
    return Decimal(number) != Decimal(repr(float(number)))


def _leaves(place: Place, type_: Any) -> Iterator[tuple[Place, str]]:
    """Yield the places of the non-nested values in *type_*, and their types."""
    if type_.id == "struct":
        for name, member in type_.children:
            yield from _leaves(replace(place, steps=(*place.steps, name)), member)
    elif type_.id == "list":
        yield from _leaves(replace(place, steps=(*place.steps, None)), type_.children[0][1])
    else:
        yield place, str(type_)


def _type(place: Place, type_: Any, types: Mapping[Place, str]) -> str:
    """Return *type_* in SQL, with other *types* at some places."""
    if type_.id == "struct":
        members = ", ".join(
            f"{identifier(name)} {_type(replace(place, steps=(*place.steps, name)), member, types)}"
            for name, member in type_.children
        )
        return f"STRUCT({members})"
    if type_.id == "list":
        return f"{_type(replace(place, steps=(*place.steps, None)), type_.children[0][1], types)}[]"
    return types.get(place, str(type_))
