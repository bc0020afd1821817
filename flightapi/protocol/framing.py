"""Arrow IPC streams as FlightData messages, without a look at the values (Arrow Flight, `Flight.proto`, FlightData)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def flight_data(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """
    Turn an Arrow IPC stream into serialised FlightData: the schema, dictionaries and record batches, one message each.

    The end marker is swallowed; nothing is decoded; each body is copied once. Each message is given as soon as it is
    whole, wherever *chunks* begin and end. What *chunks* raise passes through.

    Raises:
        AnswerCutError: The stream ends before its end marker, or is no Arrow stream.
    """
    raise NotImplementedError


def table_data(table: pa.Table) -> Iterator[bytes]:
    """Give *table* as serialised FlightData, cut so that each message fits into 4 MiB where one row does."""
    raise NotImplementedError
