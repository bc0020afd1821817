"""
The base of all renderers, which convert columns of Arrow values to columns of text in C++, without Python objects.

A renderer handles one type. `json` returns each value as JSON. `plain` returns it as bare text, for CSV and for keys of
JSON objects. In both, a null stays null. The work is done by pyarrow kernels, which release the GIL.
"""

import json
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

#: Arguments of kernel calls. They are created once, because for a small result they would cost as much as the call.
_JOIN: Final = pc.get_function("binary_join_element_wise")
_NO_SEPARATOR: Final = pa.scalar("", pa.string())
_CAST: Final = pc.get_function("cast")
_TO_TEXT: Final = pc.CastOptions.safe(pa.string())

#: The bytes that must be escaped in a JSON string.
_JSON_SPECIAL = frozenset([*range(32), ord('"'), ord("\\")])
_JSON_PLAIN = bytes(set(range(256)) - _JSON_SPECIAL)

#: Writes a string as JSON, with non-ASCII characters unescaped.
json_text = json.JSONEncoder(ensure_ascii=False).encode


class Fragment(Struct, frozen=True):
    """
    A column of text. Every non-null value is enclosed in `before` and `after`.

    The three parts are separate because rows are joined from many columns and literals in one pass. In that pass,
    quotes cost nothing.
    """

    values: pa.StringArray
    before: str = ""
    after: str = ""

    def whole(self) -> pa.StringArray:
        """Return the values enclosed in `before` and `after`. A null stays null."""
        if not self.before and not self.after:
            return self.values
        return join(self.before, self.values, self.after)

    def tokens(self) -> pa.StringArray:
        """Return the values enclosed in `before` and `after`, and the text `null` for a null."""
        whole = self.whole()
        return whole.fill_null("null") if whole.null_count else whole


class Renderer(ABC):
    """Renders a column of one type as text. Subclasses implement `_json`, and other methods if that is faster."""

    #: False if the plain text is never empty and never contains a quote, a comma or a line end.
    free_text = True

    def json(self, array: pa.Array) -> Fragment:
        """Return each value as JSON (RFC 8259)."""
        return self._json(array)

    def plain(self, array: pa.Array) -> pa.StringArray:
        """Return each value as bare text: a string unchanged, a nested value as JSON."""
        return self._plain(array)

    def size(self, array: pa.Array) -> int:
        """Return an upper bound for the length of the text in bytes, without escapes."""
        return self._size(array)

    @abstractmethod
    def _json(self, array: pa.Array) -> Fragment: ...

    def _plain(self, array: pa.Array) -> pa.StringArray:
        return self._json(array).whole()

    def _size(self, array: pa.Array) -> int:
        return 24 * len(array) + 2 * int(array.nbytes)


def join(*parts: pa.Array | str, null: str | None = None) -> pa.StringArray:
    """
    Join columns and literals, row by row. At least one part is a column.

    Args:
        parts: Columns of equal length, and literals.
        null: The text for a null. With None, a row that contains a null is null.
    """
    arguments = [pa.scalar(part, pa.string()) if isinstance(part, str) else part for part in parts]
    return _JOIN.call([*arguments, _NO_SEPARATOR], _null_handling(null))


def to_text(array: pa.Array) -> pa.StringArray:
    """Cast to text with Arrow's cast."""
    return _CAST.call([array], _TO_TEXT)


@lru_cache(maxsize=8)
def _null_handling(text: str | None) -> pc.JoinOptions:
    handling = "emit_null" if text is None else "replace"
    return pc.JoinOptions(null_handling=handling, null_replacement=text or "")


def where(mask: pa.BooleanArray, array: pa.Array) -> pa.Array:
    """Keep the values where *mask* is true. The others become null."""
    return pc.if_else(mask, array, pa.scalar(None, array.type))


def with_nulls_of(source: pa.Array, array: pa.Array) -> pa.Array:
    """Return *array* with a null wherever *source* has one."""
    return where(source.is_valid(), array) if source.null_count else array


def value_bytes(array: pa.StringArray | pa.BinaryArray) -> memoryview:
    """Return the bytes of all values, one after another, without a copy."""
    if len(array) == 0:
        return memoryview(b"")
    _, offsets, data = array.buffers()
    bounds = memoryview(offsets).cast("i")
    first, last = bounds[array.offset], bounds[array.offset + len(array)]
    return memoryview(data)[first:last] if first != last else memoryview(b"")


def specials(array: pa.StringArray, plain: bytes) -> set[int]:
    """Return the bytes in the values that are not in *plain*, in one pass."""
    return set(bytes(value_bytes(array)).translate(None, plain))


def json_escaped(array: pa.StringArray) -> pa.StringArray:
    """Escape the values as JSON strings. Most columns need no escapes and are returned unchanged."""
    found = specials(array, _JSON_PLAIN)
    # Escape backslashes first, because the other escapes add new ones.
    for byte in sorted(found, key=lambda byte: byte != ord("\\")):
        character = chr(byte)
        array = pc.replace_substring(array, pattern=character, replacement=json.dumps(character)[1:-1])
    return array
