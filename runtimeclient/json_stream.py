"""Read JSON as it arrives: one value at a time out of a text that may be far larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeAlias

from runtimeclient.errors import AnswerCutError


class Number(str):
    """A JSON number exactly as it was written; `int`, `float` and `Decimal` take it."""

    __slots__ = ()


JsonValue: TypeAlias = "bool | str | Number | list[JsonValue] | dict[str, JsonValue] | None"

_SPACE = " \t\r\n"
_IN_NUMBER = "-+.eE"  # and nothing at all, at the end of a piece
# An error this close to the end of what has arrived may only mean that the rest of a token is still to come.
_LONGEST_TOKEN_PIECE = 16

#: Characters of one value. A server that never ends one would otherwise take all memory.
LONGEST_VALUE = 64 << 20


def as_json(value: JsonValue) -> str:
    """Write a value as JSON, numbers as they were. Raises RecursionError when it is nested too deep."""
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
    Read one JSON text, numbers as they are written.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deep.
    """
    stripped = text.strip(_SPACE)
    value, end = _decode(stripped)
    if end != len(stripped):
        raise ValueError("more than one value")
    return value  # type: ignore[no-any-return] # the decoder's hooks see to that


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no JSON", name, 0)


_decode = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refuse_constant).raw_decode


class JsonStream:
    """
    A cursor in a JSON text that arrives in pieces. It holds the value being read and the piece it ends in, no more.

    Every method raises AnswerCutError when the text ends too early or is not JSON.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """Give the next character that is not white space, and stay before it."""
        if not self._skip_space():
            raise AnswerCutError("The answer was cut off: its JSON ends too early.")
        return self._text[self._at]

    def take(self, character: str) -> None:
        """Step over *character*, which must be next."""
        if self.peek() != character:
            raise self._malformed()
        self._at += 1

    def value(self) -> tuple[str, JsonValue]:
        """Read one value; give its text and what it means."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError as exc:
                is_unfinished = exc.msg.startswith("Unterminated") or exc.pos + _LONGEST_TOKEN_PIECE > len(self._text)
                if not is_unfinished:
                    raise self._malformed() from exc
            except RecursionError as exc:
                raise self._malformed() from exc
            else:
                # A number may go on in the next piece; every other value shows its end.
                may_go_on = isinstance(value, Number) and end + _LONGEST_TOKEN_PIECE > len(self._text)
                if not (may_go_on and self._text[end : end + 1] in _IN_NUMBER and self._read(1)):
                    text = self._text[self._at : end]
                    self._at = end
                    return text, value
                continue
            length = len(self._text) - self._at
            if length > LONGEST_VALUE:
                raise AnswerCutError(
                    f"A row of the answer is longer than {LONGEST_VALUE >> 20} MiB, too long to read here:"
                    " --format csv passes rows of any length on."
                )
            # Twice as much each time: the work stays linear however long one value is.
            if not self._read(min(length, max(LONGEST_VALUE - length, 1))):
                raise AnswerCutError("The answer was cut off: its JSON ends too early.")

    def items(self) -> Iterator[tuple[str, JsonValue]]:
        """Read an array value by value."""
        self.take("[")
        if self.peek() != "]":
            yield self.value()
            while self.peek() == ",":
                self._at += 1
                yield self.value()
        self.take("]")

    def members(self) -> Iterator[str]:
        """Read an object name by name; the caller reads the value of each before it asks for the next name."""
        self.take("{")
        if self.peek() != "}":
            yield self._member()
            while self.peek() == ",":
                self._at += 1
                yield self._member()
        self.take("}")

    def end(self) -> None:
        """Make sure that nothing but white space follows."""
        if self._skip_space():
            raise self._malformed()

    def _member(self) -> str:
        if self.peek() != '"':
            raise self._malformed()
        name = self.value()[1]
        self.take(":")
        return str(name)

    def _skip_space(self) -> bool:
        """Go to the next character that is not white space; False when there is none."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return True
                self._at += 1
            if not self._read(1):
                return False

    def _read(self, at_least: int) -> bool:
        """Take in that many more characters; False when there are none."""
        pieces = [self._text[self._at :]]
        missing = max(at_least, 1)
        for piece in self._pieces:
            pieces.append(piece)
            missing -= len(piece)
            if missing <= 0:
                break
        has_more = len(pieces) > 1 and any(pieces[1:])
        self._text, self._at = "".join(pieces), 0
        return has_more

    def _malformed(self) -> AnswerCutError:
        return AnswerCutError("The answer is not valid JSON: it was damaged on the way, or another program gave it.")
