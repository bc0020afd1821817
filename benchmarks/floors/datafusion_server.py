"""
DataFusion with in-memory tables behind the HTTP server of the standard library, for single large statements.

    python benchmarks/floors/datafusion_server.py PORT NAME=PARQUET...

It runs in the virtual environment of the peers and imports nothing of this project.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import datafusion  # type: ignore[import-not-found]  # it is in the environment of the peers
import pyarrow.parquet

CONTEXT = datafusion.SessionContext()


class Handler(BaseHTTPRequestHandler):
    """Answers a POST whose body is a statement with rows as JSON."""

    def do_POST(self) -> None:
        """Run the statement."""
        sql = self.rfile.read(int(self.headers["Content-Length"])).decode()
        try:
            rows = [row for batch in CONTEXT.sql(sql).collect() for row in batch.to_pylist()]
            status, body = 200, json.dumps(rows, default=str).encode()
        except Exception as error:  # noqa: BLE001 (any error of the engine is the answer)
            status, body = 400, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    for name, path in (argument.split("=", 1) for argument in sys.argv[2:]):
        CONTEXT.register_record_batches(name, [pyarrow.parquet.read_table(path).to_batches()])
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
