"""
Decides whether a statement may run, before an engine with data sees it.

First the lexer checks the size and nesting of the statement. Then DuckDB's own parser, in a private, empty, locked
instance, builds a parse tree, which is checked against an allowlist (`parse_tree`, `functions`). `docs/sql.md` lists
the allowed statements. `docs/internals/decisions/0004-statement-gate.md` explains the reasons.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import duckdb

from queryengine.bounded_dict import BoundedDict
from queryengine.engine import GatedStatement, StatementKind
from queryengine.errors import (
    EmptyStatementError,
    EngineUnavailableError,
    ParameterError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)
from queryengine.gate import arrays, datafusion, functions, rewriting
from queryengine.gate.fingerprint import digest, fingerprint, pattern
from queryengine.gate.lexer import Scan, Token, scan
from queryengine.gate.macros import macros
from queryengine.gate.named_parameters import with_dollar_names
from queryengine.gate.node_kinds import meaning
from queryengine.gate.parse_tree import Reading, catalog_schema, decode
from queryengine.gate.rule_names import Names, resolve

#: Decisions on statements of up to `_CACHED_CHARACTERS` are cached: `_CACHED` of them by text, and as many by
#: fingerprint.
_CACHED_CHARACTERS: Final = 4096
_CACHED: Final = 512

#: The maximum length of a parser message, in characters. A message may quote the whole statement.
_MESSAGE_CHARACTERS: Final = 300

#: The settings of an instance without data, which only parses and plans.
SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "async_threads": 1,  # No files are read. DuckDB's default is eight.
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "lock_configuration": True,
}
#: How a query is written from a tree, and how it begins.
_WRITE: Final = "SELECT json_deserialize_sql(?::JSON)"
_SELECT: Final = "SELECT "

_PARSE: Final = "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"

_EXPLAIN_FORMATS: Final = frozenset({"text", "json", "html", "graphviz", "yaml", "mermaid"})

#: Queries in place of statements whose real result would name the engine's internal databases.
_SHOWN: Final = {
    "databases": "SELECT 'runtime' AS database_name",
    "schemas": (
        "SELECT catalog_name AS database_name, schema_name, schema_name = 'main' AS \"current\" "
        "FROM information_schema.schemata ORDER BY schema_name"
    ),
}

_ENGINE_TABLES: Final = "SELECT lower(view_name) FROM duckdb_views() WHERE schema_name IN ('main', 'pg_catalog')"

_ONE_STATEMENT: Final = "Only one statement is allowed: send the statements on each side of a semicolon separately."

#: Statements that write and may follow a WITH clause.
_WRITES: Final = ("insert", "update", "delete", "merge")


class Gate:
    """
    Decides whether statements may run. Thread-safe. Contains no data.

    With *datafusion_sql*, statements may use the macros of `macros` and the SQL that `datafusion` rewrites. Without
    *variant_casts*, they may not cast to VARIANT, because a deeply nested value would crash the process that runs them.
    """

    def __init__(self, *, datafusion_sql: bool = True, variant_casts: bool = True) -> None:
        self._datafusion_sql = datafusion_sql
        self._variant_casts = variant_casts
        if datafusion_sql:
            macros()  # takes some milliseconds, so do it before the first statement
        self._connection = duckdb.connect(":memory:", config=SETTINGS)
        self._engine_tables = frozenset(name for (name,) in self._connection.execute(_ENGINE_TABLES).fetchall())
        (self._parse_call,) = self._connection.extract_statements(_PARSE)
        self._of_thread = threading.local()
        self._cached: Callable[[str, frozenset[str], str], GatedStatement] = lru_cache(_CACHED)(self._admit)
        #: Decisions by the fingerprint, relations and catalog of a statement.
        self._verdicts: BoundedDict[tuple[str, frozenset[str], str], GatedStatement] = BoundedDict(_CACHED)

    def close(self) -> None:
        """Close the parser. `admit` then raises `EngineUnavailableError` for statements without a cached decision."""
        self._connection.close()

    def admit(self, sql: str, relations: frozenset[str], catalog: str = "") -> GatedStatement:
        """
        Check *sql*, which may read *relations* (lower-case names of datasets and views).

        The statement runs in the database `runtime`, or in another *catalog* in place of `runtime`.

        Raises:
            EmptyStatementError: *sql* has only white space, comments and semicolons.
            SqlSyntaxError: *sql* cannot be parsed, or its nesting or length makes parsing unsafe.
            StatementNotAllowedError: *sql* is not one statement, or does something that is not on the allowlist.
            SqlError: *sql* names a table or function that does not exist.
            ParameterError: *sql* has both named and positional parameters.
        """
        if len(sql) <= _CACHED_CHARACTERS:
            return self._cached(sql, relations, catalog)
        return self._admit(sql, relations, catalog)

    def resolved(self, sql: str) -> tuple[str, Names]:
        """
        Return the expression of the rule that *sql*, which the gate admitted, selects, and its names.

        Each column in the expression is written with the alias of its dataset: see `rule_names`.

        Raises:
            StatementNotAllowedError: The columns of the data would decide what a name means, or the engine cannot
                write the expression.
        """
        refusal = StatementNotAllowedError("this form of expression is not allowed: write it in a simpler form.")
        tree = self._parse(scan(sql), "")
        if tree is None:
            raise refusal
        names = resolve(tree)
        tree["node"]["from_table"] = {"type": "EMPTY"}
        try:
            with self._connection.cursor() as cursor:
                query = json.dumps({"error": False, "statements": [tree]})
                ((text,),) = cursor.execute(_WRITE, [query]).fetchall()
            written = self._parse(scan(text), "")
            is_same = written is not None and meaning(written) == meaning(tree)
        except (RecursionError, SqlSyntaxError, duckdb.Error):
            raise refusal from None
        if not is_same or not text.startswith(_SELECT):
            raise refusal
        return text.removeprefix(_SELECT), names

    def _admit(self, sql: str, relations: frozenset[str], catalog: str) -> GatedStatement:
        before, whole = _one_statement(scan(sql))
        whole = with_dollar_names(whole)
        first = whole[0].word
        if whole.size == 2 and first in ("show", "describe", "desc") and whole[1].word in _SHOWN:
            answer = self._judge(scan(_SHOWN[whole[1].word]), relations, catalog, "")
            return replace(answer, kind="show", deterministic=False, digest=digest(whole))
        if first == "explain":
            return replace(self._admit_explain(whole, relations, catalog, before), digest=digest(whole))
        if len(whole.text) > _CACHED_CHARACTERS:
            return replace(self._judge(whole, relations, catalog, before), digest=digest(whole))
        key = fingerprint(whole)
        if known := self._verdicts.get((key, relations, catalog)):
            return replace(known, sql=whole.text, lines_before=before.count("\n"))
        statement = replace(self._judge(whole, relations, catalog, before), digest=digest(whole))
        # Cache the decision only if the text runs unchanged, because a rewritten text contains its own numbers.
        if statement.kind == "select" and statement.sql == whole.text:
            statement = replace(statement, pattern=pattern(key))
            self._verdicts[key, relations, catalog] = statement
        return statement

    def _admit_explain(self, whole: Scan, relations: frozenset[str], catalog: str, before: str) -> GatedStatement:
        prefix, begin = _explain_prefix(whole)
        explained = scan(whole.text[begin:])
        if explained[0].word == "explain":
            raise StatementNotAllowedError("EXPLAIN of an EXPLAIN is not allowed.")
        statement = self._judge(explained, relations, catalog, before + whole.text[:begin])
        if statement.kind == "pivot":
            raise StatementNotAllowedError(
                "EXPLAIN of a PIVOT without IN (...) is not allowed: list its values with IN (...)."
            )
        # The explained statement begins on its own line, so an error shows that line as its author wrote it.
        return replace(
            statement,
            sql=f"{prefix}\n{statement.sql}",
            kind="explain",
            deterministic=False,
            lines_before=statement.lines_before - 1,
        )

    def _judge(self, statement: Scan, relations: frozenset[str], catalog: str, before: str) -> GatedStatement:
        """Check *statement*, rewritten for DuckDB if needed. *before* is the text before it, for line numbers."""
        try:
            gated, is_foreign = self._judge_as_written(statement, relations, catalog, before)
        except StatementError as error:
            text = datafusion.rewritten(statement) if self._datafusion_sql else None
            if text is None:
                raise
            try:
                return self._judge_as_written(scan(text), relations, catalog, before)[0]
            except SqlSyntaxError as changed:  # It counts only if the original cannot be parsed.
                raise (changed if isinstance(error, SqlSyntaxError) else error) from None
        if is_foreign and (text := datafusion.rewritten(statement)) is not None:
            with suppress(StatementError):  # Otherwise DuckDB reports what is wrong with the original statement.
                return self._judge_as_written(scan(text), relations, catalog, before)[0]
        return gated

    def _judge_as_written(
        self, statement: Scan, relations: frozenset[str], catalog: str, before: str
    ) -> tuple[GatedStatement, bool]:
        """Return the gated statement, and whether it contains a call that DuckDB has no function for."""
        if catalog:
            statement = scan(rewriting.without_database(statement, relations))
        kind, tree = self._tree(statement, before)
        engine_tables = self._engine_tables if kind == "pivot" else frozenset()
        reading = Reading(
            relations,
            engine_tables=engine_tables,
            datafusion=self._datafusion_sql,
            variant_casts=self._variant_casts,
            names_database=not catalog,
        )
        reading.judge(tree)
        deterministic = kind == "select" and reading.deterministic and not reading.reads_catalog
        shows, reads_catalog = reading.shows, reading.reads_catalog
        if reads_catalog:
            schema = catalog_schema(relations, catalog)
            statement = scan(rewriting.with_hidden_catalog(statement, schema))
            kind, tree = self._tree(statement, before)
            reading = Reading(
                relations,
                catalog=schema,
                engine_tables=engine_tables,
                datafusion=self._datafusion_sql,
                names_database=not catalog,
            )
            reading.judge(tree)
        if reading.makes_arrays:
            arrays.refuse_joins(tree)
        gated = GatedStatement(
            statement.text,
            "show" if kind == "select" and shows else kind,
            relations=frozenset(reading.relations),
            parameters=frozenset(str(entry["key"]) for entry in tree.get("named_param_map", ())),
            deterministic=deterministic,
            lines_before=before.count("\n"),
            catalog=relations if reads_catalog else None,
            macros=frozenset(reading.macros),
            makes_arrays=reading.makes_arrays,
        )
        return gated, reading.is_foreign

    def _tree(self, statement: Scan, before: str) -> tuple[StatementKind, dict[str, Any]]:
        if tree := self._parse(statement, before):
            return "select", self._with_windows(statement) or tree
        if rewriting.is_query_with_pivot(statement):
            return "pivot", self._parse_pivot(statement, before)
        raise _not_a_query(statement)

    def _parse_pivot(self, statement: Scan, before: str) -> dict[str, Any]:
        """Parse a statement with a PIVOT whose columns depend on the data. DuckDB returns no tree for it."""
        for token, following in zip(statement.tokens, statement.tokens[1:], strict=False):
            # The tree is built from a rewritten text, but the text that runs must not call a refused function either.
            if following.text == "(" and token.name and (reason := functions.refusal(token.name)):
                raise StatementNotAllowedError(f"Function '{token.name}' is not allowed: {reason}.")
        if rewriting.has_nested_with(statement):
            # If a name is defined twice, the parser drops one definition from the tree, but not from the column query.
            raise StatementNotAllowedError(
                "WITH a AS (...) (WITH b AS (...) ...) is not allowed together with a PIVOT without IN (...): write "
                "WITH a AS (...), b AS (...) ..."
            )
        try:
            changed = scan(rewriting.with_pivot_values(statement))
            tree = self._with_windows(changed) or self._parse(changed, before)
        except SqlSyntaxError:
            tree = None
        if tree is not None:
            with self._connection.cursor() as cursor:
                found = cursor.extract_statements(statement.text)
            if [single.type for single in found] == [duckdb.StatementType.MULTI]:
                return tree
        raise StatementNotAllowedError("This form of PIVOT is not allowed: list its values with IN (...).")

    def _with_windows(self, statement: Scan) -> dict[str, Any] | None:
        """Return the tree of *statement* including windows that it does not use; None if it names no windows."""
        if not rewriting.has_windows(statement):
            return None
        return self._parse(scan(rewriting.with_windows_used(statement)), "")

    def _parse(self, statement: Scan, before: str) -> dict[str, Any] | None:
        """Return the tree of one statement; None if it is not a query."""
        try:
            answer = decode(self._serialized(statement.text))
        except duckdb.Error as exc:
            raise EngineUnavailableError("The engine cannot accept statements at the moment.") from exc
        if answer["error"]:
            _raise_parse_error(answer, statement.text, before)
            return None
        if len(answer["statements"]) != 1:
            raise StatementNotAllowedError(_ONE_STATEMENT)
        tree: dict[str, Any] = answer["statements"][0]
        return tree

    def _serialized(self, text: str) -> str:
        """Return the parser's tree of *text*. Each thread keeps a cursor, but not for long texts, to save memory."""
        cursor: duckdb.DuckDBPyConnection | None = None
        if is_short := len(text) <= _CACHED_CHARACTERS:
            cursor = getattr(self._of_thread, "cursor", None)
        if cursor is None:
            cursor = self._connection.cursor()
            if is_short:
                self._of_thread.cursor = cursor
        # `execute` releases the GIL. `extract_statements` of the text would hold the GIL.
        ((answer,),) = cursor.execute(self._parse_call, [text]).fetchall()
        return str(answer)


