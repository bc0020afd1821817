"""Show an answer or a list in the format asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from runtimeclient.answers import ARROW, CSV, JSON, JSON_WITH_SCHEMA, SqlAnswer
from runtimeclient.charts import PICTURES
from runtimeclient.errors import UsageError
from runtimeclient.json_stream import JsonValue, Number
from runtimeclient.output import Output
from runtimeclient.style import Style
from runtimeclient.tables import markdown, table

Plain: TypeAlias = "bool | int | str | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """
    A form in which answers are shown.

    Attributes:
        media_type: What to ask the runtime for.
        suffixes: Ends of file names that mean it.
        is_binary: It is no text, and goes to a file only.
        is_layout: It is made for people: answers that follow one another are parted by an empty line.
        counts_rows: Whoever writes it knows how many rows there are.
    """

    media_type: str
    suffixes: tuple[str, ...] = ()
    is_binary: bool = False
    is_layout: bool = False
    counts_rows: bool = True


#: By the name that `--format` takes.
FORMATS: Mapping[str, Format] = {
    "table": Format(media_type=JSON_WITH_SCHEMA, suffixes=(".txt",), is_layout=True),
    "json": Format(media_type=JSON, suffixes=(".json",)),
    "csv": Format(media_type=CSV, suffixes=(".csv",), counts_rows=False),
    "ndjson": Format(media_type=JSON, suffixes=(".ndjson", ".jsonl")),
    "markdown": Format(media_type=JSON_WITH_SCHEMA, suffixes=(".md",), is_layout=True),
    "arrow": Format(media_type=ARROW, suffixes=(".arrow", ".feather"), is_binary=True),
    "parquet": Format(media_type=ARROW, suffixes=(".parquet",), is_binary=True),
}
#: What charts are drawn from: the columns have to be known even when there are no rows.
CHART_FORMAT = FORMATS["table"]
#: How `status` and the other lists can be shown.
LIST_FORMATS = ("table", "json", "csv")


def format_of(path: Path) -> str | None:
    """
    Give the format that the ending of a file name means; None for a name without one.

    Raises:
        UsageError: The ending means no format.
    """
    name = path.name.lower()
    found = next((format_ for format_, it in FORMATS.items() if it.suffixes and name.endswith(it.suffixes)), None)
    if found is None and path.suffix:
        chart = " The option --chart-file of sql draws a chart in a file." if path.suffix.lower() in PICTURES else ""
        known = ", ".join(suffix for format_ in FORMATS.values() for suffix in format_.suffixes)
        raise UsageError(f"No format has the ending {path.suffix} of {path.name}: the endings are {known}.{chart}")
    return found


def write_answer(answer: SqlAnswer, style: Style, output: Output) -> None:
    """
    Show the answer to a statement while it arrives, in bounded memory, in a format that is text.

    json and csv are what the runtime sent, character by character (json with a line break after it); ndjson has one row
    a line.

    Raises:
        AnswerCutError: The answer is not complete. What was written until then shows it: json lacks its bracket at the
            end, a table its number of rows.
        ChartError: It cannot be drawn, when `style.chart` asks for that.
        OutputError: The output cannot be written.
    """
    pieces = _flushed(answer.pieces(), output)
    if style.chart is not None:
        from runtimeclient.charts import make_chart  # noqa: PLC0415 (few answers are drawn)
        from runtimeclient.text_charts import draw_text  # noqa: PLC0415

        for line in draw_text(make_chart(*read_rows(answer, pieces), style.chart), style):
            output.write(line)
    elif style.format == "csv":
        for piece in pieces:
            output.write(piece)
    elif style.format == "ndjson":
        for row in answer.rows(pieces):
            output.write(row.text + "\n")
    elif style.format == "json":
        # Read too, not only copied: JSON that is cut or damaged must not pass for an answer.
        for _ in answer.rows(_copied(pieces, output)):
            pass
        output.write("\n")
    else:
        columns, rows = read_rows(answer, pieces)
        for line in table(columns, rows, style) if style.format == "table" else markdown(columns, rows):
            output.write(line)
    output.flush()


def read_rows(
    answer: SqlAnswer, pieces: Iterator[str] | None = None
) -> tuple[tuple[str, ...], Iterator[list[JsonValue]]]:
    """Give the columns of an answer with a schema, and its rows in the order of the columns. Raises AnswerCutError."""
    rows = answer.rows(pieces)
    # The columns are known with the first row; those of an empty answer at its end.
    first = list(islice(rows, 1))
    columns = answer.columns
    return columns, ([row.values.get(column) for column in columns] for row in chain(first, rows))


def write_list(columns: Sequence[str], items: Sequence[Mapping[str, Plain]], style: Style, output: Output) -> None:
    """Show a short list of objects that have those members."""
    rows = [[item[column] for column in columns] for item in items]
    if style.format == "json":
        output.write(json.dumps(items, ensure_ascii=False, separators=(",", ":")) + "\n")
    elif style.format == "csv":
        for row in (columns, *rows):
            output.write(",".join(map(_csv_value, row)) + "\n")
    else:
        for line in table(columns, ([_json_value(value) for value in row] for row in rows), style):
            output.write(line)
    output.flush()


def _flushed(pieces: Iterator[str], output: Output) -> Iterator[str]:
    """Let out what is written so far before each wait for more."""
    for piece in pieces:
        yield piece
        output.flush()


def _copied(pieces: Iterator[str], output: Output) -> Iterator[str]:
    for piece in pieces:
        output.write(piece)
        yield piece


def _csv_value(value: Plain) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    # Python's csv module leaves a lone carriage return unquoted, and then does not read it back.
    return '"' + text.replace('"', '""') + '"' if any(character in text for character in ',"\r\n') else text


def _json_value(value: Plain) -> JsonValue:
    return Number(value) if isinstance(value, int) and not isinstance(value, bool) else value
