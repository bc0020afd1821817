"""Chunks of an answer that are not in one place: for whoever can send them as they are."""

from __future__ import annotations

from collections.abc import Sequence

#: Bytes that follow each other, with the buffers of record batches among them. A copy is made by who needs one.
Parts = Sequence[bytes | memoryview]


def length(parts: Parts) -> int:
    """Return the bytes of all of *parts*."""
    return sum(map(len, parts))


def joined(parts: Parts) -> bytes:
    """Return *parts* as one; no copy is made of a single one."""
    return b"".join(parts)
