"""Tables that this endpoint makes itself, as FlightData messages (Arrow Flight, `Flight.proto`, FlightData)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from queryengine.encoders import flight
from queryengine.encoders.parts import joined
from queryengine.encoders.plan import ARROW_PIECE_BYTES, pieces


def table_data(table: pa.Table) -> Iterator[bytes]:
    """Give *table* as serialised FlightData, cut so that each message fits into 4 MiB where one row does."""
    batches = pieces(table.to_batches(), lambda batch: int(batch.nbytes), ARROW_PIECE_BYTES)
    return map(joined, flight.messages(table.schema, (piece for piece, _ in batches)))
