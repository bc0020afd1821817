"""Show an answer or a list in the format asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeAlias

from runtimeclient.answers import CSV, JSON, JSON_WITH_SCHEMA, SqlAnswer
from runtimeclient.json_stream import JsonValue, Number
from runtimeclient.output import Output
from runtimeclient.tables import table

Plain: TypeAlias = "bool | int | str | None"

#: What to ask the runtime for, by the format in which `sql` shows it.
MEDIA_TYPES: Mapping[str, str] = {"table": JSON_WITH_SCHEMA, "json": JSON, "csv": CSV, "ndjson": JSON}
#: How `status` and `datasets` can be shown.
LIST_FORMATS = ("table", "json", "csv")


def write_answer(answer: SqlAnswer, format_: str, output: Output) -> None:
    """
    Show the answer to a statement while it arrives, in bounded memory.

    json and csv are what the runtime sent, character by character (json with a line break after it); ndjson has one row
    a line.

    Raises:
        AnswerCutError: The answer is not complete. What was written until then shows it: json lacks its bracket at the
            end, a table its number of rows.
        OutputError: The output cannot be written.
    """
    pieces = _flushed(answer.pieces(), output)
    if format_ == "csv":
        for piece in pieces:
            output.write(piece)
    elif format_ == "ndjson":
        for row in answer.rows(pieces):
            output.write(row.text + "\n")
    elif format_ == "json":
        # Read too, not only copied: JSON that is cut or damaged must not pass for an answer.
        for _ in answer.rows(_copied(pieces, output)):
            pass
        output.write("\n")
    else:
        rows = answer.rows(pieces)
        # The columns are known with the first row; those of an empty answer at its end.
        first = list(islice(rows, 1))
        columns = answer.columns
        for line in table(columns, ([row.values.get(column) for column in columns] for row in chain(first, rows))):
            output.write(line)
    output.flush()


def write_list(columns: Sequence[str], items: Sequence[Mapping[str, Plain]], format_: str, output: Output) -> None:
    """Show a short list of objects that have those members."""
    rows = [[item[column] for column in columns] for item in items]
    if format_ == "json":
        output.write(json.dumps(items, ensure_ascii=False, separators=(",", ":")) + "\n")
    elif format_ == "csv":
        for row in (columns, *rows):
            output.write(",".join(map(_csv_value, row)) + "\n")
    else:
        for line in table(columns, ([_json_value(value) for value in row] for row in rows)):
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
