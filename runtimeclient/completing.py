"""Completion at the prompt: SQL words, tables, columns, and dot commands with what they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from runtimeclient.dot_commands import DOT_COMMANDS, NAMES, Takes
from runtimeclient.names import Names
from runtimeclient.sql_words import FUNCTIONS, KEYWORDS, TYPES
from runtimeclient.statements import LETTER, StatementSplitter

_WORD = re.compile(rf"{LETTER}*\Z")
_QUALIFIER = re.compile(rf"(?:\"(?P<quoted>[^\"]+)\"|(?P<plain>{LETTER}+))\.\Z")


def _name(group: str) -> str:
    """Give the pattern of a name: *group* is what it is called without quotes, with `_quoted` behind it in quotes."""
    return rf"(?:\"(?P<{group}_quoted>[^\"]+)\"|(?P<{group}>{LETTER}+))"


_TABLE_NEXT = re.compile(
    r"(?:\b(?:from|join|describe|summarize|show|pivot|unpivot)\s+|\bfrom\s[^()]*,\s*)\Z", re.IGNORECASE
)
_TABLE = re.compile(rf"\b(?:from|join|,)\s+{_name('table')}(?:\s+(?:as\s+)?{_name('alias')})?", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
# What stands behind a table and is no alias.
_RESERVED = frozenset(word.lower() for word in KEYWORDS)


class PromptCompleter(Completer):
    """
    Completes what stands before the cursor from what is known, and waits for nobody.

    Args:
        names: The tables and columns.
        formats: What `.format` takes.
    """

    def __init__(self, names: Names, formats: Iterable[str]) -> None:
        self._names = names
        self._formats = tuple(formats)
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Give what may stand here, the likeliest first."""
        self._names.refresh()
        text = document.text_before_cursor
        if text.startswith((".", "\\")) and "\n" not in text:
            return self._of_dot_command(text, complete_event)
        return self._of_statement(document)

    def _of_dot_command(self, text: str, event: CompleteEvent) -> Iterator[Completion]:
        name, space, argument = text.partition(" ")
        if not space:
            yield from _matching(name, dict.fromkeys(NAMES, ""))
            return
        called = NAMES.get(name.lower())
        command = None if called is None else DOT_COMMANDS[called]
        takes = None if command is None else command.takes
        argument = argument.lstrip()
        if takes is Takes.FILE:
            yield from self._paths.get_completions(Document(argument), event)
        elif takes is Takes.TABLE:
            yield from _matching(argument, dict.fromkeys(self._names.columns, ""))
        elif command is not None:
            words = self._formats if takes is Takes.FORMAT else command.words
            yield from _matching(argument.rpartition(" ")[2], dict.fromkeys(words, ""))

    def _of_statement(self, document: Document) -> Iterator[Completion]:
        splitter = StatementSplitter()
        for _ in splitter.feed(document.text_before_cursor):
            pass
        if splitter.is_inside:
            return
        before = splitter.rest
        word = _WORD.search(before)
        assert word is not None  # noqa: S101 (it matches nothing, too)
        before = before[: word.start()]
        tables = self._names.columns
        used = self._tables_of(before + " " + document.text_after_cursor.partition(";")[0])
        if qualifier := _QUALIFIER.search(before):
            name = (qualifier["quoted"] or qualifier["plain"]).lower()
            yield from _matching(word[0], {_quoted(c): t for c, t in tables.get(used.get(name, ""), {}).items()})
            return
        shown_tables = {_quoted(table): "table" for table in tables}
        if _TABLE_NEXT.search(before):
            yield from _matching(word[0], shown_tables)
            return
        # Before any table is named, and something is typed, a column of any.
        considered = dict.fromkeys(used.values()) if used or not word[0] else tables
        columns = {_quoted(c): t for table in considered for c, t in tables[table].items()}
        yield from _matching(word[0], columns | shown_tables | _words(word[0]))

    def _tables_of(self, text: str) -> Mapping[str, str]:
        """Give the tables that a text names, by name and by alias, in lower case."""
        known = {table.lower(): table for table in self._names.columns}
        used = {}
        for found in _TABLE.finditer(text):
            table = known.get((found["table_quoted"] or found["table"]).lower())
            if table is not None:
                used[table.lower()] = table
                alias = (found["alias_quoted"] or found["alias"] or "").lower()
                if alias and alias not in _RESERVED:
                    used[alias] = table
        return used


def _words(typed: str) -> dict[str, str]:
    """Give the words of SQL, in the case of what was typed; nothing typed is upper case, as in our documents."""
    cased = str.lower if typed[:1].islower() else str.upper
    words = {cased(word): "" for word in (*KEYWORDS, *TYPES)}
    return words | {function + "(": "function" for function in FUNCTIONS} if typed else words


def _matching(typed: str, words: Mapping[str, str]) -> Iterator[Completion]:
    low = typed.lower()
    for word, meaning in words.items():
        if word.lower().removeprefix('"').startswith(low):
            yield Completion(word, -len(typed), display_meta=meaning)


def _quoted(name: str) -> str:
    """Write a name as SQL takes it."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in _RESERVED else quoted(name)


def quoted(name: str) -> str:
    """Write a name in quotes, so that SQL takes whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
