"""Renderers of numbers, strings and bytes."""

import re
from binascii import hexlify

import pyarrow as pa
import pyarrow.compute as pc

from queryengine.encoders.rendering import (
    Fragment,
    Renderer,
    join,
    json_escaped,
    to_text,
    value_bytes,
    where,
    with_nulls_of,
)

#: Arrow writes a decimal below 10^-6 with an exponent, and zero as `0E-10`. Beyond this scale, we write the digits.
_LARGEST_SCALE_WITHOUT_EXPONENT = 6

#: From this value on, Arrow writes a double with an exponent, even a whole number below 2^53.
_EXPONENT_FROM = pa.scalar(1e10)
_WHOLE_UNTIL = pa.scalar(2.0**53)

#: A string literal, or one of the three words that are not JSON.
_STRING_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')


class CastRenderer(Renderer):
    """Types for which Arrow's cast to text returns JSON: integers, booleans, and nulls without a type."""

    free_text = False

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(to_text(array))


class FloatRenderer(Renderer):
    """
    Floating-point numbers with the shortest digits that read back as the same number. Whole numbers end in `.0`.

    JSON has no NaN or infinities, so they are null in JSON and words in plain text.
    """

    free_text = False

    def _json(self, array: pa.Array) -> Fragment:
        finite = pc.is_finite(array)
        return Fragment(self._digits(where(finite, array) if finite.false_count else array))

    def _plain(self, array: pa.Array) -> pa.StringArray:
        finite = pc.is_finite(array)
        if not finite.false_count:
            return self._digits(array)
        words = pc.if_else(pc.is_nan(array), "NaN", pc.if_else(pc.greater(array, 0), "Infinity", "-Infinity"))
        return pc.if_else(finite, self._digits(where(finite, array)), words)

    @staticmethod
    def _digits(array: pa.Array) -> pa.StringArray:
        text = to_text(array)
        whole = pc.equal(pc.trunc(array), array)
        if not whole.true_count:
            return text
        magnitude = pc.abs(array)
        large = pc.greater_equal(magnitude, _EXPONENT_FROM)
        if large.true_count:
            whole = pc.and_(whole, pc.less(magnitude, _WHOLE_UNTIL))
            large = pc.and_(large, whole)
            text = pc.replace_with_mask(text, large, to_text(pc.cast(array.filter(large), pa.int64())))
        return pc.replace_with_mask(text, whole, join(text.filter(whole), ".0"))


class DecimalRenderer(Renderer):
    """Decimals with all the digits of their scale."""

    free_text = False

    def __init__(self, scale: int) -> None:
        self._scale = scale

    def _json(self, array: pa.Array) -> Fragment:
        if self._scale <= _LARGEST_SCALE_WITHOUT_EXPONENT:
            return Fragment(to_text(array))
        unscaled = pa.Array.from_buffers(
            pa.decimal128(38, 0), len(array), array.buffers(), array.null_count, array.offset
        )
        signed = to_text(unscaled)
        digits = pc.utf8_lpad(pc.utf8_ltrim(signed, "-"), self._scale + 1, "0")
        placed = pc.utf8_replace_slice(digits, -self._scale, -self._scale, ".")
        return Fragment(pc.if_else(pc.starts_with(signed, "-"), join("-", placed), placed))


class StringRenderer(Renderer):
    """Text."""

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(json_escaped(self._plain(array)), '"', '"')

    def _plain(self, array: pa.Array) -> pa.StringArray:
        return array if array.type == pa.string() else to_text(array)


class DigitsRenderer(StringRenderer):
    """Integers that are too large for Arrow. They arrive as the engine's text, and are unquoted in JSON."""

    free_text = False

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(self._plain(array))


class JsonRenderer(StringRenderer):
    """A VARIANT, which arrives as the engine's JSON. It is embedded, with null for NaN and Infinity."""

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(self._plain(array))

    def _plain(self, array: pa.Array) -> pa.StringArray:
        text = super()._plain(array)
        if pc.match_substring_regex(text, "NaN|Infinity").true_count:
            text = pa.array([value and _STRING_OR_WORD.sub(_strict, value) for value in text.to_pylist()], pa.string())
        return text


class BytesRenderer(Renderer):
    """Bytes as lower-case hexadecimal digits."""

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(self._plain(array), '"', '"')

    def _plain(self, array: pa.Array) -> pa.StringArray:
        binary = array if array.type == pa.binary() else pc.cast(array, pa.binary())
        if len(binary) == 0:
            return pa.array([], pa.string())
        offsets = pa.Array.from_buffers(pa.int32(), len(binary) + 1, [None, binary.buffers()[1]], offset=binary.offset)
        doubled = pc.multiply(pc.subtract(offsets, offsets[0]), pa.scalar(2, pa.int32()))
        digits = pa.StringArray.from_buffers(
            len(binary), doubled.buffers()[1], pa.py_buffer(hexlify(value_bytes(binary)))
        )
        return with_nulls_of(binary, digits)


class DictionaryRenderer(Renderer):
    """An ENUM: text that is stored once and referenced by index."""

    _values = StringRenderer()

    def _json(self, array: pa.Array) -> Fragment:
        fragment = self._values.json(array.dictionary)
        return Fragment(pc.take(fragment.values, array.indices), fragment.before, fragment.after)

    def _plain(self, array: pa.Array) -> pa.StringArray:
        return pc.take(self._values.plain(array.dictionary), array.indices)

    def _size(self, array: pa.Array) -> int:
        longest = pc.max(pc.binary_length(array.dictionary)).as_py() or 0
        return len(array) * (int(longest) + 8)


def _strict(match: re.Match[str]) -> str:
    return match.group() if match.group().startswith('"') else "null"
