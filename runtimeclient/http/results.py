"""The result of one statement, read as a stream of JSON rows or of bytes."""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self, TypeAlias, TypeVar

from runtimeclient.errors import IncompleteResultError
from runtimeclient.http.timeouts import MIN_BYTES_PER_S

if TYPE_CHECKING:  # The options of `sql` need this module, and httpx is slow to import.
    import httpx


class Number(str):
    """A JSON number exactly as written. `int`, `float` and `Decimal` accept it."""

    __slots__ = ()


T = TypeVar("T")

JsonValue: TypeAlias = "bool | str | Number | list[JsonValue] | dict[str, JsonValue] | None"

_SPACE = " \t\r\n"
_IN_NUMBER = "-+.eE"  # The empty string at the end of a piece matches too.
# An error this close to the end of the received text may just mean that a token is incomplete.
_MAX_TOKEN_PIECE = 16

#: The maximum number of characters in one value. An endless value would otherwise exhaust the memory.
MAX_VALUE = 64 << 20


def as_json(value: JsonValue) -> str:
    """Serialize a value. Numbers stay as they were written. Raises RecursionError if the value is nested too deeply."""
    if isinstance(value, Number):
        return value
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    if isinstance(value, dict):
        members = (f"{json.dumps(name, ensure_ascii=False)}:{as_json(item)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    return json.dumps(value, ensure_ascii=False)


def parse_json(text: str) -> JsonValue:
    """
    Parse one JSON text. Numbers stay as they were written.

    Raises:
        ValueError: The text is not JSON.
        RecursionError: The text is nested too deeply.
    """
    return _DECODER.decode(text)  # type: ignore[no-any-return] # the decoder's hooks ensure the type


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no JSON", name, 0)


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse_constant)


class JsonStream:
    """
    A cursor in a JSON text that arrives in pieces. Only the current value and the piece it ends in are kept.

    Every method raises IncompleteResultError if the text is incomplete or not JSON.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """Return the next character that is not white space, without consuming it."""
        if not self._skip_space():
            raise _incomplete()
        return self._text[self._at]

    def value(self) -> tuple[str, JsonValue]:
        """Read one value, and return its text and the parsed value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as exc:
                if not exc.msg.startswith("Unterminated") and exc.pos + _MAX_TOKEN_PIECE <= len(self._text):
                    raise _malformed() from exc
            except RecursionError as exc:
                raise _malformed() from exc
            else:
                # A number may continue in the next piece. Every other value has an explicit end.
                may_continue = isinstance(value, Number) and end + _MAX_TOKEN_PIECE > len(self._text)
                if not (may_continue and self._text[end : end + 1] in _IN_NUMBER and self._read(1)):
                    text = self._text[self._at : end]
                    self._at = end
                    return text, value
                continue
            length = len(self._text) - self._at
            if length > MAX_VALUE:
                raise IncompleteResultError(
                    f"A row of the result is longer than {MAX_VALUE >> 20} MiB: use --format csv, which has no limit."
                )
            # Double the length each time, so that the work stays linear in the length of the value.
            if not self._read(min(length, max(MAX_VALUE - length, 1))):
                raise _incomplete()

    def items(self) -> Iterator[tuple[str, JsonValue]]:
        """Read an array value by value."""
        return self._separated("[]", self.value)

    def members(self) -> Iterator[str]:
        """Read an object name by name. The caller must read each value before the next name."""
        return self._separated("{}", self._name)

    def end(self) -> None:
        """Check that only white space follows."""
        if self._skip_space():
            raise _malformed()

    def _separated(self, brackets: str, read: Callable[[], T]) -> Iterator[T]:
        self._take(brackets[0])
        if self.peek() != brackets[1]:
            yield read()
            while self.peek() == ",":
                self._at += 1
                yield read()
        self._take(brackets[1])

    def _name(self) -> str:
        if self.peek() != '"':
            raise _malformed()
        name = self.value()[1]
        self._take(":")
        return str(name)

    def _take(self, character: str) -> None:
        if self.peek() != character:
            raise _malformed()
        self._at += 1

    def _skip_space(self) -> bool:
        """Move to the next character that is not white space. Return False if there is none."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return True
                self._at += 1
            if not self._read(1):
                return False

    def _read(self, at_least: int) -> bool:
        """Read at least *at_least* more characters. Return False if there are none."""
        pieces = [self._text[self._at :]]
        missing = at_least
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            missing -= len(piece)
        self._text, self._at = "".join(pieces), 0
        return missing < at_least


def _malformed() -> IncompleteResultError:
    return IncompleteResultError("The result is not valid JSON: it was damaged in transit, or is not from a runtime.")


def _incomplete() -> IncompleteResultError:
    return IncompleteResultError("The result was cut off: its JSON is incomplete.")


JSON = "application/json"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
#: The media type of JSON with the schema and the rows, in which an empty result also has columns.
JSON_WITH_SCHEMA = "application/vnd.spiceai.sql.v1+json"


class Row(NamedTuple):
    """One row: its JSON text as sent, and its values by column name."""

    text: str
    values: dict[str, JsonValue]


class SqlResult:
    """
    The result of one statement. Read it once, with `chunks`, `pieces` or `rows`, then close it.

    Closing the result early closes the connection, which cancels the query. Reading raises IncompleteResultError if the
    result ends before it is complete.

    Attributes:
        columns: The column names, which are known after the first row, or at the end of `rows` if there are no rows.
        bytes_read: The number of bytes received so far.
        rows_read: The number of rows that `rows` has yielded so far.
    """

    def __init__(self, response: "httpx.Response", silence_s: float) -> None:
        self.columns: tuple[str, ...] = ()
        self.bytes_read = 0
        self.rows_read = 0
        self._response = response
        self._silence_s = silence_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, unless the whole result was read."""
        self._response.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the result as they arrive. Raises IncompleteResultError if it is incomplete."""
        import httpx  # noqa: PLC0415 (see above)

        try:
            for chunk in self._response.iter_raw():
                self.bytes_read += len(chunk)
                yield chunk
        except httpx.TimeoutException as exc:
            raise IncompleteResultError(
                f"The result was cut off: nothing arrived for {self._silence_s:g} s, or less than"
                f" {MIN_BYTES_PER_S} bytes per second."
            ) from exc
        except httpx.TransportError as exc:
            raise IncompleteResultError(
                "The result was cut off: the query failed or timed out, or the connection was lost."
            ) from exc
        # A body that ends with the connection looks complete even if it is truncated.
        came_over_a_wire = "http_version" in self._response.extensions
        if came_over_a_wire and not {"content-length", "transfer-encoding"} & set(self._response.headers):
            raise IncompleteResultError("The result may be cut off: the response does not state its length.")

    def pieces(self) -> Iterator[str]:
        """
        Yield the text of the result as it arrives.

        Raises:
            IncompleteResultError: The result is incomplete or not UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in self.chunks():
                yield decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as exc:
            raise IncompleteResultError("The result is not UTF-8: it was damaged in transit.") from exc

    def rows(self, pieces: Iterator[str] | None = None) -> Iterator[Row]:
        """
        Yield the rows of a JSON result in bounded memory.

        Args:
            pieces: The result's `pieces`, for a caller that also wants to process the text.

        Raises:
            IncompleteResultError: The result is incomplete or not a list of JSON rows.
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
                raise IncompleteResultError(
                    "The result is not a list of rows: it was damaged, or is not from a runtime."
                )
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
