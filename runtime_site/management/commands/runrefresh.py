"""`manage.py runrefresh`: the part that loads the data, and the only one that writes it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.loader import LoaderProcess
from datasets.refresher import MAX_LOADS
from datasets.service import DatasetService
from datasets.snapshots import SnapshotBuilder
from queryengine.client import EngineClient
from runtime_site.management.part import PartBase
from runtimeconf.model import RuntimeConfig

#: Seconds between two looks at what a signal has set, should it have come to another thread.
_LOOK_S = 1.0

#: How much loads give way to answering callers, in the system's unit; more than statements do.
_NICENESS = 10


class Command(PartBase):
    """Load the datasets, keep them fresh, and answer for them on the control socket."""

    help = "Runs the part of the runtime that loads data. `serve` starts it; by hand it needs the YAML."
    part = "refresh"

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """Hold the state directory until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            # Until everything has begun there is nothing to end in order.
            signal.signal(number, lambda *_: sys.exit(0))
        # No text of a caller is parsed in this process: it has the data's sources, and must outlive every statement.
        engine = EngineClient(config)
        # Nor is one run here: what loads are processes that may be killed. The first starts while the data is verified,
        # each other one when it has something to do.
        loaders = [LoaderProcess(SnapshotBuilder.of(config)) for _ in range(MAX_LOADS)]
        loaders[0].start()
        service = DatasetService(config, exclusive=True, judge=engine, builders=loaders)
        service.start()
        if "verified" in extra:
            os.eventfd_write(extra["verified"], 1)
        _give_way()
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        while not stop.wait(_LOOK_S):
            pass
        service.stop(config.shutdown_timeout_s)
        for loader in loaders:
            loader.close()
        engine.close()


def _give_way() -> None:
    """Let others have the processors first. What is to be done at once, the start, is done."""
    # The system knows niceness by thread; what these start inherits it.
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICENESS)
