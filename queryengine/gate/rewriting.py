"""
Rewrites the text of a statement that cannot be checked or run as written.

The changes are made on tokens. They are safe because the changed text is parsed and checked like any other, so a change
in the wrong place can only make a statement fail.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from queryengine.gate.lexer import Kind, Scan, Token, lower
from queryengine.gate.parse_tree import CATALOG, CATALOG_VIEWS, SHOWN_COLUMNS, SHOWN_TABLES

_PIVOT = frozenset({"pivot", "pivot_wider"})

_SHOWS = frozenset({"show", "describe", "desc"})

#: Words that the name of a relation follows. After FROM, it could also be a column, as in `extract(year FROM x)`.
_BEFORE_RELATION = frozenset({"from", "join", "table", "pivot", "unpivot", "describe", "desc", "summarize", "show"})

_SET_OPERATIONS = frozenset({"union", "except", "intersect"})

#: Reserved words that can follow the ON list of a PIVOT. Outside brackets, none of them can be part of an expression.
_AFTER_ON = frozenset(
    {
        *("using", "group", "order", "limit", "offset", "having", "where", "qualify", "window", "on", "from", "join"),
        *_SET_OPERATIONS,
    }
)
#: The first words of a query in the brackets after IN. The engine runs such a query to find the values.
_QUERY = frozenset(
    {"select", "from", "with", "values", "table", "pivot", "unpivot", "describe", "desc", "show", "summarize"}
)


def is_query_with_pivot(scan: Scan) -> bool:
    """Return whether the statement begins like a query and contains the word PIVOT."""
    begins = scan[0].text == "(" or scan[0].word in _QUERY | _PIVOT
    return begins and any(token.word in _PIVOT for token in scan.tokens)


def with_pivot_values(scan: Scan) -> str:
    """
    Add a list of values to each ON item of a PIVOT.

    `a` becomes `(a) IN (0)`, and `a IN (FROM b)` becomes `a IN (0, abs((FROM b)))`. This is needed because the engine
    cannot serialise a PIVOT whose values it must find first. The changed text contains every token of the statement in
    the same order, so its tree has every function and relation of the statement.
    """
    tokens = scan.tokens
    insertions: list[tuple[int, str]] = []
    # Innermost first: if two items end at the same position, the values of the inner one come first.
    found = (_on(tokens, index) for index, token in enumerate(tokens) if token.word in _PIVOT)
    for on in sorted({on for on in found if on is not None}, reverse=True):
        for first, last in _items(tokens, on):
            insertions += _values(tokens[first : last + 1])
    return _insert(scan.text, insertions)


def has_nested_with(scan: Scan) -> bool:
    """Return whether the query after a WITH clause begins with another WITH clause in brackets."""
    after_definition = False
    for before, token in pairwise(scan.tokens):
        if token.text == "(":
            after_definition = before.text == ")" or (after_definition and before.text == "(")
        elif after_definition and before.text == "(" and token.word == "with":
            return True
    return False


def has_query_word(scan: Scan) -> bool:
    """Return whether the expression contains the first word of a query, as every subquery does."""
    return any(token.word in _QUERY for token in scan.tokens)


def is_sorted(scan: Scan) -> bool:
    """Say whether the query fixes the order of its rows. A column may be named `order`."""
    depth = _brackets_around(scan.tokens)
    words = ["", *(token.word or token.text if token.depth == depth else "" for token in scan.tokens), ""]
    return any(
        word == "order" and following == "by" and before not in {"as", "."}
        for before, word, following in zip(words, words[1:], words[2:], strict=False)
    )


def has_windows(scan: Scan) -> bool:
    """Return whether the statement may name windows."""
    return "window" in lower(scan.text) and any(token.word == "window" for token in scan.tokens)


def with_windows_used(scan: Scan) -> str:
    """
    Use each named window: append `QUALIFY (count(*) OVER w) IS NULL` to `WINDOW w AS (...)`.

    The parser's tree does not contain unused windows.
    """
    tokens = scan.tokens
    insertions: list[tuple[int, str]] = []
    for index, token in enumerate(tokens):
        if token.word != "window":
            continue
        names: list[str] = []
        end = index
        while (end == index or _text(tokens, end) == ",") and _name(tokens, end + 1) and _text(tokens, end + 3) == "(":
            names.append(tokens[end + 1].text)
            depth = tokens[end + 3].depth
            end = next(at for at in range(end + 4, len(tokens)) if tokens[at].depth == depth) + 1
        if names:
            uses = f"({', '.join(f'count(*) OVER {name}' for name in names)}) IS NULL"
            is_qualified = end < len(tokens) and tokens[end].word == "qualify"
            insertions.append(
                (tokens[end].end, f" {uses} AND ") if is_qualified else (tokens[end - 1].end, f" QUALIFY {uses} ")
            )
    return _insert(scan.text, insertions)


def with_hidden_catalog(scan: Scan, schema: str) -> str:
    """
    Replace `information_schema.tables`, `.columns`, `.schemata` and SHOW lists with the hidden views in *schema*.

    In a column qualifier (`information_schema.tables.table_name`), only the last part is kept.
    """
    tokens = scan.tokens
    pieces: list[str] = []
    kept = 0
    for index, token in enumerate(tokens):
        if token.word in _SHOWS and (shown := _shown_list(tokens, index)):
            first, (view, last) = index, shown
            new = f"FROM {CATALOG}.{schema}.{view}"
        elif (
            token.name == "information_schema"
            and _text(tokens, index + 1) == "."
            and (view := _name(tokens, index + 2)) in CATALOG_VIEWS
        ):
            is_qualified = _text(tokens, index - 1) == "." and _name(tokens, index - 2) == "runtime"
            first, last = index - 2 * is_qualified, index + 2
            new = view if _text(tokens, index + 3) == "." else f"{CATALOG}.{schema}.{view}"
        else:
            continue
        pieces += [scan.text[kept : tokens[first].start], new]
        kept = tokens[last].end
    return "".join([*pieces, scan.text[kept:]])


def without_database(scan: Scan, relations: frozenset[str]) -> str:
    """
    Remove the database name before *relations*: `runtime.sales.a` becomes `sales.a`, and `runtime.a` `main.a`.

    `a` alone could mean a common table expression. The statement runs in another database in place of `runtime`. A
    remaining database name in a relation is refused. If the statement itself has something called `runtime`, the name
    is removed only where a relation must follow.
    """
    tokens = scan.tokens
    is_defined = any(token.name == "runtime" and _text(tokens, index + 1) != "." for index, token in enumerate(tokens))
    pieces: list[str] = []
    kept = 0
    for index, token in enumerate(tokens):
        if token.name != "runtime" or _text(tokens, index + 1) != "." or _text(tokens, index - 1) == ".":
            continue
        if is_defined and (index == 0 or tokens[index - 1].word not in _BEFORE_RELATION):
            continue
        first = _name(tokens, index + 2)
        second = _name(tokens, index + 4) if _text(tokens, index + 3) == "." else ""
        if "." in f"{first}{second}":  # One identifier must not contain a dot.
            continue
        if (f"{first}.{second}" in relations or (first == "main" and second in relations)) and (
            _text(tokens, index + 5) != "("  # a function of that name
        ):
            pieces.append(scan.text[kept : token.start])
            kept = tokens[index + 2].start
        elif first in relations and _text(tokens, index + 3) != "(":
            pieces += [scan.text[kept : token.start], "main"]
            kept = token.end
    return "".join([*pieces, scan.text[kept:]])


def _brackets_around(tokens: tuple[Token, ...]) -> int:
    """Return how many brackets contain the whole query."""
    count, end = 0, len(tokens)
    while end and tokens[end - 1].text in {"", ";"}:
        end -= 1
    while (
        count < end
        and tokens[count].text == "("
        and all(token.depth > count for token in tokens[count + 1 : end - 1 - count])
        and tokens[end - 1 - count].text == ")"
    ):
        count += 1
    return count


def _shown_list(tokens: tuple[Token, ...], show: int) -> tuple[str, int] | None:
    """Return the hidden view for the list requested by the SHOW at index *show*, and the index of its last token."""
    words = [tokens[index].word for index in range(show + 1, min(show + 4, len(tokens)))]
    if words[:2] == ["all", "tables"]:
        return SHOWN_COLUMNS, show + 2
    if words[:2] == ["tables", "from"]:
        last = show + 3
        while _text(tokens, last + 1) == ".":
            last += 2
        return SHOWN_TABLES, last
    if words[:1] == ["tables"]:
        return SHOWN_TABLES, show + 1
    if not words or tokens[show + 1].kind is Kind.CLOSING:
        return SHOWN_COLUMNS, show
    return None


def _on(tokens: tuple[Token, ...], pivot: int) -> int | None:
    """Return the index of the ON of the PIVOT at *pivot*: the last at its depth, because earlier ones are for joins."""
    depth = tokens[pivot].depth
    found = None
    for index in range(pivot + 1, len(tokens)):
        token = tokens[index]
        if token.depth < depth or (token.depth == depth and (token.text == ";" or token.word in _SET_OPERATIONS)):
            break
        if token.depth == depth and token.word == "on":
            found = index
    return found


def _items(tokens: tuple[Token, ...], on: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each item after the ON at index *on*."""
    depth = tokens[on].depth
    first = on + 1
    for index in range(on + 1, len(tokens) + 1):
        token = tokens[index] if index < len(tokens) else None
        ends = (
            token is None
            or (token.kind is Kind.CLOSING and token.depth < depth)
            or (token.depth == depth and (token.text == ";" or token.word in _AFTER_ON))
        )
        if ends or (token is not None and token.depth == depth and token.text == ","):
            if first < index:
                yield first, index - 1
            first = index + 1
        if ends:
            return


