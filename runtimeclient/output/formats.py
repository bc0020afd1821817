"""Write a result or a list in the requested format."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from runtimeclient.errors import UsageError
from runtimeclient.http.results import ARROW, CSV, JSON, JSON_WITH_SCHEMA, JsonValue, Number, SqlResult
from runtimeclient.output.tables import markdown, table
from runtimeclient.output.terminal import CHART_FORMATS, Style
from runtimeclient.output.writer import Output, TextStream

Plain: TypeAlias = "bool | int | str | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """An output format."""

    media_type: str  # the media type to request from the runtime
    suffixes: tuple[str, ...]  # the file name extensions that select this format
    is_binary: bool = False  # whether the format is binary and can only be written to a file
    is_layout: bool = False  # whether the format is for people, with an empty line between consecutive results


#: The formats by the names that `--format` accepts.
FORMATS: Mapping[str, Format] = {
    "table": Format(media_type=JSON_WITH_SCHEMA, suffixes=(".txt",), is_layout=True),
    "json": Format(media_type=JSON, suffixes=(".json",)),
    "csv": Format(media_type=CSV, suffixes=(".csv",)),
    "ndjson": Format(media_type=JSON, suffixes=(".ndjson", ".jsonl")),
    "markdown": Format(media_type=JSON_WITH_SCHEMA, suffixes=(".md",), is_layout=True),
    "arrow": Format(media_type=ARROW, suffixes=(".arrow", ".feather"), is_binary=True),
    "parquet": Format(media_type=ARROW, suffixes=(".parquet",), is_binary=True),
}


def format_of(path: Path) -> str | None:
    """
    Return the format for a file name extension; None if there is no extension.

    Raises:
        UsageError: The extension is unknown.
    """
    name = path.name.lower()
    found = next((format_ for format_, it in FORMATS.items() if name.endswith(it.suffixes)), None)
    if found is None and path.suffix:
        is_chart = path.suffix.lower() in CHART_FORMATS
        hint = " The option --chart-file of sql draws a chart to a file." if is_chart else ""
        known = ", ".join(suffix for format_ in FORMATS.values() for suffix in format_.suffixes)
        raise UsageError(f"{path.name} has an unknown extension: the known ones are {known}.{hint}")
    return found


def write_result(answer: SqlResult, style: Style, output: Output) -> None:
    """
    Write the result of a statement as it arrives, in bounded memory, in a text format.

    json and csv are written exactly as the runtime sent them (json with a trailing line break). ndjson has one row per
    line.

    Raises:
        IncompleteResultError: The result is incomplete. The output reveals this, because json lacks the closing bracket
            and a table lacks its number of rows.
        ClientError: `style.chart` is set and the result cannot be drawn.
        OutputError: The output cannot be written.
    """
    pieces = _flushed(answer.pieces(), output)
    if style.chart is not None:
        from runtimeclient.output.charts import draw_text, make_chart  # noqa: PLC0415 (few results are charts)

        lines: Iterable[str] = draw_text(make_chart(*read_rows(answer, pieces), style.chart), style)
    elif style.format == "csv":
        lines = pieces
    elif style.format == "ndjson":
        lines = (row.text + "\n" for row in answer.rows(pieces))
    elif style.format == "json":
        # Also parse the JSON, because a truncated or damaged result must be detected.
        for _ in answer.rows(_copied(pieces, output)):
            pass
        lines = ["\n"]
    else:
        columns, rows = read_rows(answer, pieces)
        lines = table(columns, rows, style) if style.format == "table" else markdown(columns, rows)
    for line in lines:
        output.write(line)
    output.flush()


def read_rows(
    answer: SqlResult, pieces: Iterator[str] | None = None
) -> tuple[tuple[str, ...], Iterator[list[JsonValue]]]:
    """Return the columns of a result with a schema, and its rows in that order. Raises IncompleteResultError."""
    rows = answer.rows(pieces)
    # The columns are known after the first row, or at the end of an empty result.
    first = list(islice(rows, 1))
    columns = answer.columns
    return columns, ([row.values.get(column) for column in columns] for row in chain(first, rows))


def write_list(columns: Sequence[str], items: Sequence[Mapping[str, Plain]], style: Style, stream: TextStream) -> None:
    """Write a short list of objects with these members."""
    rows = [[item[column] for column in columns] for item in items]
    if style.format == "json":
        lines: Iterable[str] = [json.dumps(items, ensure_ascii=False, separators=(",", ":")) + "\n"]
    elif style.format == "csv":
        lines = (",".join(map(_csv_value, row)) + "\n" for row in (columns, *rows))
    else:
        lines = table(columns, ([_json_value(value) for value in row] for row in rows), style)
    output = Output(stream)
    for line in lines:
        output.write(line)
    output.flush()


def _flushed(pieces: Iterator[str], output: Output) -> Iterator[str]:
    """Flush the output before each wait for more."""
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
    # Python's csv module does not quote a lone carriage return, and then cannot read it back.
    return '"' + text.replace('"', '""') + '"' if any(character in text for character in ',"\r\n') else text


def _json_value(value: Plain) -> JsonValue:
    return Number(value) if isinstance(value, int) and not isinstance(value, bool) else value
