"""Parse streamed JSON: one value at a time, from a text that may be larger than memory."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeAlias, TypeVar

from runtimeclient.errors import AnswerCutError


class Number(str):
    """A JSON number exactly as written; `int`, `float` and `Decimal` accept it."""

    __slots__ = ()


T = TypeVar("T")

JsonValue: TypeAlias = "bool | str | Number | list[JsonValue] | dict[str, JsonValue] | None"

_SPACE = " \t\r\n"
_IN_NUMBER = "-+.eE"  # The empty string at the end of a piece matches too.
# An error this close to the end of the received text may just mean that a token is incomplete.
_MAX_TOKEN_PIECE = 16

#: Characters of one value. An endless value would otherwise exhaust the memory.
MAX_VALUE = 64 << 20


def as_json(value: JsonValue) -> str:
    """Serialize a value, numbers as they were written. Raises RecursionError if it is nested too deeply."""
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
    Parse one JSON text; numbers stay as written.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    return _DECODER.decode(text)  # type: ignore[no-any-return] # the decoder's hooks ensure the type


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no JSON", name, 0)


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse_constant)


class JsonStream:
    """
    A cursor in a JSON text that arrives in pieces. It holds only the value being read and the piece that it ends in.

    Every method raises AnswerCutError if the text is incomplete or not JSON.
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
        """Read one value; return its text and the parsed value."""
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
                # A number may continue in the next piece; every other value has an explicit end.
                may_continue = isinstance(value, Number) and end + _MAX_TOKEN_PIECE > len(self._text)
                if not (may_continue and self._text[end : end + 1] in _IN_NUMBER and self._read(1)):
                    text = self._text[self._at : end]
                    self._at = end
                    return text, value
                continue
            length = len(self._text) - self._at
            if length > MAX_VALUE:
                raise AnswerCutError(
                    f"A row of the answer is longer than {MAX_VALUE >> 20} MiB: use --format csv, which has no limit."
                )
            # Double the length each time, so that the work stays linear in the length of the value.
            if not self._read(min(length, max(MAX_VALUE - length, 1))):
                raise _incomplete()

    def items(self) -> Iterator[tuple[str, JsonValue]]:
        """Read an array value by value."""
        return self._separated("[]", self.value)

    def members(self) -> Iterator[str]:
        """Read an object name by name; the caller reads each value before the next name."""
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
        """Move to the next character that is not white space; return False if there is none."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return True
                self._at += 1
            if not self._read(1):
                return False

    def _read(self, at_least: int) -> bool:
        """Read at least that many more characters; return False if there are none."""
        pieces = [self._text[self._at :]]
        missing = at_least
        while missing > 0 and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            missing -= len(piece)
        self._text, self._at = "".join(pieces), 0
        return missing < at_least


def _malformed() -> AnswerCutError:
    return AnswerCutError("The answer is not valid JSON: it was damaged in transit, or is not from a runtime.")


def _incomplete() -> AnswerCutError:
    return AnswerCutError("The answer was cut off: its JSON is incomplete.")
