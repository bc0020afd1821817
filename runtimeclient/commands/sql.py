"""`sql`: run statements on a runtime."""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path

from runtimeclient.commands.base import Command, Invocation, whole_number
from runtimeclient.connection import STANDARD_INPUT
from runtimeclient.errors import ClientError, IncompleteResultError, RequestRefusedError, UsageError
from runtimeclient.http.results import JsonValue
from runtimeclient.output.formats import FORMATS, format_of
from runtimeclient.output.terminal import CHART_FORMATS, KINDS, TERMINAL_ROWS, ChartRequest, Style
from runtimeclient.sql.runner import StatementRunner
from runtimeclient.sql.statements import Statement, parameters_of, parse_parameters, read_statements, split_statements


def _add_sql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", nargs="?", help="one SQL statement, sent unchanged")
    parser.add_argument(
        "-c",
        "--command",
        metavar="STATEMENT",
        dest="statements",
        action="append",
        default=[],
        help="run a statement, or several separated by semicolons; may be repeated",
    )
    parser.add_argument("-f", "--file", metavar="FILE", help="read statements from a file, - for standard input")
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a value for $NAME; NAME 1 is the first ? or $1. Numbers, true, false and null are recognised;"
        " anything else is text; NAME:=JSON gives an exact value; may be repeated",
    )
    parser.add_argument(
        "--continue-on-error", action="store_true", help="continue after a failed statement; the exit status is 1"
    )
    charts = parser.add_argument_group("charts")
    charts.add_argument("--chart", choices=KINDS, help="draw the result as a text chart")
    charts.add_argument("--x", metavar="COLUMN", help="the column for x (default: the first that fits)")
    charts.add_argument(
        "--y",
        metavar="COLUMN",
        action="append",
        default=[],
        help="a column for y; may be repeated (default: all other numeric columns, for scatter the first)",
    )
    charts.add_argument(
        "--chart-file",
        metavar="FILE",
        type=Path,
        help=f"draw the result to a file with the extension {', '.join(CHART_FORMATS)}",
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=tuple(FORMATS),
        help="output format: an aligned table (the default), the JSON array or CSV as sent by the runtime, one"
        " JSON object per line, a Markdown table, or an Arrow or Parquet file",
    )
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write to a file, which appears once it is complete; its extension selects the format",
    )
    group.add_argument(
        "--expanded",
        choices=("auto", "on", "off"),
        default="auto",
        help="show each row as a record, one line per column; auto (the default) leaves out middle columns of a"
        " table wider than the terminal, and shows records if that is not enough",
    )
    group.add_argument(
        "--max-rows",
        metavar="N",
        type=whole_number(0),
        help=f"maximum rows of a table, 0 for all (default {TERMINAL_ROWS} on a terminal, else all)",
    )
    parser.add_argument("--no-history", action="store_true", help="do not store the history of the prompt")
    group.add_argument("--no-pager", action="store_true", help="do not use a pager for long results")


def _sql(invocation: Invocation) -> None:
    options, console = invocation.options, invocation.console
    given = [options.query is not None, bool(options.statements), options.file is not None]
    if sum(given) > 1:
        raise UsageError("Use only one of QUERY, -c and -f.")
    has_prompt = not any(given) and console.is_interactive
    values = parse_parameters(options.param)
    reads_input = options.file == STANDARD_INPUT or not (has_prompt or any(given))
    _check(options, has_prompt=has_prompt, reads_input=reads_input)
    style = _style(options, console.style())
    with invocation.connect() as client, ExitStack() as stack:
        runner = StatementRunner(client, console, style, separates_results=not has_prompt)
        if (file := options.chart_file or options.output) is not None:
            stack.enter_context(runner.writing_to(file))
        if has_prompt:
            from runtimeclient.prompt.repl import make_repl  # noqa: PLC0415 (prompt_toolkit is slow to import)

            make_repl(runner, invocation.environ, has_history=not options.no_history).run()
        elif options.query is not None:
            client.ping()
            runner.run(Statement(options.query), values)
        else:
            _run_script(runner, invocation, values)


