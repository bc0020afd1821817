"""
The value table: how the values of each DuckDB type are exported, and how names are made unique.

Results leave DuckDB as Arrow record batches. Arrow represents most types exactly, but not all: a UHUGEINT over 2^127
becomes negative, a TIME WITH TIME ZONE loses its zone, and the time part of an INTERVAL wraps at 292 years. Such types
are cast to text inside the engine. They are listed in `TABLE`, and documented for users in `docs/values.md`.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache

from msgspec import Struct

#: The maximum nesting in Arrow. pyarrow refuses more than 64 levels, and a MAP needs two. Deeper values are text.
MAX_NESTING = 30

#: The maximum number of types inside one type. A short statement can double a type many times. Larger types are text.
MAX_MEMBERS = 10_000

#: The maximum number of members of a UNION in Arrow. The engine allows 255.
MAX_ALTERNATIVES = 128

#: Types with longer names are not cached, because they could fill the memory.
LONGEST_CACHED_TEXT = 256


class Carrier(Enum):
    """The form of a value on its way from the engine to the encoders."""

    ARROW = "the Arrow type that the engine exports"
    TEXT = "the engine's text of the value"
    NUMBER = "the digits of an integer, as text"
    JSON = "the engine's JSON of the value, which may contain NaN and Infinity"


#: The carrier of every known DuckDB type. Values of other types are exported as text, which is always correct.
TABLE: Mapping[str, Carrier] = {
    **dict.fromkeys(
        (
            *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
            "HUGEINT",  # decimal128(38,0): 39 digits exceed the declared precision, but the bits are exact
            *("FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "JSON", "UUID", "ENUM", "BLOB", "NULL"),
            *("DATE", "TIME", "TIME_NS", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
            *("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"),
            *("LIST", "ARRAY", "STRUCT", "TUPLE", "MAP", "UNION"),
        ),
        Carrier.ARROW,
    ),
    "UHUGEINT": Carrier.NUMBER,  # exported as signed: 2^128 - 1 becomes -1
    "BIGNUM": Carrier.NUMBER,  # exported as opaque bytes
    "BIT": Carrier.TEXT,  # exported as the engine's own packing
    "TIME WITH TIME ZONE": Carrier.TEXT,  # exported without its zone
    "INTERVAL": Carrier.TEXT,  # exported in nanoseconds, which wrap beyond 292 years
    "GEOMETRY": Carrier.TEXT,  # well-known text instead of well-known binary
    "TYPE": Carrier.TEXT,  # not exported at all
    "VARIANT": Carrier.JSON,  # exported as two opaque byte columns
}

_NESTED = frozenset({"STRUCT", "TUPLE", "MAP", "UNION"})
_PUNCTUATION = frozenset({"", "(", ")", ",", "[", "]"})

_CAST_TARGETS = {Carrier.TEXT: "VARCHAR", Carrier.NUMBER: "VARCHAR", Carrier.JSON: "JSON"}

# A whole ENUM is one token, because it may list a hundred thousand values. Possessive quantifiers prevent backtracking.
_TOKEN = re.compile(
    r"""
    ENUM\( '(?:[^']|'')*+' (?:,\ '(?:[^']|'')*+')*+ \)
    | "(?:[^"]|"")*+"
    | '(?:[^']|'')*+'
    | [^\s"'(),\[\]]++
    | [(),\[\]]
    """,
    re.VERBOSE,
)


class ValueType(Struct, frozen=True):
    """
    A DuckDB type as a tree.

    `name` is a key of `TABLE` or the name of an unknown type, and `sql` is the type as SQL. The only child of a LIST or
    ARRAY is its element type. The children of a MAP are its key and value types. The children of a STRUCT, TUPLE or
    UNION are its member types, whose names are in `fields` (a TUPLE has no names).
    """

    name: str
    sql: str
    children: "tuple[ValueType, ...]" = ()
    fields: tuple[str, ...] = ()

    @property
    def carrier(self) -> Carrier:
        """The carrier of values of this type, not considering its children."""
        return TABLE.get(self.name, Carrier.TEXT)


def select_list(columns: Iterable[tuple[str, str]], *, renamed: bool = False) -> str | None:
    """
    Return the SQL to select *columns* (names and types) so that the Arrow export of each column is exact.

    Columns are selected by position because names may repeat. The result is None if all columns are already exact, and
    none has been *renamed*.
    """
    columns = tuple(columns)
    targets = [exact_type(parse_type(duckdb_type)) for _, duckdb_type in columns]
    if not renamed and not any(targets):
        return None
    return ", ".join(
        f"{f'CAST(#{number} AS {target})' if target else f'#{number}'} AS {quoted(name)}"
        for number, (target, (name, _)) in enumerate(zip(targets, columns, strict=True), start=1)
    )


def parse_type(duckdb_type: str) -> ValueType:
    """
    Parse a type as DuckDB writes it, such as `STRUCT(a INTEGER[], "b c" MAP(VARCHAR, UHUGEINT))`.

    A string that is not a type, is nested deeper than `MAX_NESTING` or has more than `MAX_MEMBERS` types becomes an
    unknown type, whose values are exported as text. So does one with a UNION of more than `MAX_ALTERNATIVES` members.
    """
    return _cached(duckdb_type) if len(duckdb_type) <= LONGEST_CACHED_TEXT else _parsed(duckdb_type)


def _parsed(duckdb_type: str) -> ValueType:
    try:
        return _TypeParser(duckdb_type).whole()
    except ValueError:
        return ValueType("", duckdb_type)


_cached = lru_cache(maxsize=1024)(_parsed)


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """
    Make names unique. The first `a` stays, the next becomes `a_1`, then `a_2`, skipping names that are in use.

    Names are compared exactly, so `a` and `A` are different names.
    """
    names = tuple(names)
    taken = set(names)
    if len(taken) == len(names):
        return names
    seen: set[str] = set()
    suffixes: dict[str, int] = {}
    unique = []
    for name in names:
        candidate = name
        if name in seen:
            suffix = suffixes.get(name, 0)
            while candidate in taken:
                suffix += 1
                candidate = f"{name}_{suffix}"
            suffixes[name] = suffix
            taken.add(candidate)
        seen.add(candidate)
        unique.append(candidate)
    return tuple(unique)


def exact_type(kind: ValueType) -> str | None:
    """Return the SQL type to which *kind* must be cast for an exact Arrow export; None if no cast is needed."""
    if kind.carrier is not Carrier.ARROW:
        return _CAST_TARGETS[kind.carrier]
    targets = [exact_type(child) for child in kind.children]
    if all(target is None for target in targets):
        return None
    # An ENUM becomes text, because it may list very many values.
    members = [
        target or ("VARCHAR" if child.name == "ENUM" else child.sql)
        for child, target in zip(kind.children, targets, strict=True)
    ]
    if kind.name in {"LIST", "ARRAY"}:
        return members[0] + kind.sql[kind.sql.rindex("[") :]
    if kind.name in {"MAP", "TUPLE"}:
        return f"{kind.name}({', '.join(members)})"
    if not all(kind.fields):
        return "VARCHAR"  # A Parquet file may have a member without a name, which SQL cannot express.
    named = [f"{quoted(field)} {member}" for field, member in zip(kind.fields, members, strict=True)]
    return f"{kind.name}({', '.join(named)})"


def quoted(name: str) -> str:
    """Return *name* as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def split_relation(name: str) -> tuple[str, str]:
    """Return the schema of the dataset or view *name* in the catalog `runtime`, and its name in that schema."""
    schema, _, table = name.rpartition(".")
    return schema or "main", table


def qualified(name: str) -> str:
    """Return the dataset or view *name* as SQL, qualified with its schema."""
    return ".".join(map(quoted, split_relation(name)))


class _TypeParser:
    """A recursive descent parser for one type. It raises ValueError for anything else."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.finditer(text)
        self._token = next(self._tokens, None)
        self._end = 0  # of the previous token
        self._members = 0

    def whole(self) -> ValueType:
        """Parse one type. Nothing may follow it."""
        kind = self._type(0)
        if self._token is not None:
            raise ValueError
        return kind

    def _type(self, depth: int) -> ValueType:
        """Parse one type with its `[]` and `[3]` suffixes, nested *depth* levels deep."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ValueError
        start = self._start()
        kind = self._base(depth)
        while self._peek() == "[":
            depth += 1
            self._take("[")
            name = "LIST" if self._peek() == "]" else "ARRAY"
            if name == "ARRAY":
                self._word()
            self._take("]")
            kind = ValueType(name, self._text[start : self._end], (kind,))
        if depth > MAX_NESTING:
            raise ValueError
        return kind

    def _base(self, depth: int) -> ValueType:
        start = self._start()
        first = self._word()
        if first.startswith("ENUM("):
            return ValueType("ENUM", first)
        words = [_unquoted(first)]
        while self._peek() not in _PUNCTUATION:
            words.append(self._word())
        name = " ".join(words)
        fields: list[str] = []
        children: list[ValueType] = []
        if self._peek() == "(":
            if depth == MAX_NESTING and name in _NESTED:
                raise ValueError
            separator = "("
            while self._peek() == separator:
                self._take(separator)
                if name in {"STRUCT", "UNION"}:
                    fields.append(_unquoted(self._word()))
                if name in _NESTED:
                    children.append(self._type(depth + 1))
                else:
                    self._word()  # DECIMAL(18,3), GEOMETRY('OGC:CRS84')
                separator = ","
            self._take(")")
        if name == "UNION" and len(children) > MAX_ALTERNATIVES:
            raise ValueError
        return ValueType(name, self._text[start : self._end], tuple(children), tuple(fields))

    def _start(self) -> int:
        return self._token.start() if self._token else len(self._text)

    def _peek(self) -> str:
        return self._token.group() if self._token else ""

    def _take(self, token: str) -> None:
        if self._token is None or self._token.group() != token:
            raise ValueError
        self._end = self._token.end()
        self._token = next(self._tokens, None)

    def _word(self) -> str:
        word = self._peek()
        if word in _PUNCTUATION:
            raise ValueError
        self._take(word)
        return word


def _unquoted(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word
