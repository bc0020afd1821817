"""`manage.py runengine`: the part that runs statements, in workers that may be killed at any moment."""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Any

from datasources.errors import DatasetError
from datasources.refresh.remote import RemoteDatasets
from queryengine.pool import arbiter
from runtime_site.management.part import PartBase
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

_POLL_S = 0.1


class Command(PartBase):
    """Wait until what is published has been verified, and run statements until SIGTERM."""

    help = "Runs the part of the runtime that runs statements. `serve` starts it; by hand it needs the YAML."
    part = "engine"

    def serve(self, config: RuntimeConfig, extra: dict[str, Any]) -> None:
        """Run the arbiter and its workers; it ends the process."""
        if "verified" in extra:
            # Raised once for all engines that this supervisor starts: it is looked at and left as it is.
            select.select([extra["verified"]], [], [])
            os.close(extra["verified"])
        else:
            _wait_for_refresh(config)
        arbiter.run_engine(config, several_keys=extra["several_keys"])


def _wait_for_refresh(config: RuntimeConfig) -> None:
    """Return as soon as the part that loads data answers: then it has verified what is published."""
    refresh = RemoteDatasets(config)
    said = False
    while True:
        try:
            refresh.datasets()
        except DatasetError:
            if not said:
                logger.info("Waiting for runrefresh, which verifies the data")
            said = True
            time.sleep(_POLL_S)
        else:
            return
