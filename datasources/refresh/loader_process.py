"""
The program of the loader process: `python -m datasources.refresh.loader_process DESCRIPTOR PARENT`.

The process reads requests from `datasources.refresh.loader` on its connection, builds one snapshot after another, and
exits when the connection is closed. It ignores signals, because its parent decides when it exits.
"""

import errno
import json
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import traceback
from contextlib import suppress
from logging.handlers import BufferingHandler
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from datasources.deadline import Deadline
from datasources.errors import SnapshotError, SourceError, error_fields
from datasources.loading.loading_engine import TOO_LARGE
from datasources.snapshots.snapshot import Order, SnapshotBuilder
from datasources.sources.registry import import_source
from runtimeconf import handover
from runtimeconf.connector import texts_in
from runtimeconf.model import MIB
from runtimeconf.plugins import secret_params
from system import process_limits, teardown
from system.process_limits import die_with_parent

#: The nice value of loads. It is higher than that of statements, so statements get the CPU first.
NICENESS = 10

#: The memory limit of a load beyond the idle process's memory, as a multiple of `memory_limit`. DuckDB keeps its
#: buffers below `memory_limit`. The rest is for memory that DuckDB does not count.
MEMORY_PARTS = 1.25
#: An additional allowance for the fixed cost of a load: an instance, thread stacks, allocator mappings (about 100 MiB,
#: mostly never touched), and DuckDB's memory per column while it reads and writes. A Parquet file with 300 columns took
#: 255 MiB beyond a limit of 384 MiB.
SPARE_BYTES = 192 * MIB

#: A process that keeps this much more memory than the idle process is replaced.
_WORN_BYTES = 64 * MIB

#: The disk space that a load leaves free: 1 / this of the disk, but at most this many bytes.
_FREE_PART = 20
_FREE_BYTES = 1024 * MIB

#: Environment variables for client libraries. pyarrow's default allocator reserves a gibibyte, and Rust starts a thread
#: with a stack for each CPU.
_FOR_LIBRARIES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "TOKIO_WORKER_THREADS": "1"}


def main(descriptor: int, parent: int) -> None:
    """Serve the connection *descriptor* from the process *parent* until it is closed."""
    die_with_parent(parent)
    teardown.skip_teardown()
    os.environ.update(_FOR_LIBRARIES)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The maximum snapshot size depends on the disk, and is set for each load.
    is_nice = os.getpriority(os.PRIO_PROCESS, 0)
    process_limits.confine(file_bytes=None, niceness=max(0, NICENESS - is_nice))
    records = BufferingHandler(sys.maxsize)
    records.setLevel(logging.WARNING)
    logging.getLogger().addHandler(records)
    memory = process_limits.Memory()
    base = memory.use().resident
    builder: SnapshotBuilder | None = None
    connection: Connection[bytes, dict[str, Any]] = Connection(descriptor)
    with connection, suppress(EOFError, ConnectionError):
        while True:
            request = json.loads(connection.recv_bytes())
            # Importing a library uses memory once. This memory counts as part of the idle process.
            if import_source(request["order"]["dataset"]["connector"]):
                base = memory.use().resident
            memory.limit(int(MEMORY_PARTS * request["builder"]["memory_limit_bytes"]) + SPARE_BYTES)
            builder = builder or handover.rebuilt(SnapshotBuilder, request["builder"])
            answer = _loaded(request, builder)
            answer["phases"] = builder.phases
            answer["log"] = [(record.levelno, record.getMessage()) for record in records.buffer]
            records.flush()
            _hide_secrets(answer, request["order"]["dataset"])
            process_limits.give_memory_back()
            answer["worn_out"] = answer.get("is_broken", False) or memory.use().resident > base + _WORN_BYTES
            connection.send_bytes(json.dumps(answer).encode())
    teardown.exit_with(0)


def _loaded(request: dict[str, Any], builder: SnapshotBuilder) -> dict[str, Any]:
    """Build the snapshot in *request*, and return the response."""
    try:
        order: Order = handover.rebuilt(Order, request["order"])
        # The event is never set because the parent kills this process when the runtime stops.
        deadline = Deadline(request["limit_s"], threading.Event(), left_s=request["left_s"])
        disk = Disk.of(builder.state_dir)
        with process_limits.limited_files(disk.room_bytes):
            try:
                return {"snapshot": handover.plain(builder.build(order, deadline))}
            except SnapshotError as exc:
                raise disk.explained(exc) from exc
    except (SourceError, SnapshotError) as exc:
        return {"error": error_fields(exc), "is_broken": isinstance(exc, SourceError) and exc.broke_library}
    except MemoryError:
        return {"error": error_fields(SnapshotError(TOO_LARGE))}
    except Exception:  # noqa: BLE001 (the parent logs it)
        return {"fault": traceback.format_exc(), "is_broken": True}


class Disk(Struct, frozen=True):
    """The disk that a load writes to: the bytes free when the load begins, and the bytes that it must leave free."""

    free_bytes: int
    kept_bytes: int

    @classmethod
    def of(cls, directory: Path) -> "Disk":
        """Return the disk of *directory*."""
        disk = shutil.disk_usage(directory)
        if disk.total == 0:  # some network file systems
            return cls(sys.maxsize, 0)
        return cls(disk.free, min(_FREE_BYTES, disk.total // _FREE_PART))

    @property
    def room_bytes(self) -> int:
        """The maximum size of a file that a load may write."""
        return max(0, self.free_bytes - self.kept_bytes)

    def explained(self, error: SnapshotError) -> SnapshotError:
        """Return *error*. If a file exceeded `room_bytes`, the message explains that the disk is too full."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        too_large, said = os.strerror(errno.EFBIG), str(error)
        if too_large not in said or (hard != resource.RLIM_INFINITY and hard < self.room_bytes):
            return error
        free, kept = (f"{count / MIB:,.0f} MiB" for count in (self.free_bytes, self.kept_bytes))
        reason = f"the disk is too full. {free} was free when the load began, and {kept} is reserved"
        return SnapshotError(said.replace(too_large, reason))


def _hide_secrets(answer: dict[str, Any], dataset: dict[str, Any]) -> None:
    """Remove the secrets of *dataset* from *answer*, which may quote library messages for the log."""
    names = secret_params(dataset["connector"])
    secrets = [text for name, value in dataset["params"].items() if name in names for text in texts_in(value)]

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
