"""The engine process, which runs statements in workers that can be killed at any time."""

import logging
import os
import select
import time
from typing import Any

from datasources.errors import DatasetError
from datasources.refresh.control_socket import ControlClient
from queryengine.pool import arbiter
from runtimeconf.model import RuntimeConfig
from supervisor.part_process import heartbeat

logger = logging.getLogger(__name__)

_POLL_S = 0.1
#: Seconds between two heartbeats while the engine waits for the data.
_BEAT_S = 1.0


def serve(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    """Wait until the published data has been verified, then run the arbiter and its workers until SIGTERM."""
    beat = heartbeat(extra)
    if "verified" in extra:
        # Raised once for every engine that this supervisor starts, so it is not reset.
        while not select.select([extra["verified"]], [], [], _BEAT_S)[0]:
            beat()
        os.close(extra["verified"])
    else:
        _wait_for_refresh(config)
    arbiter.run_engine(config, several_keys=extra["several_keys"], beat=beat)


def _wait_for_refresh(config: RuntimeConfig) -> None:
    """Wait until the refresh process responds, which means that it has verified the published data."""
    refresh = ControlClient(config.state_dir)
    is_logged = False
    while True:
        try:
            refresh.datasets()
        except DatasetError:
            if not is_logged:
                logger.info("Waiting for runrefresh, which verifies the data")
            is_logged = True
            time.sleep(_POLL_S)
        else:
            return
