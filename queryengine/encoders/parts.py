"""Chunks of a result as several buffers, so that they can be sent without a copy."""

from collections.abc import Sequence

#: Consecutive bytes, with the buffers of record batches among them.
Parts = Sequence[bytes | memoryview]


def length(parts: Parts) -> int:
    """Return the number of bytes in *parts*."""
    return sum(map(len, parts))
