"""The log of gunicorn, which runs the web server and the engine workers."""

import logging
from typing import Any

from gunicorn.glogging import Logger


class ServerLogger(Logger):
    """gunicorn's own log, written through the handlers of this project. sqlapi writes the access log."""

    access_log_enabled = False

    def setup(self, cfg: Any) -> None:
        """Leave handlers and formats to Django's LOGGING."""
        self.cfg = cfg
        self.loglevel = self.LOG_LEVELS.get(cfg.loglevel.lower(), logging.INFO)
        # At INFO gunicorn logs details that no operator needs: worker numbers, names of signals.
        self.error_log.setLevel(max(self.loglevel, logging.WARNING))
        self.error_log.propagate = True
