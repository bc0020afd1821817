"""`manage.py sql`: run statements on a runtime."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import CommandParser

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand, takes_key_from_standard_input
from runtimeclient.errors import UsageError
from runtimeclient.formats import MEDIA_TYPES, write_answer
from runtimeclient.output import Output
from runtimeclient.statements import StatementSplitter

_STANDARD_INPUT = "-"


class Command(ClientCommand):
    """Run SQL statements on a runtime and show the answers."""

    help = (
        "Run SQL on a runtime. With QUERY, run that statement. Without it, read\n"
        "statements that end with a semicolon from FILE or standard input and run them\n"
        "in order up to the first that fails; at a terminal, ask for them."
    )
    examples = (
        ('"SELECT carrier, count(*) FROM flights GROUP BY 1"', "one statement, as a table"),
        ('--format csv "FROM airlines" > airlines.csv', "the rows as CSV"),
        ("--api-key-file key -f report.sql", "all statements of a file"),
        ("", "ask for statements at the terminal"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add what is special to `sql`."""
        parser.add_argument("query", metavar="QUERY", nargs="?", help="one SQL statement, sent as it is")
        parser.add_argument("-f", "--file", metavar="FILE", help="read statements from a file, - for standard input")
        parser.add_argument(
            "--format",
            choices=tuple(MEDIA_TYPES),
            default="table",
            help="how to show the answer: an aligned table (the default), the JSON array or the CSV that the runtime"
            " sends, or one JSON object a line",
        )
        super().add_arguments(parser)

    def check_options(self, options: dict[str, Any]) -> None:
        """Refuse what contradicts itself."""
        query, file = options["query"], options["file"]
        if query is not None and file is not None:
            raise UsageError("Give a QUERY or a file of statements, not both.")
        reads_input = file == _STANDARD_INPUT or (query is None and file is None and not _is_interactive())
        if reads_input and takes_key_from_standard_input(options):
            raise UsageError("Standard input holds the API key: give a QUERY, or a file of statements with -f.")

    def run(self, client: RuntimeClient, output: Output, options: dict[str, Any]) -> None:
        """Run the statements, wherever they come from."""
        format_ = options["format"]
        if options["query"] is None and options["file"] is None and _is_interactive():
            from runtimeclient.repl import Repl  # noqa: PLC0415 (it takes over the terminal's line editing)

            Repl(client, output, self.tell, format_).run()
            return
        is_first = True
        for statement in _statements(options["query"], options["file"]):
            if is_first:
                client.ping()
            elif format_ == "table":
                output.write("\n")
            is_first = False
            with client.sql(statement, MEDIA_TYPES[format_]) as answer:
                write_answer(answer, format_, output)


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _open(file: str | None) -> TextIO:
    # Line breaks stay as they are: they may stand in a literal.
    if file is None or file == _STANDARD_INPUT:
        return open(0, encoding="utf-8-sig", newline="", closefd=False)
    return Path(file).open(encoding="utf-8-sig", newline="")


def _statements(query: str | None, file: str | None) -> Iterator[str]:
    if query is not None:
        yield query
        return
    name = "Standard input" if file in {None, _STANDARD_INPUT} else f"The file {file}"
    splitter = StatementSplitter()
    try:
        with _open(file) as lines:
            for line in lines:
                yield from splitter.feed(line)
    except UnicodeDecodeError as exc:
        raise UsageError(f"{name} is not UTF-8 text.") from exc
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror}.") from exc
    yield from splitter.finish()