def _one_statement(found: Scan) -> tuple[str, Scan]:
    """Return the text before the only statement, and the statement without semicolons and comments around it."""
    count = found.size_without_end
    if count == 0:
        raise EmptyStatementError
    if found.separators and found.separators[0] < count:
        raise StatementNotAllowedError(_ONE_STATEMENT)
    whole = found.head(count)
    return "" if whole is found else found.text[: found[0].start], whole


def _explain_prefix(statement: Scan) -> tuple[str, int]:
    """Return EXPLAIN with its options in normal form, and the position of the explained statement."""
    tokens = statement.tokens
    index = 1
    analyze, format_ = False, ""
    if index < len(tokens) and tokens[index].word == "analyze":
        analyze, index = True, index + 1
    if index + 1 < len(tokens) and tokens[index].text == "(" and tokens[index + 1].word in ("analyze", "format"):
        end = next(at for at in range(index + 1, len(tokens)) if tokens[at].depth == 0)
        for option in _split_at_commas(tokens[index + 1 : end]):
            match [token.word or token.text.strip("'").lower() for token in option]:
                case ["analyze"] | ["analyze", "true" | "on" | "1"]:
                    analyze = True
                case ["analyze", "false" | "off" | "0"]:
                    pass
                case ["format", name] if name in _EXPLAIN_FORMATS:
                    format_ = name
                case _:
                    raise SqlSyntaxError(
                        "EXPLAIN accepts only the options ANALYZE and FORMAT "
                        + ", ".join(sorted(_EXPLAIN_FORMATS))
                        + "."
                    )
        index = end + 1
    if index == len(tokens):
        raise SqlSyntaxError("EXPLAIN must be followed by the query to explain.")
    words = ["ANALYZE"] * analyze + [f"FORMAT {format_}"] * bool(format_)
    return f"EXPLAIN ({', '.join(words)})" if words else "EXPLAIN", tokens[index].start


