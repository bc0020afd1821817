"""The parameters that DoPut brings: hostile until proven sound, one row at most."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from queryengine.engine import Parameters


def read_row(upload: Iterable[bytes], max_bytes: int) -> pa.Table:
    """
    Return the row of parameters that the serialised FlightData messages of a DoPut bring, its descriptor ignored.

    The table has one row or none (none: no parameters) and is validated in full; its columns have types of which each
    value is one parameter.

    Args:
        upload: All messages, the first with the descriptor included. Taken only as far as they are sound.
        max_bytes: Of all messages together, counted before anything is decoded.

    Raises:
        UploadTooLargeError: There are more bytes.
        UploadError: They are no Arrow stream, or of an unsound one, or of types that no parameter has, or more than
            one row.
        MalformedMessageError: One is no FlightData.
    """
    raise NotImplementedError


def parameters(row: pa.Table, taken: Collection[str]) -> Parameters | None:
    """
    Return the values of *row* for a statement that takes the parameters *taken*; None for no row.

    Values are Python's own: int, float, str, bytes, Decimal, date, time, datetime, timedelta, list, dict. For numbered
    parameters: in the order of the columns' names when these are 1 to n, with or without `$`, else of the columns.
    For named ones: by the columns' names, with or without a leading `$`, `:` or `@`.

    Args:
        row: As `read_row` gives it.
        taken: "1" and "2" for `?` and `$1`, else the words after `$`, as `GatedStatement.parameters`.

    Raises:
        UploadError: Two columns have the same name, or a value has no equal in Python.
    """
    raise NotImplementedError
