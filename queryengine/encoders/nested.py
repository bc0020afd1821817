"""Renderers of lists, structs, tuples, maps and unions. Members are rendered as columns, then joined row by row."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from queryengine.encoders.nulls import fields_of
from queryengine.encoders.rendering import Fragment, Renderer, join, json_escaped, with_nulls_of
from queryengine.encoders.rows import joined_rows, object_literals
from queryengine.values import unique_names


class ListRenderer(Renderer):
    """A JSON array for a list of any length."""

    def __init__(self, element: Renderer) -> None:
        self._element = element

    def _json(self, array: pa.Array) -> Fragment:
        tokens = self._element.json(array.flatten()).tokens()
        return Fragment(_joined_by_row(array, tokens), "[", "]")

    def _size(self, array: pa.Array) -> int:
        return 8 * len(array) + self._element.size(array.flatten())


class StructRenderer(Renderer):
    """A JSON object keyed by member, or an array if the members have no names."""

    def __init__(self, members: Sequence[Renderer], names: Sequence[str] | None) -> None:
        self._members = members
        if names is None:
            self._literals = ["[", *[","] * (len(members) - 1), "]"]
            self._empty = "[]"
        else:
            self._literals = object_literals(unique_names(names))
            self._empty = "{}"
        self._overhead = len("".join(self._literals).encode()) + 8

    def _json(self, array: pa.Array) -> Fragment:
        members = [member.json(child) for member, child in zip(self._members, fields_of(array), strict=True)]
        if members:
            text = joined_rows(members, self._literals, null="null")
        else:
            text = pa.array([self._empty] * len(array), pa.string())
        return Fragment(with_nulls_of(array, text))

    def _size(self, array: pa.Array) -> int:
        members = zip(self._members, fields_of(array), strict=True)
        return self._overhead * len(array) + sum(member.size(child) for member, child in members)


class MapRenderer(Renderer):
    """A JSON object keyed by the plain text of each key. Keys with the same text become `k`, `k_1`."""

    def __init__(self, key: Renderer, value: Renderer) -> None:
        self._key = key
        self._value = value

    def _json(self, array: pa.Array) -> Fragment:
        rows, keys, values = self._entries(array)
        names = self._names(rows, self._key.plain(keys))
        members = join('"', json_escaped(names), '":', self._value.json(values).tokens())
        return Fragment(_joined_by_row(rows, members), "{", "}")

    def _size(self, array: pa.Array) -> int:
        _, keys, values = self._entries(array)
        return 8 * len(array) + self._key.size(keys) + self._value.size(values)

    @staticmethod
    def _entries(array: pa.MapArray) -> tuple[pa.ListArray, pa.Array, pa.Array]:
        """Return the map as a list of entries, and the keys and values of all entries."""
        # A cast would crash the process if a value is a map without keys, as in MAP {'a': MAP {}}.
        entries, layout = array.values, array.buffers()[:2]
        rows = pa.Array.from_buffers(
            pa.list_(entries.type), len(array), layout, array.null_count, array.offset, children=[entries]
        )
        pairs = rows.flatten()
        return rows, pairs.field(0), pairs.field(1)

    @staticmethod
    def _names(rows: pa.ListArray, names: pa.StringArray) -> pa.StringArray:
        """Make keys unique within each map. A file may repeat a key, and two keys of a union may have the same text."""
        names = names.fill_null("null")
        entries = pa.table({"row": pc.list_parent_indices(rows), "name": names})
        if entries.group_by(["row", "name"]).aggregate([]).num_rows == len(names):
            return names
        by_row: dict[int, list[str]] = {}
        for entry in entries.to_pylist():
            by_row.setdefault(entry["row"], []).append(entry["name"])
        return pa.array([name for row in by_row.values() for name in unique_names(row)], pa.string())


class UnionRenderer(Renderer):
    """The value of the member that is set."""

    def __init__(self, members: Sequence[Renderer]) -> None:
        self._members = members

    def _json(self, array: pa.Array) -> Fragment:
        return Fragment(self._chosen(array, [member.json(child).whole() for member, child in self._children(array)]))

    def _plain(self, array: pa.Array) -> pa.StringArray:
        return self._chosen(array, [member.plain(child) for member, child in self._children(array)])

    def _size(self, array: pa.Array) -> int:
        return sum(member.size(child) for member, child in self._children(array))

    def _chosen(self, array: pa.UnionArray, texts: Sequence[pa.StringArray]) -> pa.StringArray:
        # The property type_codes ignores the offset of a slice.
        codes = pa.Array.from_buffers(pa.int8(), len(array), [None, array.buffers()[1]], offset=array.offset)
        return pc.choose(pc.cast(codes, pa.int64()), *texts)

    def _children(self, array: pa.UnionArray) -> list[tuple[Renderer, pa.Array]]:
        return [(member, array.field(position)) for position, member in enumerate(self._members)]


def _joined_by_row(lists: pa.Array, tokens: pa.StringArray) -> pa.StringArray:
    """Join the tokens of each list with commas. Null lists stay null."""
    lengths = pc.list_value_length(lists)
    ends = pc.cumulative_sum(pc.cast(lengths.fill_null(0), pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    text = pc.binary_join(pa.ListArray.from_arrays(offsets, tokens), ",")
    return with_nulls_of(lists, text)