def _split_at_commas(tokens: tuple[Token, ...]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _raise_parse_error(answer: dict[str, Any], text: str, before: str) -> None:
    """Raise the parser's error, unless the text was parsed and only has no tree."""
    message = " ".join(str(answer["error_message"]).split())
    if answer["error_type"] == "not implemented" and message.startswith("Only SELECT statements"):
        return
    if message.startswith("Mixing named and positional parameters"):
        raise ParameterError("A statement cannot mix named parameters ($name, :name) with positional ones (?, $1).")
    if message.startswith("Max expression depth"):
        raise SqlSyntaxError("The statement is nested too deeply: the limit is 1,000 nested operators and functions.")
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[:_MESSAGE_CHARACTERS] + "…"
    if position := answer.get("position"):
        before += text.encode()[: int(position)].decode(errors="replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message += f" (line {line}, column {column})"
    raise SqlSyntaxError(f"{message[:1].upper()}{message[1:]}.")


def _not_a_query(statement: Scan) -> StatementNotAllowedError:
    word = statement[0].word
    if word == "with":
        word = next((token.word for token in statement.tokens if token.depth == 0 and token.word in _WRITES), word)
    what = f"{word.upper()} statements are" if word else "This statement is"
    return StatementNotAllowedError(f"{what} not allowed: this endpoint is read-only.")
