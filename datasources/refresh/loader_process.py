"""
The program of the process that loads: `python -m datasources.refresh.loader_process DESCRIPTOR PARENT`.

It reads the requests of `datasources.refresh.loader` from its connection, builds one snapshot after the other, and
ends when its connection does. Its parent decides when it ends: it ignores every signal that can be ignored.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

from datasources.deadline import Deadline
from datasources.errors import SnapshotError, SourceError
from datasources.loading.loading_engine import TOO_LARGE
from datasources.refresh import error_codec
from datasources.snapshots.snapshot import Order, SnapshotBuilder, Verifier
from datasources.sources.registry import import_source
from queryengine.pool.frames import FrameDecoder, Kind, decode_json, encode_json
from runtimeconf import handover
from runtimeconf.connectors import CONNECTORS
from runtimeconf.model import MIB
from system import process_limits
from system.parent_death import die_with_parent

#: How much loads give way to answering callers, in the system's unit; more than statements do.
NICENESS = 10

#: What a load may use beyond what the process uses idle, in parts of `memory_limit`: DuckDB keeps its buffers below
#: that limit, the rest is for what it does not count.
MEMORY_PARTS = 1.25
#: And this much for what each load takes however little it may use: an instance, stacks of threads, and what the
#: allocator keeps mapped (about a hundred, most of it never touched), and for what DuckDB holds for each column while
#: it reads and writes: a Parquet file of 300 columns took 255 MiB beyond a limit of 384.
SPARE_BYTES = 192 * MIB

#: A process that keeps so much more than it used idle is replaced.
_WORN_BYTES = 64 * MIB

#: What a load leaves free of the disk with the state directory: so much of it, in parts, and at most so many bytes.
_FREE_PART = 20
_FREE_BYTES = 1024 * MIB

_RECEIVE_BYTES = 64 * 1024

#: What libraries of sources take from the environment when they are first used. The allocator that pyarrow brings
#: reserves a gibibyte; Rust starts a thread with a stack for each CPU.
_FOR_LIBRARIES = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "TOKIO_WORKER_THREADS": "1",
}


class _Said(logging.Handler):
    """Keeps what a load has to say, for the log of the parent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the level and the text."""
        self._records.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """Return what was said since the last call."""
        said, self._records = self._records, []
        return said


def main(descriptor: int, parent: int) -> None:
    """Serve the connection *descriptor* of the process *parent* until it is closed."""
    die_with_parent(parent)
    os.environ.update(_FOR_LIBRARIES)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # How large a snapshot may be depends on the disk, and is said for each load.
    is_nice = os.getpriority(os.PRIO_PROCESS, 0)
    process_limits.confine(file_bytes=None, niceness=max(0, NICENESS - is_nice))
    said = _Said()
    logging.getLogger().addHandler(said)
    memory = process_limits.Memory()
    base = memory.use().resident
    decoder = FrameDecoder()
    verifier: Verifier | None = None
    with socket.socket(fileno=descriptor) as connection:
        while data := connection.recv(_RECEIVE_BYTES):
            for _, payload in decoder.feed(data):
                request = decode_json(payload)
                # A library takes memory once, which is not that of the load, nor a reason to replace the process.
                if import_source(request["order"]["dataset"]["connector"]):
                    base = memory.use().resident
                allowance = int(MEMORY_PARTS * request["builder"]["memory_limit_bytes"])
                memory.limit(allowance + SPARE_BYTES)
                builder: SnapshotBuilder = handover.rebuilt(SnapshotBuilder, request["builder"])
                verifier = verifier or Verifier(builder.state_dir)
                answer = _loaded(request, builder, verifier)
                answer["log"] = said.take()
                _hide_secrets(answer, request["order"]["dataset"])
                process_limits.give_memory_back()
                answer["worn_out"] = answer.get("is_broken", False) or memory.use().resident > base + _WORN_BYTES
                connection.sendall(encode_json(Kind.END, answer))


def _loaded(request: dict[str, Any], builder: SnapshotBuilder, verifier: Verifier) -> dict[str, Any]:
    """Build what *request* asks for, and return the answer."""
    try:
        order: Order = handover.rebuilt(Order, request["order"])
        # Stopping is the business of the parent, which does not wait for this process then.
        deadline = Deadline(request["limit_s"], threading.Event(), left_s=request["left_s"])
        with process_limits.limited_files(_room(builder.state_dir)):
            return {"snapshot": handover.plain(builder.carry_out(order, deadline, verifier))}
    except (SourceError, SnapshotError) as exc:
        return {"error": error_codec.encode(exc), "is_broken": isinstance(exc, SourceError) and exc.broke_library}
    except MemoryError:
        return {"error": error_codec.encode(SnapshotError(TOO_LARGE))}
    except Exception:  # noqa: BLE001 (the parent logs it)
        return {"fault": traceback.format_exc(), "is_broken": True}


def _room(directory: Path) -> int:
    """Return how many bytes a file in *directory* may have that leaves something of the disk to others."""
    disk = shutil.disk_usage(directory)
    if disk.total == 0:  # as some file systems of a network say
        return sys.maxsize
    return max(0, disk.free - min(_FREE_BYTES, disk.total // _FREE_PART))


def _hide_secrets(answer: dict[str, Any], dataset: dict[str, Any]) -> None:
    """Take the secrets of *dataset* out of what *answer* says: some of it are words of libraries, for the log."""
    names = {param.name for param in CONNECTORS[dataset["connector"]].params if param.is_secret}
    secrets = [value for name, value in dataset["params"].items() if name in names]

    def hidden(text: str) -> str:
        for secret in secrets:
            for form in (secret, quote(secret, safe="")):
                text = text.replace(form, "<secret>")
        return text

    answer["log"] = [(level, hidden(text)) for level, text in answer["log"]]
    if "fault" in answer:
        answer["fault"] = hidden(answer["fault"])
    if "error" in answer:
        answer["error"]["message"] = hidden(answer["error"]["message"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
