"""The flight process, which serves Arrow Flight SQL. It has neither data nor an engine."""

import logging
import time
from functools import partial
from typing import Any

import authkeys.state
import queryengine.state
import runtimeconf.state
import telemetry.state
from flightapi.server import FlightServer
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig
from supervisor import tracing
from supervisor.hot_reload import Follower, Serving, tell
from supervisor.part_process import StopSignal, heartbeat
from system.addresses import wait_until_bindable
from system.errors import StateDirectoryError
from system.lock import FLIGHT_LOCK_NAME, PREDECESSOR_WAIT_S, StateLock
from system.process_limits import give_memory_back, raise_soft_limit

logger = logging.getLogger(__name__)

#: Seconds between checks of the lock and checks for a stop, in case another thread received the signal.
_POLL_S = 1.0
#: Calls still running this many seconds before the shutdown timeout ends are cancelled with a typed error.
_CANCEL_MARGIN_S = 2.0


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Serve Arrow Flight SQL until SIGTERM, with the engine of another process. Then finish the calls in progress."""
    if not config.flight.enabled:
        raise OSError("runtime.flight is not enabled.")
    deadline = time.monotonic() + PREDECESSOR_WAIT_S
    wait_until_bindable(config.flight.bind, "runtime.flight.bind", deadline)
    raise_soft_limit()
    tracing.connect(config, extra)
    serving = Serving(config, authkeys.state.ensure_built())
    queryengine.state.set_engine(serving.client)
    server = FlightServer(config, serving.client, serving.who)
    tell(config)
    live = handover.live()
    if live is not None:
        server.before_call(Follower(live, serving, extra["reports"], adopt=partial(_adopt, server)).check)
    # The lock shows other processes that Flight SQL is served.
    serves = StateLock(config.state_dir, FLIGHT_LOCK_NAME)
    if not serves.acquire(max(0.0, deadline - time.monotonic())):
        raise StateDirectoryError(f"Flight SQL for this state directory is already served by {serves.holder()}.")
    stop = StopSignal()
    server.start()
    server.each_tick(heartbeat(extra))
    give_memory_back()
    while not stop.wait(_POLL_S):
        serves.keep()
    serves.release()
    _end(server, runtimeconf.state.get_config().shutdown_timeout_s)


def _adopt(server: FlightServer, serving: Serving) -> None:
    runtimeconf.state.set_config(serving.config)
    queryengine.state.set_engine(serving.client)
    server.adopt(serving.config, serving.client, serving.who)
    tell(serving.config)


def _end(server: FlightServer, limit_s: float) -> None:
    """Give the calls in progress *limit_s* seconds to finish, then cancel the remaining calls with a typed error."""
    grace_s = max(limit_s - _CANCEL_MARGIN_S, limit_s / 2)
    server.begin_stop(limit_s)
    if not server.has_stopped(grace_s):
        logger.warning("statements over Flight SQL were cut off because they did not finish within %g s", grace_s)
        queryengine.state.cancel_statements()
        server.has_stopped(limit_s - grace_s)
    server.close()
    queryengine.state.cancel_statements()
    telemetry.state.disconnect()
