"""Logs warnings and uncaught exceptions, which Python would print to standard error in its own format."""

import logging.config
import sys
import threading
import warnings
from types import TracebackType
from typing import TextIO

from runtime_site.chosen_settings import is_ours, logging_settings
from runtime_site.logs import skip_unused_values
from supervisor.part_process import hide_packages

logger = logging.getLogger(__name__)

#: Packages that REST framework and Django import if installed, for pages that we do not have. They take 8 MB.
_UNUSED_BY_WEB = ("docutils", "pygments", "requests", "yaml")


def begin_logging() -> None:
    """Set up logging as Django would, for a process without Django's apps, and `capture`."""
    if chosen := logging_settings():  # A user's own settings may have no logging.
        logging.config.dictConfig(chosen)
    capture()


def begin_with_apps() -> None:
    """Set up Django's apps and logging, and `capture`, for the web process."""
    import django  # noqa: PLC0415 (most processes of a runtime do not need it)

    if is_ours():  # A user's own apps may need them.
        hide_packages(_UNUSED_BY_WEB)
    django.setup()
    capture()


def capture() -> None:
    """Log Python's warnings and uncaught exceptions in this process and its forks."""
    skip_unused_values()
    warnings.showwarning = _warn  # type: ignore[assignment]  # `warnings` passes no keywords
    sys.excepthook = _log
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_of_thread


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    _file: TextIO | None = None,
    _line: str | None = None,
) -> None:
    fields = {"category": category.__name__, "warning": str(message), "file": filename, "line": lineno}
    logger.warning("Python warns", extra={"fields": fields})


def _log(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logger.critical("an exception ended the process", exc_info=(kind, error, traceback))


def _log_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        name = None if arguments.thread is None else arguments.thread.name
        error = (arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        logger.error("an exception ended a thread", exc_info=error, extra={"fields": {"thread": name}})


def _log_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
    if arguments.exc_value is not None:
        error = (arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        logger.error("an exception could not be raised", exc_info=error, extra={"fields": {"in": arguments.err_msg}})
