"""Chooses the renderer of each column, once per result, and cuts a result into pieces."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final, TypeVar

import pyarrow as pa

from queryengine.encoders.nested import ListRenderer, MapRenderer, StructRenderer, UnionRenderer
from queryengine.encoders.rendering import Renderer
from queryengine.encoders.scalars import (
    BytesRenderer,
    CastRenderer,
    DecimalRenderer,
    DictionaryRenderer,
    DigitsRenderer,
    FloatRenderer,
    JsonRenderer,
    StringRenderer,
)
from queryengine.encoders.temporal import DateRenderer, TimeRenderer, TimestampRenderer
from queryengine.errors import ResourceLimitError, SqlError
from queryengine.manifest import Column
from queryengine.values import Carrier, ValueType, parse_type

_Text = TypeVar("_Text")

#: The size of text pieces: large enough to make kernel calls cheap, small enough for many results at once.
TEXT_PIECE_BYTES = 4 * 1024 * 1024

#: If the engine took longer than this for a batch, in seconds, all its text is yielded before the next batch is pulled.
_FAST_S = 0.02

#: The size of Arrow pieces. With framing, a piece stays well below the 4 MiB that Flight clients accept per message.
ARROW_PIECE_BYTES = 3 * 1024 * 1024

#: The maximum size of one row, which becomes text as a whole, in several copies.
MAX_ROW_BYTES = 128 * 1024 * 1024


def renderers(columns: Sequence[Column], schema: pa.Schema) -> tuple[Renderer, ...]:
    """
    Choose the renderer of each column.

    Raises:
        SqlError: A column has a type that cannot be represented exactly.
    """
    chosen = []
    for column, field in zip(columns, schema, strict=True):
        renderer = _renderer(parse_type(column.type), field.type)
        if renderer is None:
            raise SqlError(f'Column "{column.name}" has the type {column.type}, which has no text: cast it to VARCHAR.')
        chosen.append(renderer)
    return tuple(chosen)


def texts(
    batches: Iterable[pa.RecordBatch],
    plan: Sequence[Renderer],
    row_overhead: int,
    render: Callable[[pa.RecordBatch], _Text],
) -> Iterator[_Text]:
    """
    Cut batches into pieces that are small as text, and yield the text that *render* returns for each piece.

    Args:
        batches: The batches, pulled one at a time after the texts of the previous batch were yielded. While batches
            arrive fast, the last texts of a batch with several pieces may still be in progress.
        plan: The renderers of the columns.
        row_overhead: The bytes of each row in addition to its values.
        render: Renders a piece. Called from several threads if a batch has several pieces.

    Raises:
        ResourceLimitError: A single row exceeds `MAX_ROW_BYTES`.
    """

    def size(batch: pa.RecordBatch) -> int:
        columns = zip(plan, batch.columns, strict=True)
        return row_overhead * int(batch.num_rows) + sum(renderer.size(array) for renderer, array in columns)

    pending: deque[Future[_Text]] = deque()
    try:
        began = time.perf_counter()
        for batch in batches:
            took_s = time.perf_counter() - began
            for piece, piece_bytes in pieces([batch], size, TEXT_PIECE_BYTES):
                if piece_bytes > MAX_ROW_BYTES:
                    raise ResourceLimitError(
                        f"One row takes more than {MAX_ROW_BYTES // 1024**2} MiB as text: select less of it, or ask "
                        "for Arrow."
                    )
                # A batch in one piece does not need another thread, and a long row needs all the memory.
                if THREADS == 1 or piece.num_rows == batch.num_rows or piece_bytes > TEXT_PIECE_BYTES:
                    yield from _results(pending)
                    yield render(piece)
                else:
                    yield from _results(pending, THREADS)
                    pending.append(in_thread(render, piece))
            if took_s > _FAST_S:
                yield from _results(pending)
            began = time.perf_counter()
        yield from _results(pending)
    finally:
        for future in pending:
            future.cancel()


def _results(pending: deque[Future[_Text]], most_left: int = 0) -> Iterator[_Text]:
    """Yield the oldest results until at most *most_left* are pending, to limit memory use."""
    while len(pending) > most_left:
        yield pending.popleft().result()


def pieces(
    batches: Iterable[pa.RecordBatch], size: Callable[[pa.RecordBatch], int], limit: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Cut batches until each piece has one row or at most *limit* bytes by *size*. Yield each piece and its size."""
    for batch in batches:
        waiting = [batch] if batch.num_rows else []
        while waiting:
            piece = waiting.pop()
            piece_bytes = size(piece)
            if piece.num_rows > 1 and piece_bytes > limit:
                # Cut into as many equal parts as should suffice, because computing the size repeatedly is slow.
                rows = math.ceil(piece.num_rows / math.ceil(piece_bytes / limit))
                waiting += [piece.slice(first, rows) for first in range(0, piece.num_rows, rows)][::-1]
            else:
                yield piece, piece_bytes