def _check(options: argparse.Namespace, *, has_prompt: bool, reads_input: bool) -> None:
    """Reject options that contradict each other, or have no effect without others."""
    if reads_input and options.api_key is None and options.api_key_file == STANDARD_INPUT:
        raise UsageError("The API key is read from standard input: specify QUERY, or a file of statements with -f.")
    if options.output is None and options.format is not None and FORMATS[options.format].is_binary:
        raise UsageError(f"The format {options.format} needs a file: name one with --output.")
    draws = options.chart is not None or options.chart_file is not None
    if (options.x or options.y) and not draws:
        raise UsageError("--x and --y need --chart or --chart-file.")
    if options.format is not None and draws:
        raise UsageError("--format cannot be combined with a chart.")
    if options.chart_file is not None and options.output is not None:
        raise UsageError("Use only one of --chart-file and --output.")
    if options.chart is not None and options.output is not None and format_of(options.output) not in {None, "table"}:
        raise UsageError("A text chart needs an --output with the extension .txt or none.")
    if options.chart_file is not None and options.chart_file.suffix.lower() not in CHART_FORMATS:
        raise UsageError(f"A chart file has the extension {', '.join(CHART_FORMATS)}.")
    if has_prompt and options.param:
        raise UsageError("--param needs a QUERY, -c or -f.")


def _run_script(runner: StatementRunner, invocation: Invocation, values: dict[str, JsonValue]) -> None:
    options = invocation.options
    count = failures = 0
    unused = set(values)
    given = chain.from_iterable(map(split_statements, options.statements))
    for statement in given if options.statements else read_statements(options.file):
        if not count:
            runner.client.ping()
        count += 1
        taken = parameters_of(statement.text, values)
        unused -= set(taken)
        try:
            runner.run(statement, taken)
        # After any other error, the next statement would fail too.
        except (RequestRefusedError, IncompleteResultError) as exc:
            if not options.continue_on_error:
                raise
            failures += 1
            invocation.console.error(exc)
    if unused:
        invocation.console.warn(f"No statement uses the parameter {', '.join(sorted(unused))}.")
    if failures:
        raise ClientError(f"{failures} of {count} statements failed.")


def _style(options: argparse.Namespace, style: Style) -> Style:
    max_rows = options.max_rows
    if max_rows is None:
        max_rows = TERMINAL_ROWS if style.columns is not None else 0
    chart = None
    if options.chart is not None or options.chart_file is not None:
        file_format = CHART_FORMATS[options.chart_file.suffix.lower()] if options.chart_file is not None else None
        chart = ChartRequest(kind=options.chart, x=options.x, y=tuple(options.y), file_format=file_format)
    return replace(
        style,
        format=options.format or (options.output and format_of(options.output)) or "table",
        expanded=options.expanded,
        max_rows=max_rows or None,
        elides=True,
        chart=chart,
    )


_SQL = Command(
    name="sql",
    description=(
        "Run SQL on a runtime. With QUERY, run that statement. Without it, read\n"
        "statements that end with a semicolon from FILE or standard input, and run them\n"
        "in order until one fails. At a terminal, start the interactive prompt."
    ),
    examples=(
        ('"SELECT carrier, count(*) FROM flights GROUP BY 1"', "one statement, as a table"),
        ('--format csv "FROM airlines" > airlines.csv', "the rows as CSV"),
        ('--output flights.parquet "FROM flights"', "the rows in a Parquet file"),
        ("--param carrier=UA 'SELECT * FROM flights WHERE carrier = $carrier'", "a value for a parameter"),
        ('--chart bar "SELECT carrier, count(*) FROM flights GROUP BY 1"', "a chart"),
        ("--api-key-file key -f report.sql", "all statements of a file"),
        ('-c "SELECT 1; SELECT 2"', "statements from the command line"),
        ("", "the interactive prompt"),
    ),
    add_arguments=_add_sql_arguments,
    call=_sql,
)

COMMANDS = {"sql": _SQL}
