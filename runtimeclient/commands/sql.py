"""`sql`: run statements on a runtime."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path

from runtimeclient.asking import Asker
from runtimeclient.charts import KINDS, PICTURES, ChartRequest
from runtimeclient.command import ClientCommand, Invocation
from runtimeclient.connection import takes_key_from_standard_input
from runtimeclient.errors import (
    AnswerCutError,
    RequestRefusedError,
    StatementsFailedError,
    UsageError,
)
from runtimeclient.formats import FORMATS, format_of
from runtimeclient.json_stream import JsonValue
from runtimeclient.parameters import parameters_of, parse_parameters
from runtimeclient.scripts import STANDARD_INPUT, read_statements
from runtimeclient.statements import Statement, split_statements
from runtimeclient.style import TERMINAL_ROWS, Style

# An error of these kinds is one of the statement; after any other, the next would fare no better.
_OF_THE_STATEMENT = (RequestRefusedError, AnswerCutError)


class SqlCommand(ClientCommand):
    """Run SQL statements on a runtime and show the answers."""

    name = "sql"
    summary = "run SQL and show the rows"
    description = (
        "Run SQL on a runtime. With QUERY, run that statement. Without it, read\n"
        "statements that end with a semicolon from FILE or standard input and run them\n"
        "in order up to the first that fails; at a terminal, ask for them."
    )
    examples = (
        ('"SELECT carrier, count(*) FROM flights GROUP BY 1"', "one statement, as a table"),
        ('--format csv "FROM airlines" > airlines.csv', "the rows as CSV"),
        ('--output flights.parquet "FROM flights"', "the rows in a Parquet file"),
        ("--param carrier=UA 'SELECT * FROM flights WHERE carrier = $carrier'", "a value for a parameter"),
        ('--chart bar "SELECT carrier, count(*) FROM flights GROUP BY 1"', "a chart"),
        ("--api-key-file key -f report.sql", "all statements of a file"),
        ('-c "SELECT 1; SELECT 2"', "statements from the command line"),
        ("", "ask for statements at the terminal"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `sql`."""
        parser.add_argument("query", metavar="QUERY", nargs="?", help="one SQL statement, sent as it is")
        parser.add_argument(
            "-c",
            "--command",
            metavar="STATEMENT",
            dest="statements",
            action="append",
            default=[],
            help="run a statement, or several that are parted by semicolons; may be repeated",
        )
        parser.add_argument("-f", "--file", metavar="FILE", help="read statements from a file, - for standard input")
        parser.add_argument(
            "--param",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="a value for $NAME, or for the first ? or $1 if NAME is 1; 1.5 is a number, true, false and null are"
            " what they say, all else is text; NAME:=JSON gives the exact value; may be repeated",
        )
        parser.add_argument(
            "--continue-on-error", action="store_true", help="go on after a statement that fails; the exit status is 1"
        )
        _add_chart_options(parser.add_argument_group("charts"))
        group = parser.add_argument_group("answers")
        group.add_argument(
            "--format",
            choices=tuple(FORMATS),
            help="how to show the answer: an aligned table (the default), the JSON array or the CSV that the runtime"
            " sends, one JSON object a line, a Markdown table, or an Arrow or Parquet file",
        )
        group.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            type=Path,
            help="write to a file, which is there once it is complete; the ending of its name tells the format",
        )
        group.add_argument(
            "--expanded",
            choices=("auto", "on", "off"),
            default="auto",
            help="show each row of a table as one line a column; auto (the default) leaves columns out in the middle of"
            " a table that is wider than the terminal, and does where that is not enough",
        )
        group.add_argument(
            "--max-rows",
            metavar="N",
            type=_row_count,
            help=f"show that many rows of a table, 0 for all (default {TERMINAL_ROWS} on a terminal, else all)",
        )
        parser.add_argument("--no-history", action="store_true", help="keep nothing of what is typed at the prompt")
        group.add_argument("--no-pager", action="store_true", help="do not page what does not fit on the terminal")

    def run(self, invocation: Invocation) -> None:
        """Run the statements, wherever they come from."""
        options, console = invocation.options, invocation.console
        given = [options.query is not None, bool(options.statements), options.file is not None]
        if sum(given) > 1:
            raise UsageError("Give a QUERY, statements with -c or a file of statements: one of them.")
        asks = not any(given) and console.is_interactive
        values = parse_parameters(options.param)
        self._check(invocation, asks=asks, reads_input=options.file == STANDARD_INPUT or not (asks or any(given)))
        style = _style(options, console.style())
        with invocation.connect() as client, ExitStack() as stack:
            asker = Asker(client, console, style, parts_answers=not asks)
            if (file := options.chart_file or options.output) is not None:
                stack.enter_context(asker.into(file))
            if asks:
                from runtimeclient.prompting import make_repl  # noqa: PLC0415 (the line editor takes long to import)

                make_repl(asker, invocation).run()
            elif options.query is not None:
                client.ping()
                asker.ask(Statement(options.query), values)
            else:
                self._run_script(asker, invocation, values)

    def _check(self, invocation: Invocation, *, asks: bool, reads_input: bool) -> None:
        """Refuse what contradicts itself."""
        options = invocation.options
        if reads_input and takes_key_from_standard_input(options):
            raise UsageError("Standard input holds the API key: give a QUERY, or a file of statements with -f.")
        if options.output is None and options.format is not None and FORMATS[options.format].is_binary:
            raise UsageError(f"The format {options.format} goes to a file: name one with --output.")
        _check_chart(options)
        if asks and options.param:
            raise UsageError("--param needs a QUERY, -c or a file of statements.")

    def _run_script(self, asker: Asker, invocation: Invocation, values: dict[str, JsonValue]) -> None:
        options = invocation.options
        count = failures = 0
        unused = set(values)
        given = chain.from_iterable(map(split_statements, options.statements))
        for statement in given if options.statements else read_statements(options.file):
            if not count:
                asker.client.ping()
            count += 1
            taken = parameters_of(statement.text, values)
            unused -= set(taken)
            try:
                asker.ask(statement, taken)
            except _OF_THE_STATEMENT as exc:
                if not options.continue_on_error:
                    raise
                failures += 1
                invocation.console.error(exc)
        if unused:
            invocation.console.warn(f"No statement takes the parameter {', '.join(sorted(unused))}.")
        if failures:
            raise StatementsFailedError(f"{failures} of {count} statements failed.")


