"""
Rewrites SQL that DataFusion supports and DuckDB does not: calls with other arguments, and syntax.

Only a statement that DuckDB cannot run as written is rewritten, so no other statement changes its meaning. Either the
gate refuses such a statement, or it finds a call that `is_foreign`. The rewritten text is parsed and checked like any
other. Functions that do not need rewriting are macros (see `macros`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from queryengine.gate.lexer import Kind, Scan, Token

#: An edit: the start and end position of the text to replace, and the new text.
_Edit = tuple[int, int, str]


class _Call(NamedTuple):
    """
    A function call. `tokens[begin]` is the name, and `tokens[close]` is the closing bracket.

    `arguments` contains, for each argument, the index of its first token and of the token after it. `bounds` contains,
    by the index of each opening bracket in the statement, the indexes of its commas and of its closing bracket. `words`
    are all words in the statement.
    """

    tokens: tuple[Token, ...]
    bounds: Mapping[int, list[int]]
    words: frozenset[str]
    begin: int
    close: int
    arguments: list[tuple[int, int]]

    def word(self, index: int) -> str:
        """Return the word at *index*, counted from the token after the call."""
        index += self.close + 1
        return self.tokens[index].word if index < len(self.tokens) else ""

    def renamed(self, name: str) -> _Edit:
        """Return the edit that renames the call."""
        token = self.tokens[self.begin]
        return token.start, token.end, name

    def without(self, argument: int) -> _Edit:
        """Return the edit that removes an argument other than the first."""
        before, last = (self.tokens[self.arguments[index][1] - 1] for index in (argument - 1, argument))
        return before.end, last.end, ""

    def text_of(self, argument: int) -> str | None:
        """Return the value of an argument that is a plain string literal; None for any other argument."""
        first, end = self.arguments[argument]
        text = self.tokens[first].text
        is_text = end == first + 1 and self.tokens[first].kind is Kind.STRING and text[0] == "'"
        return text[1:-1].replace("''", "'") if is_text else None


_Rule = Callable[[_Call], list[_Edit]]


def rewritten(scan: Scan) -> str | None:
    """Return the text of *scan* rewritten for DuckDB; None if there is nothing to rewrite."""
    tokens = scan.tokens
    if columns := _shown_columns(tokens):
        return columns
    bounds, words = _bounds(tokens), frozenset(token.word for token in tokens)
    edits: list[_Edit] = []
    for index, token in enumerate(tokens):
        edits += _edits(tokens, index)
        if (rule := _RULES.get(token.word)) and index + 1 in bounds and tokens[index + 1].text == "(":
            ends = bounds[index + 1]
            arguments = [(before + 1, end) for before, end in pairwise([index + 1, *ends])]
            edits += rule(_Call(tokens, bounds, words, index, ends[-1], [] if ends == [index + 2] else arguments))
    if not edits:
        return None
    pieces: list[str] = []
    kept = 0
    for start, end, new in sorted(edits):
        pieces += [scan.text[kept:start], new]
        kept = end
    return "".join([*pieces, scan.text[kept:]])


def is_foreign(name: str, arguments: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a call of *name* (lower-case) with *arguments* of a parse tree can never succeed in DuckDB."""
    if name == "to_timestamp" and len(arguments) == 1:
        literal = arguments[0].get("expression", {}).get("literal", {})
        return literal.get("kind") == "STRING" and _DATE.match(literal.get("text", "")) is not None
    return name in _NEED_OVER or len(arguments) in _OTHER_ARGUMENTS.get(name, ())


def _bounds(tokens: tuple[Token, ...]) -> dict[int, list[int]]:
    """Return the indexes of the commas directly in each bracket and of its closing bracket, by opening bracket."""
    found: dict[int, list[int]] = {}
    outer: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind is Kind.OPENING:
            outer.append(index)
            found[index] = []
        elif token.kind is Kind.CLOSING:
            found[outer.pop()].append(index)
        elif token.text == "," and outer:
            found[outer[-1]].append(index)
    return found


def _edits(tokens: tuple[Token, ...], index: int) -> Iterator[_Edit]:
    """Yield the edits for syntax that begins at *index*."""
    here = tokens[index]
    match [token.word or token.text for token in tokens[index : index + 3]]:
        case ["left", "semi" | "anti", "join"]:
            yield here.start, tokens[index + 1].start, ""
        case [word, "unsigned", *_] if word in _UNSIGNED:
            yield here.start, tokens[index + 1].end, _UNSIGNED[word]
        case [")", "ignore" | "respect" as what, "nulls"]:
            yield here.start, tokens[index + 2].end, f" {what} NULLS)"


_UNSIGNED: Final[Mapping[str, str]] = {
    "tinyint": "UTINYINT", "smallint": "USMALLINT", "int": "UINTEGER", "integer": "UINTEGER", "bigint": "UBIGINT",
}  # fmt: skip


