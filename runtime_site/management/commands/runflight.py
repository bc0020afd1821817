"""`manage.py runflight`: the part that speaks Arrow Flight SQL. It holds no data and no engine."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import authkeys.state
from flightapi.server import FlightServer
from queryengine.pool.client import EngineClient
from runtime_site.management.part import PartBase
from runtimeconf.model import RuntimeConfig
from system.descriptors import raise_soft_limit
from system.errors import StateDirectoryError
from system.lock import FLIGHT_LOCK_NAME, PREDECESSOR_WAIT_S, StateLock
from system.ports import wait_until_bindable
from system.process_limits import give_memory_back

logger = logging.getLogger(__name__)

#: Seconds between two looks at what a signal has set, should it have come to another thread, and at the lock.
_LOOK_S = 1.0
#: Seconds before the end of the stop at which what still runs is cancelled, with an error that says why.
_CANCEL_MARGIN_S = 2.0


class Command(PartBase):
    """Serve Arrow Flight SQL until SIGTERM, with the engine of another part."""

    help = "Runs the part of the runtime that speaks Arrow Flight SQL. `serve` starts it; by hand it needs the YAML."
    part = "flight"

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """Serve until SIGTERM or SIGINT, then finish what has begun."""
        if not config.flight.enabled:
            raise OSError("runtime.flight is not enabled.")
        deadline = time.monotonic() + PREDECESSOR_WAIT_S
        wait_until_bindable(config.flight.bind, "runtime.flight.bind", deadline)
        raise_soft_limit()
        engine = EngineClient(config)
        server = FlightServer(config, engine, authkeys.state.ensure_built())
        # Others see by it that Flight SQL is served.
        serves = StateLock(config.state_dir, FLIGHT_LOCK_NAME)
        if not serves.acquire(max(0.0, deadline - time.monotonic())):
            raise StateDirectoryError(f"Flight SQL of this state directory is served by {serves.holder()} already.")
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        server.start()
        give_memory_back()
        while not stop.wait(_LOOK_S):
            serves.keep()
        serves.release()
        _end(server, engine, config.shutdown_timeout_s)


def _end(server: FlightServer, engine: EngineClient, limit_s: float) -> None:
    """Let calls under way end in *limit_s* seconds, those that do not with an error that says why."""
    in_peace_s = max(limit_s - _CANCEL_MARGIN_S, limit_s / 2)
    server.begin_stop(limit_s)
    if not server.has_stopped(in_peace_s):
        logger.warning("statements over Flight SQL were cut off: they did not end in %g s", in_peace_s)
        engine.close()
        server.has_stopped(limit_s - in_peace_s)
    server.close()
    engine.close()
