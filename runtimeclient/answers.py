"""The answer to one statement, read while it arrives."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

import httpx

from runtimeclient.errors import AnswerCutError
from runtimeclient.json_stream import JsonStream, JsonValue
from runtimeclient.waits import SLOWEST_BYTES_PER_S

JSON = "application/json"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
#: JSON with the schema beside the rows, so that an empty result has columns too.
JSON_WITH_SCHEMA = "application/vnd.spiceai.sql.v1+json"


class Row(NamedTuple):
    """One row of an answer: its JSON text as sent, and its values by column name."""

    text: str
    values: dict[str, JsonValue]


class SqlAnswer:
    """
    The answer to one statement while it arrives. Read it once, by `chunks`, `pieces` or `rows`, then close it.

    Closing it early ends the connection, and with it the query. Reading raises AnswerCutError when the answer ends
    before it is complete: what came out until then is not the whole.

    Attributes:
        columns: The column names, once `rows` has met them; known when it is exhausted at the latest.
        bytes_read: How much has arrived.
        rows_read: How many rows `rows` has given out.
        query_id: What the runtime calls the statement, if it says so.
    """

    def __init__(self, response: httpx.Response, silence_s: float) -> None:
        self.columns: tuple[str, ...] = ()
        self.bytes_read = 0
        self.rows_read = 0
        self.query_id: str | None = response.headers.get("X-Query-Id")
        self._response = response
        self._silence_s = silence_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, unless the whole answer was read."""
        self._response.close()

    def chunks(self) -> Iterator[bytes]:
        """
        Give the answer as it arrives.

        Raises:
            AnswerCutError: The answer ended too early.
        """
        try:
            for chunk in self._response.iter_raw():
                self.bytes_read += len(chunk)
                yield chunk
        except httpx.TimeoutException as exc:
            raise AnswerCutError(
                f"The answer was cut off: nothing came for {self._silence_s:g} s, or less than"
                f" {SLOWEST_BYTES_PER_S} bytes a second."
            ) from exc
        except httpx.TransportError as exc:
            raise AnswerCutError(
                "The answer was cut off before its end: the query failed or took too long, or the connection broke."
            ) from exc
        if not self._shows_its_end():
            raise AnswerCutError("The answer may have been cut off: nothing in it shows where it ends.")

    def pieces(self) -> Iterator[str]:
        """
        Give the text of the answer as it arrives.

        Raises:
            AnswerCutError: The answer ended too early, or is not UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in self.chunks():
                yield decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as exc:
            raise AnswerCutError("The answer is not UTF-8: it was damaged on the way.") from exc

    def rows(self, pieces: Iterator[str] | None = None) -> Iterator[Row]:
        """
        Give the rows of a JSON answer one by one, in bounded memory.

        Args:
            pieces: The answer's own `pieces`, when the caller wants to look at them on their way.

        Raises:
            AnswerCutError: The answer ended too early, or is not JSON rows.
        """
        stream = JsonStream(self.pieces() if pieces is None else pieces)
        if stream.peek() == "[":
            yield from self._items(stream)
        else:
            for name in stream.members():
                if name == "data":
                    yield from self._items(stream)
                else:
                    _, value = stream.value()
                    if name == "schema" and not self.columns:
                        self.columns = _column_names(value)
        stream.end()

    def _items(self, stream: JsonStream) -> Iterator[Row]:
        is_first = True
        for text, values in stream.items():
            if not isinstance(values, dict):
                raise AnswerCutError("The answer is not a list of rows: it was damaged, or another program gave it.")
            if is_first:
                # A name that occurs twice in the schema is told apart in the rows.
                self.columns, is_first = tuple(values), False
            self.rows_read += 1
            yield Row(text, values)

    def _shows_its_end(self) -> bool:
        """A chunked or counted body cannot be cut unnoticed; one that ends with the connection can."""
        came_over_a_wire = "http_version" in self._response.extensions
        headers = self._response.headers
        return not came_over_a_wire or "content-length" in headers or "transfer-encoding" in headers


def _column_names(schema: JsonValue) -> tuple[str, ...]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, list):
        return ()
    return tuple(str(field.get("name")) for field in fields if isinstance(field, dict))