def _shown_columns(tokens: tuple[Token, ...]) -> str | None:
    """Return SHOW COLUMNS FROM a relation as a query."""
    if [token.word for token in tokens[:3]] not in (["show", "columns", "from"], ["show", "columns", "in"]):
        return None
    names = tokens[3:]
    if not names or any(token.text != "." and token.name is None for token in names):
        return None
    path = "".join(token.text for token in names)
    literal = "'" + (names[-1].name or "").replace("'", "''") + "'"
    columns = f'{literal} AS table_name, column_name, column_type AS data_type, "null" AS is_nullable'
    before = (names[-3].name or "") if len(names) > 2 else ""
    schema = "main" if before.lower() == "runtime" else before.replace("'", "''") or "main"
    return f"SELECT 'runtime' AS table_catalog, '{schema}' AS table_schema, {columns} FROM (DESCRIBE {path})"  # noqa: S608 - names


def _named(name: str) -> _Rule:
    return lambda call: [call.renamed(name)]


def _counted(names: Mapping[int, str]) -> _Rule:
    """Return a rule that renames a call depending on the number of its arguments."""

    def rule(call: _Call) -> list[_Edit]:
        name = names.get(len(call.arguments))
        return [call.renamed(name)] if name else []

    return rule


def _without_over(name: str) -> _Rule:
    """Return a rule that renames an aggregate which DuckDB supports only as a window function."""
    return lambda call: [] if _is_window(call) else [call.renamed(name)]


def _is_window(call: _Call) -> bool:
    if call.word(0) in ("ignore", "respect"):
        return call.word(2) == "over"
    if call.word(0) == "filter" and (filtered := call.bounds.get(call.close + 2)):
        return call.word(filtered[-1] - call.close) == "over"
    return call.word(0) == "over"


def _nth_value(call: _Call) -> list[_Edit]:
    """Rewrite `nth_value(x, 2 ORDER BY y)` to `list_extract(list(x ORDER BY y), 2)`."""
    if len(call.arguments) < 2 or _is_window(call) or call.word(0) == "filter":
        return []
    number = call.tokens[call.arguments[1][0]]
    if number.kind is not Kind.NUMBER:
        return []
    end = call.tokens[call.close].end
    comma = call.tokens[call.arguments[1][0] - 1]
    return [call.renamed("list_extract(list"), (comma.start, number.end, ""), (end, end, f", {number.text})")]


def _approx_median(call: _Call) -> list[_Edit]:
    if len(call.arguments) != 1:
        return []
    end = call.tokens[call.close].start
    return [call.renamed("approx_quantile"), (end, end, ", 0.5")]


def _approx_percentile(call: _Call) -> list[_Edit]:
    """Rewrite `f(p, n) WITHIN GROUP (ORDER BY x)` to `df_percentile(p, x)`, `f(x, p, n)` to `approx_quantile(x, p)`."""
    if [call.word(at) for at in range(2)] == ["within", "group"]:
        order = call.close + 4
        end = call.bounds.get(order - 1, [order])[-1]
        inside = call.tokens[order : order + 2], call.tokens[end - 2 : end]
        words = [token.word for tokens in inside for token in tokens]
        if words[:2] != ["order", "by"] or {"asc", "desc", "nulls"}.intersection(words):
            return []
        centroids = [call.without(1)] if len(call.arguments) == 2 else []
        closing = (call.tokens[call.close].start, call.tokens[order + 1].end, ",")
        return [call.renamed("df_percentile"), *centroids, closing]
    if len(call.arguments) not in (2, 3):
        return []
    return [call.renamed("approx_quantile"), *([call.without(2)] if len(call.arguments) == 3 else [])]


def _struct(call: _Call) -> list[_Edit]:
    """Rewrite `struct(x, y AS b)` to `struct_pack(c0 := x, b := y)`, but keep types such as `x::STRUCT(y INTEGER)`."""
    before = call.tokens[call.begin - 1] if call.begin else None
    if before is not None and (before.text == ":" or before.name) and before.word not in _BEFORE_EXPRESSION:
        return []
    edits = [call.renamed("struct_pack")]
    for number, (first, end) in enumerate(call.arguments):
        name = f"c{number}"
        if end - first > 2 and call.tokens[end - 2].word == "as":
            name = call.tokens[end - 1].text
            edits.append((call.tokens[end - 3].end, call.tokens[end - 1].end, ""))
        edits.append((call.tokens[first].start, call.tokens[first].start, f"{name} := "))
    return edits if call.arguments else []


def _named_struct(call: _Call) -> list[_Edit]:
    """Rewrite `named_struct('a', x)` to `struct_pack("a" := x)`."""
    edits = [call.renamed("struct_pack")]
    for number in range(0, len(call.arguments) - 1, 2):
        name = call.text_of(number)
        if name is None:
            return []
        first, comma = call.tokens[call.arguments[number][0]], call.tokens[call.arguments[number][1]]
        quoted = name.replace('"', '""')
        edits.append((first.start, comma.end, f'"{quoted}" :='))
    return edits if len(call.arguments) % 2 == 0 and call.arguments else []


