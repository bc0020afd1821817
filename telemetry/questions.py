"""Questions to the collector over its socket: one line each, answered by one line."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from telemetry.errors import TelemetryUnavailableError

#: Seconds until an answer must have come.
TIMEOUT_S = 2.0

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_BUFFER_BYTES = 256 * 1024


def ask_at(path: Path, question: Mapping[str, Any]) -> Any:
    """
    Ask the collector whose socket is at *path*.

    Raises:
        TelemetryUnavailableError: It does not answer, or knows no such question.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(json.dumps({"ask": 1, **question}).encode("ascii") + b"\n")
            with connection.makefile("rb", _BUFFER_BYTES) as stream:
                line = stream.readline(MAX_ANSWER_BYTES)
        return json.loads(line)["answer"]
    except (OSError, ValueError, LookupError, TypeError):
        raise TelemetryUnavailableError from None
