"""Serialises tables of this endpoint as FlightData messages (`Flight.proto`)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from queryengine.encoders import flight
from queryengine.encoders.parts import joined
from queryengine.encoders.plan import ARROW_PIECE_BYTES, pieces


def table_data(table: pa.Table) -> Iterator[bytes]:
    """Yield *table* as serialised FlightData in messages of less than 4 MiB, if a single row is smaller."""
    batches = pieces(table.to_batches(), lambda batch: int(batch.nbytes), ARROW_PIECE_BYTES)
    return map(joined, flight.messages(table.schema, (piece for piece, _ in batches)))