def _values(item: tuple[Token, ...]) -> list[tuple[int, str]]:
    """Return the insertions that make an ON item list its values."""
    depth = item[0].depth
    for index, token in enumerate(item[:-1]):
        if token.word != "in" or token.depth != depth or not _is_column(item[:index]):
            continue
        opening, closing = item[index + 1], item[-1]
        inside = next((other for other in item[index + 1 :] if other.kind is not Kind.OPENING), closing)
        if opening.kind is not Kind.OPENING or closing.kind is not Kind.CLOSING or inside.word not in _QUERY:
            return []
        return [(opening.end, "0, abs(("), (closing.start, "))")]
    return [(item[0].start, "("), (item[-1].end, ") IN (0)")]


def _is_column(head: tuple[Token, ...]) -> bool:
    """Return whether *head* is a column or in brackets. After anything else, IN is part of an expression."""
    if head and head[0].kind is Kind.OPENING:
        return all(token.depth > head[0].depth for token in head[1:-1])
    return all(token.name or token.text == "." for token in head) and (len(head) < 2 or head[-1].word != "not")


def _insert(text: str, insertions: Iterable[tuple[int, str]]) -> str:
    pieces: list[str] = []
    kept = 0
    for position, new in sorted(insertions, key=lambda insertion: insertion[0]):
        pieces += [text[kept:position], new]
        kept = position
    return "".join([*pieces, text[kept:]])


def _text(tokens: tuple[Token, ...], index: int) -> str:
    return tokens[index].text if 0 <= index < len(tokens) else ""


def _name(tokens: tuple[Token, ...], index: int) -> str:
    return (tokens[index].name or "") if 0 <= index < len(tokens) else ""
