"""The answer to one statement, read as a stream."""

import codecs
from collections.abc import Iterator
from typing import NamedTuple, Self

import httpx

from runtimeclient.errors import AnswerCutError
from runtimeclient.http.json_stream import JsonStream, JsonValue
from runtimeclient.http.timeouts import MIN_BYTES_PER_S

JSON = "application/json"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
#: JSON with the schema beside the rows, so that an empty result has columns.
JSON_WITH_SCHEMA = "application/vnd.spiceai.sql.v1+json"


class Row(NamedTuple):
    """One row: its JSON text as sent, and its values by column name."""

    text: str
    values: dict[str, JsonValue]


class SqlAnswer:
    """
    The answer to one statement. Read it once, with `chunks`, `pieces` or `rows`, then close it.

    Closing it early closes the connection, which cancels the query. Reading raises AnswerCutError if the answer ends
    before it is complete.

    Attributes:
        columns: The column names; known after the first row, or at the end of `rows` if there are no rows.
        bytes_read: Bytes received so far.
        rows_read: Rows that `rows` has yielded so far.
        query_id: The runtime's id of the statement, if it reports one.
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

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, unless the whole answer was read."""
        self._response.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the answer as they arrive. Raises AnswerCutError if the answer is incomplete."""
        try:
            for chunk in self._response.iter_raw():
                self.bytes_read += len(chunk)
                yield chunk
        except httpx.TimeoutException as exc:
            raise AnswerCutError(
                f"The answer was cut off: nothing arrived for {self._silence_s:g} s, or less than"
                f" {MIN_BYTES_PER_S} bytes per second."
            ) from exc
        except httpx.TransportError as exc:
            raise AnswerCutError(
                "The answer was cut off: the query failed or timed out, or the connection was lost."
            ) from exc
        # A body that ends with the connection looks complete even if it is truncated.
        came_over_a_wire = "http_version" in self._response.extensions
        if came_over_a_wire and not {"content-length", "transfer-encoding"} & set(self._response.headers):
            raise AnswerCutError("The answer may have been cut off: the response does not state its length.")

    def pieces(self) -> Iterator[str]:
        """
        Yield the text of the answer as it arrives.

        Raises:
            AnswerCutError: The answer is incomplete or not UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in self.chunks():
                yield decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as exc:
            raise AnswerCutError("The answer is not UTF-8: it was damaged in transit.") from exc

    def rows(self, pieces: Iterator[str] | None = None) -> Iterator[Row]:
        """
        Yield the rows of a JSON answer, in bounded memory.

        Args:
            pieces: The answer's `pieces`, for a caller that also wants to see them.

        Raises:
            AnswerCutError: The answer is incomplete or not a list of JSON rows.
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
        for number, (text, values) in enumerate(stream.items()):
            if not isinstance(values, dict):
                raise AnswerCutError("The answer is not a list of rows: it was damaged, or is not from a runtime.")
            if not number:
                # Unlike the schema, rows have distinct names for columns of the same name.
                self.columns = tuple(values)
            self.rows_read += 1
            yield Row(text, values)


def _column_names(schema: JsonValue) -> tuple[str, ...]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, list):
        return ()
    return tuple(str(field.get("name")) for field in fields if isinstance(field, dict))
