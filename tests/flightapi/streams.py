"""Arrow streams and FlightData, made and read by pyarrow and protobuf alone."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any

import pyarrow as pa

from flightapi.protocol import messages


def ipc_stream(table: pa.Table, **options: Any) -> bytes:
    """The table as an Arrow IPC stream."""
    sink = BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def as_upload(stream: bytes) -> list[bytes]:
    """The messages of an IPC stream as a client's FlightData, read by pyarrow."""
    found = []
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        body = message.body.to_pybytes() if message.body is not None else b""
        data = messages.FlightData(data_header=message.metadata.to_pybytes(), data_body=body)
        found.append(data.SerializeToString())
    return found


def reread(data: Iterable[bytes]) -> pa.Table:
    """The table in serialised FlightData."""
    stream = bytearray()
    for serialised in data:
        message = messages.FlightData.FromString(serialised)
        stream += b"\xff\xff\xff\xff" + len(message.data_header).to_bytes(4, "little")
        stream += message.data_header + message.data_body
    with pa.ipc.open_stream(bytes(stream) + b"\xff\xff\xff\xff\0\0\0\0") as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table