def _cast(keyword: str) -> _Rule:
    """Return a rule that rewrites `arrow_cast(x, 'Int8')` to `CAST(x AS TINYINT)`."""

    def rule(call: _Call) -> list[_Edit]:
        written = call.text_of(1) if len(call.arguments) == 2 else None
        type_ = _sql_type(written or "")
        if type_ is None:
            return []
        comma, literal = call.tokens[call.arguments[1][0] - 1], call.tokens[call.arguments[1][0]]
        return [call.renamed(keyword), (comma.start, literal.end, f" AS {type_}")]

    return rule


def _sql_type(arrow_type: str) -> str | None:
    if match := _DECIMAL.fullmatch(arrow_type):
        return f"DECIMAL({match[1]}, {match[2]})"
    if match := _TIMESTAMP.fullmatch(arrow_type):
        # DataFusion reads a string without a zone in the type's zone. Only UTC has the same meaning in DuckDB.
        if match[2]:
            return "TIMESTAMPTZ" if match[2].strip('Some(")') in ("UTC", "+00:00") else None
        return _TIMESTAMPS.get(match[1].lower())
    return _TYPES.get(arrow_type)


def _to_timestamp(call: _Call) -> list[_Edit]:
    """Rename a call with a string, because DuckDB's function accepts a number."""
    if len(call.arguments) > 1:
        return [call.renamed("df_to_timestamp")]
    text = call.text_of(0) if call.arguments and "try" not in call.words else None  # TRY turns an error into NULL.
    return [call.renamed("df_to_timestamp")] if text and _DATE.match(text) else []


_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_DECIMAL: Final = re.compile(r"Decimal(?:32|64|128|256)\((\d{1,2}), ?(\d{1,2})\)")
_TIMESTAMP: Final = re.compile(r"Timestamp\((\w+)(?:, (?:None|(Some\(\"[^\"]+\"\)|\"[^\"]+\")))?\)")
_TIMESTAMPS: Final = {
    unit: sql
    for sql, units in {
        "TIMESTAMP_S": "s second",
        "TIMESTAMP_MS": "ms millisecond",
        "TIMESTAMP": "us µs microsecond",
        "TIMESTAMP_NS": "ns nanosecond",
    }.items()
    for unit in units.split()
}
_TYPES: Final = {
    arrow: sql
    for sql, names in {
        "TINYINT": "Int8",
        "SMALLINT": "Int16",
        "INTEGER": "Int32",
        "BIGINT": "Int64",
        "UTINYINT": "UInt8",
        "USMALLINT": "UInt16",
        "UINTEGER": "UInt32",
        "UBIGINT": "UInt64",
        "FLOAT": "Float32",
        "DOUBLE": "Float64",
        "BOOLEAN": "Boolean",
        "DATE": "Date32",
        "VARCHAR": "Utf8 LargeUtf8 Utf8View",
        "BLOB": "Binary LargeBinary BinaryView",
    }.items()
    for arrow in names.split()
}

#: Words that an expression may follow.
_BEFORE_EXPRESSION: Final = frozenset(
    {
        *("select", "distinct", "all", "where", "and", "or", "not", "by", "having", "on", "in", "between", "like"),
        *("case", "when", "then", "else"),
    }
)

#: Functions that DuckDB supports only with OVER.
_NEED_OVER: Final = frozenset({"first_value", "last_value", "nth_value"})

#: Functions of both engines, with the argument counts that only DataFusion supports, and the macro for each count.
_OTHER_ARGUMENTS: Final[Mapping[str, Mapping[int, str]]] = {
    "array_position": {3: "df_array_position"},
    "array_to_string": {3: "array_join"},
    "encode": {2: "df_encode"},
    "lpad": {2: "df_lpad"},
    "rpad": {2: "df_rpad"},
    "string_to_array": {3: "df_string_to_array"},
    "to_timestamp": dict.fromkeys((2, 3, 4), "df_to_timestamp"),
}

_RULES: Final[Mapping[str, _Rule]] = {
    **{name: _counted(names) for name, names in _OTHER_ARGUMENTS.items()},
    "approx_distinct": _named("approx_count_distinct"),
    "approx_median": _approx_median,
    "approx_percentile_cont": _approx_percentile,
    "arrow_cast": _cast("CAST"),
    "arrow_try_cast": _cast("TRY_CAST"),
    "covar": _named("covar_samp"),
    "current_time": _counted({0: "get_current_time"}),
    "current_timestamp": _counted({0: "now"}),
    "first_value": _without_over("first"),
    "last_value": _without_over("last"),
    "make_array": _named("list_value"),
    "make_list": _named("list_value"),
    "named_struct": _named_struct,
    "nth_value": _nth_value,
    "percentile_cont": _counted({2: "quantile_cont"}),
    "position": _counted({2: "strpos"}),
    "struct": _struct,
    "to_timestamp": _to_timestamp,
    "var": _named("var_samp"),
    "var_population": _named("var_pop"),
    "var_sample": _named("var_samp"),
}

#: The functions whose calls may be rewritten. DuckDB also has some of them, with other arguments.
REWRITTEN: Final = _RULES.keys()
