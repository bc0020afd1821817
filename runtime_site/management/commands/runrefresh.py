"""`manage.py runrefresh`: the part that loads the data, and the only one that writes it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from datasources.errors import UnknownDatasetError
from datasources.refresh.loader import LoaderProcess
from datasources.refresh.refresher import MAX_LOADS
from datasources.refresh.service import DatasetService, load_once
from datasources.snapshots.snapshot import SnapshotBuilder
from queryengine.pool.client import EngineClient
from runtime_site.management.part import PartBase
from runtimeconf.model import RuntimeConfig
from system.process_limits import give_memory_back

#: Seconds between two looks at what a signal has set, should it have come to another thread.
_LOOK_S = 1.0

#: The exit code of a load that a signal broke off is this and the number of the signal, as in shells.
_SIGNALLED = 128

#: How much loads give way to answering callers, in the system's unit; more than statements do.
_NICENESS = 10


class Command(PartBase):
    """Load the datasets, keep them fresh, and answer for them on the control socket."""

    help = "Runs the part of the runtime that loads data. `serve` starts it; by hand it needs the YAML."
    part = "refresh"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--once",
            nargs="*",
            metavar="DATASET",
            help="load these datasets, or without any all whose sources have changed, print what came of it, and end",
        )

    def handed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what is to be loaded once."""
        return {} if options["once"] is None else {"once": options["once"]}

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """Hold the state directory until SIGTERM or SIGINT, or until what was to be loaded once is."""
        if "once" in extra:
            self._load_once(config, extra["once"])
            return
        # No text of a caller is parsed in this process: it has the data's sources, and must outlive every statement.
        engine = EngineClient(config)
        # Nor is one run here: what loads are processes that may be killed. The first starts while the data is verified,
        # each other one when it has something to do.
        # One that has nothing to do for a while ends.
        loaders = [LoaderProcess(SnapshotBuilder.of(config)) for _ in range(MAX_LOADS)]
        loaders[0].start()
        service = DatasetService(config, exclusive=True, judge=engine, builders=loaders)
        service.start()
        if "verified" in extra:
            os.eventfd_write(extra["verified"], 1)
        _give_way()
        give_memory_back()
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        while not stop.wait(_LOOK_S):
            pass
        service.stop(config.shutdown_timeout_s)
        for loader in loaders:
            loader.close()
        engine.close()

    def _load_once(self, config: RuntimeConfig, names: list[str]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: sys.exit(_SIGNALLED + number))
        engine = EngineClient(config)
        loaders = [LoaderProcess(SnapshotBuilder.of(config)) for _ in range(MAX_LOADS)]
        _give_way()
        try:
            outcome = load_once(config, names, engine, loaders)
        except UnknownDatasetError as error:
            raise CommandError(str(error), returncode=2) from error
        finally:
            for loader in loaders:
                loader.close()
            engine.close()
        for name, run in outcome:
            if run.error is not None:
                self.stderr.write(f"{name}: failed: {run.error}")
            else:
                took = "unchanged" if run.unchanged else f"loaded in {(run.duration_ms or 0) / 1000:.1f} s"
                self.stdout.write(f"{name}: {took}, {run.rows} rows")
        if any(run.error is not None for _, run in outcome):
            sys.exit(1)


def _give_way() -> None:
    """Let others have the processors first. What is to be done at once, the start, is done."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS  # the system takes what is beyond its range for 19
    # The system knows niceness by thread; what these start inherits it.
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
