"""
Decides whether a statement for a cluster may run, and writes the text that runs.

The cluster is not involved. sqlglot parses the statement, `tree` checks it, `dialect` writes the text, and `text`
checks that text. `docs/internals/decisions/0027-gate-for-spark.md` has the reasons.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from cluster.gate import functions
from cluster.gate.dialect import DIALECT, written
from cluster.gate.node_kinds import WORDS
from cluster.gate.text import check_generated, check_size, marker, quoted_name, with_markers_replaced
from cluster.gate.tree import Reading, find_relation
from queryengine.engine import GatedStatement
from queryengine.errors import EmptyStatementError, SqlSyntaxError, StatementNotAllowedError
from queryengine.gate import fingerprint
from queryengine.gate.lexer import lower, scan

#: Results for statements of up to `_CACHED_CHARACTERS` characters are cached by text, at most `_CACHED` of them.
_CACHED_CHARACTERS: Final = 4096
_CACHED: Final = 512

#: Exceptions that sqlglot raises for hostile text, in addition to its normal errors.
_FAILURES: Final = (SqlglotError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

#: The maximum length of text quoted in an error.
_NEAR_CHARACTERS: Final = 40

_BEGINNINGS: Final = frozenset({"select", "with", "values", "from", "("})

#: The first words of other statements.
_VERBS: Final = frozenset(
    {
        *(
            "add",
            "alter",
            "analyze",
            "attach",
            "begin",
            "cache",
            "call",
            "clear",
            "comment",
            "copy",
            "create",
            "declare",
        ),
        *(
            "delete",
            "detach",
            "drop",
            "execute",
            "export",
            "fetch",
            "grant",
            "import",
            "insert",
            "list",
            "load",
            "lock",
        ),
        *("map", "merge", "msck", "optimize", "pivot", "pragma", "reduce", "refresh", "rename", "replace", "reset"),
        *(
            "restore",
            "revoke",
            "set",
            "start",
            "summarize",
            "table",
            "truncate",
            "uncache",
            "undrop",
            "unlock",
            "unset",
        ),
        *("update", "use", "vacuum"),
    }
)
_EXPLAIN_MODES: Final = frozenset({"extended", "formatted", "cost"})
_ONE_STATEMENT: Final = "Only one statement is allowed: send the statements on each side of a semicolon separately."
_ALL_OF: Final = "SELECT * FROM "
_DESCRIBE: Final = "DESCRIBE accepts a dataset or view: DESCRIBE name."
_SHOW: Final = "SHOW accepts TABLES [IN main], COLUMNS IN a dataset or view, SCHEMAS, DATABASES and CATALOGS."

#: Lists that are the same for every caller.
_CONSTANT_ANSWERS: Final = {
    "catalogs": "SELECT 'runtime' AS `catalog`",
    "databases": "SELECT 'main' AS `namespace`",
    "schemas": "SELECT 'main' AS `namespace`",
}


class SparkGate:
    """Judges statements for a cluster. Thread-safe. Contains no data."""

    def __init__(self) -> None:
        self._cached: Callable[[str, frozenset[str]], GatedStatement] = lru_cache(_CACHED)(_admit)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def admit(self, sql: str, visible: frozenset[str], catalog: str = "") -> GatedStatement:
        """
        Judge *sql*, which may read *visible* (names of datasets and views in lower case).

        The `sql` of the result is for `binding.bound`. A cluster has no *catalog* for a key: it must be empty.

        Raises:
            EmptyStatementError: *sql* has only white space, comments and semicolons.
            SqlSyntaxError: *sql* cannot be parsed, or its nesting or length makes parsing unsafe.
            StatementNotAllowedError: *sql* is not one statement, or does something that is not on the allowlist.
            SqlError: *sql* names a table or function that does not exist.
            ParameterError: *sql* has both named and positional parameters.
        """
        if catalog:
            raise StatementNotAllowedError("Key rules for rows, columns or values are not supported on a cluster.")
        if len(sql) <= _CACHED_CHARACTERS:
            return self._cached(sql, visible)
        return _admit(sql, visible)


def _admit(sql: str, visible: frozenset[str]) -> GatedStatement:
    check_size(sql)
    try:
        tokens = _one_statement(_tokens(sql))
        if not tokens:
            raise EmptyStatementError
        return _judge(sql, tokens, visible)
    except RecursionError:
        raise SqlSyntaxError("The statement is nested too deeply.") from None


def _judge(sql: str, tokens: Sequence[Token], visible: frozenset[str]) -> GatedStatement:
    first = _word(tokens[0])
    if first in ("show", "describe", "desc"):
        return _shown(first, _tokens_after(tokens[0], sql), visible)
    prefix = ""
    if first == "explain":
        prefix, tokens = _explained(_tokens_after(tokens[0], sql))
        first = _word(tokens[0])
    if first not in _BEGINNINGS:
        raise _not_a_query(first) if first in _VERBS else _syntax_error(tokens[0])
    tree = _parse(sql, tokens)
    reading = Reading(visible)
    reading.judge(tree)
    try:
        text = written(tree)
    except _FAILURES as exc:
        raise StatementNotAllowedError("The statement has a construct that is not allowed here.") from exc
    check_generated(text, _words())
    return GatedStatement(
        prefix + text,
        "explain" if prefix else "select",
        relations=frozenset(reading.relations),
        parameters=frozenset(reading.parameters),
        deterministic=reading.deterministic and not prefix,
        digest=_digest(prefix + text),
        catalog=visible if reading.reads_catalog else None,
    )


def _tokens(sql: str) -> list[Token]:
    try:
        tokens = DIALECT.tokenize(sql)
    except TokenError as exc:
        raise SqlSyntaxError("A string, name or comment is not closed.") from exc
    found: list[Token] = []
    for token in tokens:
        before = found[-1] if found else token
        if (
            token.token_type is before.token_type is TokenType.STRING
            and before.end + 1 == token.start
            and sql[before.end] == sql[token.start]
        ):  # a doubled quote: Spark 4 and later reads it as one quote, older versions and Sail drop it
            before.text += sql[token.start] + token.text
            before.end = token.end
            continue
        if token.token_type is TokenType.L_PAREN and before.token_type is TokenType.WINDOW:
            before.token_type = TokenType.VAR  # the function, not the clause
        found.append(token)
    return found


def _tokens_after(first: Token, sql: str) -> list[Token]:
    """Return the tokens after a word like SHOW. After some words, the tokenizer reads the rest as one token."""
    before = sql[: first.end + 1]
    return _one_statement(
        _tokens("".join("\n" if character == "\n" else " " for character in before) + sql[len(before) :])
    )


def _one_statement(tokens: list[Token]) -> list[Token]:
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise StatementNotAllowedError(_ONE_STATEMENT)
        if token.token_type is TokenType.PIPE_GT:
            raise StatementNotAllowedError("The pipe |> is not allowed: write SELECT ... FROM ...")
        if _word(token) == "without":  # sqlglot would ignore it
            raise SqlSyntaxError("WITHOUT TIME ZONE is not allowed: write TIMESTAMP_NTZ.")
    return tokens


def _parse(sql: str, tokens: Sequence[Token]) -> exp.Expr:
    try:
        (tree,) = DIALECT.parser().parse(list(tokens), sql)
    except ParseError as exc:
        fault = exc.errors[0]
        word = str(fault["highlight"])
        near = " ".join(word.split())[:_NEAR_CHARACTERS]
        column = fault["col"] if "\n" in word else fault["col"] - len(word) + 1  # sqlglot's is that of the end
        raise SqlSyntaxError(f'Syntax error at or near "{near}" (line {fault["line"]}, column {column}).') from exc
    except _FAILURES as exc:
        raise SqlSyntaxError("The statement cannot be parsed.") from exc
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery | exp.Values):
        raise _not_a_query(type(tree).__name__.lower())
    return tree


def _explained(tokens: Sequence[Token]) -> tuple[str, Sequence[Token]]:
    """Return EXPLAIN with its mode, and the tokens of the explained statement."""
    mode = _word(tokens[0]) if tokens else ""
    if mode in ("analyze", "codegen"):
        raise SqlSyntaxError("EXPLAIN accepts only one of EXTENDED, FORMATTED and COST.")
    prefix = f"EXPLAIN {mode.upper()} " if mode in _EXPLAIN_MODES else "EXPLAIN "
    tokens = tokens[mode in _EXPLAIN_MODES :]
    if not tokens:
        raise SqlSyntaxError("EXPLAIN must be followed by the query to explain.")
    if _word(tokens[0]) == "explain":
        raise StatementNotAllowedError("EXPLAIN of an EXPLAIN is not allowed.")
    return prefix, tokens


def _shown(verb: str, tokens: Sequence[Token], visible: frozenset[str]) -> GatedStatement:
    """Answer SHOW and DESCRIBE without the engine, which would also list undeclared relations."""
    words = [_word(token) for token in tokens]
    if verb == "show":
        if len(words) == 1 and words[0] in _CONSTANT_ANSWERS:
            return _answer(_CONSTANT_ANSWERS[words[0]])
        if words[:1] == ["tables"] and (len(words) == 1 or _path(tokens[1:], "in", "from") in _SCHEMAS):
            return _answer(_ALL_OF + marker("shown_tables"), catalog=visible)
        path = _path(tokens[1:], "in", "from") if words[:1] == ["columns"] else ()
        kind, refusal = "shown_columns", _SHOW
    else:
        kind, refusal = "described", _DESCRIBE
        path = _path(tokens, *(["table"] if words[:1] == ["table"] and len(words) > 1 else []))
    if not path:
        raise StatementNotAllowedError(refusal)
    name = find_relation(path, visible)
    return _answer(_ALL_OF + marker(kind, name), frozenset({name}))


def _answer(sql: str, relations: frozenset[str] = frozenset(), catalog: frozenset[str] | None = None) -> GatedStatement:
    return GatedStatement(sql, "show", relations, frozenset(), digest=_digest(sql), catalog=catalog)


def _digest(sql: str) -> str:
    readable = with_markers_replaced(sql, lambda kind, name: quoted_name(f"{kind} {name}"))
    return fingerprint.digest(scan(lower(readable)))


_SCHEMAS: Final = frozenset({("main",), ("runtime", "main")})


def _path(tokens: Sequence[Token], *after: str) -> tuple[str, ...]:
    """Return the parts of the name that *tokens* consist of, after one of the words *after*; empty if they do not."""
    if after:
        if not tokens or _word(tokens[0]) not in after:
            return ()
        tokens = tokens[1:]
    names, dots = tokens[::2], tokens[1::2]
    is_path = len(tokens) % 2 and all(token.token_type is TokenType.DOT for token in dots)
    parts = tuple(token.text for token in names)
    return tuple(map(lower, parts)) if is_path and all(parts) else ()


def _syntax_error(token: Token) -> SqlSyntaxError:
    near = token.text[:_NEAR_CHARACTERS]
    return SqlSyntaxError(
        f'Syntax error at or near "{near}" (line {token.line}, column {token.col - len(token.text) + 1}).'
    )


def _not_a_query(word: str) -> StatementNotAllowedError:
    if word == "table":
        return StatementNotAllowedError("TABLE name is not allowed: write SELECT * FROM name.")
    what = f"{word.upper()} statements are" if word in _VERBS else "This statement is"
    return StatementNotAllowedError(f"{what} not allowed: this endpoint is read-only.")


def _word(token: Token) -> str:
    """Return the first word of *token* in lower case; empty for a quoted name or a string."""
    if token.token_type in (TokenType.IDENTIFIER, TokenType.STRING):
        return ""
    return lower(token.text.split(" ")[0]) if token.text else ""


@cache
def _words() -> frozenset[str]:
    return WORDS | functions.judgements().keys()