def _add_chart_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--chart", choices=KINDS, help="draw the answer as text instead of showing it")
    group.add_argument("--x", metavar="COLUMN", help="what goes along x; without it the first column that fits")
    group.add_argument(
        "--y",
        metavar="COLUMN",
        action="append",
        default=[],
        help="what goes along y; may be repeated; without it all other columns of numbers, for scatter the first",
    )
    group.add_argument(
        "--chart-file",
        metavar="FILE",
        type=Path,
        help=f"draw the answer in a file: its name ends in {', '.join(PICTURES)}",
    )


def _check_chart(options: argparse.Namespace) -> None:
    """Refuse chart options that contradict others, or mean nothing without others."""
    draws = options.chart is not None or options.chart_file is not None
    if (options.x or options.y) and not draws:
        raise UsageError("--x and --y need --chart or --chart-file.")
    if options.format is not None and draws:
        raise UsageError("A chart has no --format: leave one of them out.")
    if options.chart_file is not None and options.output is not None:
        raise UsageError("A chart goes to --chart-file or to --output, not to both.")
    if options.chart is not None and options.output is not None and format_of(options.output) not in {None, "table"}:
        raise UsageError("A chart goes to --output as text, to a name with the ending .txt or none.")
    if options.chart_file is not None and options.chart_file.suffix.lower() not in PICTURES:
        raise UsageError(f"The name of a chart file ends in {', '.join(PICTURES)}.")


def _chart(options: argparse.Namespace) -> ChartRequest | None:
    if options.chart is None and options.chart_file is None:
        return None
    picture = PICTURES[options.chart_file.suffix.lower()] if options.chart_file is not None else None
    return ChartRequest(kind=options.chart, x=options.x, y=tuple(options.y), picture=picture)


def _style(options: argparse.Namespace, style: Style) -> Style:
    format_ = options.format or (options.output and format_of(options.output)) or "table"
    max_rows = options.max_rows
    if max_rows is None:
        max_rows = TERMINAL_ROWS if style.columns is not None else 0
    return replace(
        style,
        format=format_,
        expanded=options.expanded,
        max_rows=max_rows or None,
        elides=True,
        chart=_chart(options),
    )


def _row_count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return count


COMMAND = SqlCommand()
