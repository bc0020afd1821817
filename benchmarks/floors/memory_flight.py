"""
pyarrow's Flight server with one table in memory: `python -m benchmarks.floors.memory_flight PORT PARQUET`.

It has no engine: a statement with `*` gets the whole table, any other a single row.
"""

import sys
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pyarrow.parquet


class MemoryServer(pa.flight.FlightServerBase):  # type: ignore[misc]  # compiled, without types
    """Answers Flight SQL statements without parsing them."""

    def __init__(self, location: str, table: pa.Table) -> None:
        super().__init__(location)
        self._location = location
        self._answers = {b"all": table, b"one": pa.table({"1": [1]})}

    def get_flight_info(self, _context: Any, descriptor: Any) -> Any:
        """Describe the response to a statement. The driver's other requests, about the server, must fail."""
        if b"CommandStatementQuery" not in descriptor.command:
            raise NotImplementedError
        ticket = b"all" if b"*" in descriptor.command else b"one"
        answer = self._answers[ticket]
        endpoint = pa.flight.FlightEndpoint(ticket, [self._location])
        return pa.flight.FlightInfo(answer.schema, descriptor, [endpoint], answer.num_rows, answer.nbytes)

    def do_get(self, _context: Any, ticket: Any) -> Any:
        """Send the answer."""
        return pa.flight.RecordBatchStream(self._answers[ticket.ticket])


if __name__ == "__main__":
    MemoryServer(f"grpc://127.0.0.1:{sys.argv[1]}", pa.parquet.read_table(sys.argv[2])).serve()