def _renderer(kind: ValueType, arrow: pa.DataType) -> Renderer | None:
    """Return the renderer for values of a DuckDB type in an Arrow type; None if there is none."""
    if arrow.id in _TEXT_TYPES:
        return _TEXT_RENDERERS.get(kind.carrier, StringRenderer)()
    if kind.carrier is not Carrier.ARROW:
        return None  # It should have been exported as text, because Arrow cannot represent it exactly.
    if arrow.id in _NESTED_RENDERERS:
        arrow_members = [arrow.field(position).type for position in range(arrow.num_fields)]
        if pa.types.is_map(arrow):
            arrow_members = [arrow.key_type, arrow.item_type]
        if len(arrow_members) != len(kind.children):
            return None
        members = [_renderer(child, member) for child, member in zip(kind.children, arrow_members, strict=True)]
        known = [member for member in members if member is not None]
        return _NESTED_RENDERERS[arrow.id](kind, arrow, known) if len(known) == len(members) else None
    make = _LEAF_RENDERERS.get(arrow.id)
    return make(arrow) if make else None


_TEXT_TYPES = frozenset({pa.lib.Type_STRING, pa.lib.Type_LARGE_STRING, pa.lib.Type_STRING_VIEW})

_TEXT_RENDERERS: Mapping[Carrier, Callable[[], Renderer]] = {
    Carrier.NUMBER: DigitsRenderer,
    Carrier.JSON: JsonRenderer,
}

_LEAF_RENDERERS: Mapping[int, Callable[[pa.DataType], Renderer]] = {
    **dict.fromkeys(
        (
            pa.lib.Type_NA,
            pa.lib.Type_BOOL,
            pa.lib.Type_INT8,
            pa.lib.Type_INT16,
            pa.lib.Type_INT32,
            pa.lib.Type_INT64,
            pa.lib.Type_UINT8,
            pa.lib.Type_UINT16,
            pa.lib.Type_UINT32,
            pa.lib.Type_UINT64,
        ),
        lambda _: CastRenderer(),
    ),
    **dict.fromkeys((pa.lib.Type_FLOAT, pa.lib.Type_DOUBLE), lambda _: FloatRenderer()),
    pa.lib.Type_DECIMAL128: lambda arrow: DecimalRenderer(arrow.scale),
    pa.lib.Type_DATE32: lambda _: DateRenderer(),
    pa.lib.Type_TIME64: lambda arrow: TimeRenderer(arrow.unit),
    pa.lib.Type_TIMESTAMP: lambda arrow: TimestampRenderer(arrow.unit, zoned=arrow.tz is not None),
    **dict.fromkeys((pa.lib.Type_BINARY, pa.lib.Type_LARGE_BINARY), lambda _: BytesRenderer()),
    pa.lib.Type_DICTIONARY: lambda _: DictionaryRenderer(),
}

_NESTED_RENDERERS: Mapping[int, Callable[[ValueType, Any, Sequence[Renderer]], Renderer]] = {
    **dict.fromkeys(
        (pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST),
        lambda _kind, _arrow, members: ListRenderer(*members),
    ),
    pa.lib.Type_STRUCT: lambda kind, arrow, members: StructRenderer(
        members, None if kind.name == "TUPLE" else [field.name for field in arrow]
    ),
    pa.lib.Type_MAP: lambda _kind, _arrow, members: MapRenderer(*members),
    pa.lib.Type_SPARSE_UNION: lambda _kind, _arrow, members: UnionRenderer(members),
}


_Piece = TypeVar("_Piece")
_Made = TypeVar("_Made")

#: The number of threads that encode one result, which works because pyarrow kernels release the GIL. Two threads are
#: enough to keep the thread busy that reads from the engine and sends. Each thread uses memory for its stack and a
#: piece in progress, and a worker with the smallest `memory_limit` has little.
THREADS: Final = min(2, len(os.sched_getaffinity(0)))


def in_thread(make: Callable[[_Piece], _Made], piece: _Piece) -> Future[_Made]:
    """
    Call *make* with *piece* in a thread.

    Raises:
        MemoryError: There is not enough memory for a thread.
    """
    try:
        return _threads(os.getpid()).submit(make, piece)
    except RuntimeError as exc:
        raise MemoryError from exc


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process. A forked process does not inherit its parent's threads."""
    return ThreadPoolExecutor(THREADS, "engine-encoder")
