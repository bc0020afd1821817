"""
Sends the events of this process, and asks what is remembered.

`connect` is for the parts of a supervised runtime, `deliver_to` for a single process. Until one of them is called,
events are discarded.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from telemetry.errors import TelemetryUnavailableError
from telemetry.events import Event
from telemetry.questions import ask_at
from telemetry.sender import WATCH_SOCKET, Flusher, Sender, SocketLink

logger = logging.getLogger(__name__)

#: Answers a question about what is remembered, in JSON types. It raises LookupError for one that it does not know.
Answering = Callable[[Mapping[str, Any]], Any]

_sender: Sender | None = None
_flusher: Flusher | None = None
_link: SocketLink | None = None
_answering: Answering | None = None


def connect(state_dir: Path, *, keeps_sql: bool = False, has_thread: bool = True) -> None:
    """
    Send the events of this process to the collector in *state_dir*.

    Args:
        state_dir: The state directory.
        keeps_sql: Whether events of statements should hold their text.
        has_thread: Whether a thread calls `flush`. Otherwise the process must call it regularly.
    """
    global _sender, _flusher, _link, _answering  # noqa: PLW0603 (process-wide)
    if _link is not None and _sender is not None and has_thread:
        _sender.keeps_sql = keeps_sql
        return
    disconnect()
    path = state_dir / WATCH_SOCKET
    _link = SocketLink(path)
    _sender = Sender(_link.put, keeps_sql=keeps_sql)
    _answering = partial(ask_at, path)
    if has_thread:
        _flusher = Flusher(_sender.flush, _link.flush)


def deliver_to(take: Callable[[Event], None], answering: Answering, *, keeps_sql: bool = False) -> None:
    """Pass the events of this process to *take*, and its questions to *answering*, which do not raise."""
    global _sender, _flusher, _answering  # noqa: PLW0603 (process-wide)
    disconnect()
    _sender = Sender(take, keeps_sql=keeps_sql)
    _answering = answering
    _flusher = Flusher(_sender.flush)


def disconnect() -> None:
    """Send what was added up or kept, then stop sending."""
    flush()
    forget()


def forget() -> None:
    """Stop sending. In a process that was just forked, this leaves what was kept to its parent."""
    global _sender, _flusher, _link, _answering  # noqa: PLW0603 (process-wide)
    if _flusher is not None:
        _flusher.stop()
    if _link is not None:
        _link.close()
    _sender = _flusher = _link = _answering = None


def send(event: Event) -> None:
    """Send *event*. It never waits and never raises."""
    if (sender := _sender) is not None:
        try:
            sender.send(event)
        except Exception:  # A report must never break what it reports.
            logger.exception("an event could not be sent")


def is_on() -> bool:
    """Whether events go anywhere."""
    return _sender is not None


def keeps_sql() -> bool:
    """Whether events of statements should hold their text."""
    return _sender is not None and _sender.keeps_sql


def count_request(route: str, status: int, seconds: float) -> None:
    """Count an HTTP request that took *seconds*."""
    if (sender := _sender) is not None:
        sender.count_request(route, status, seconds)


def count_failure(reason: str) -> None:
    """Count a failed authentication."""
    if (sender := _sender) is not None:
        sender.count_failure(reason)


def flush() -> None:
    """Send what was added up or kept. A process with `has_thread=False` calls this regularly."""
    if (sender := _sender) is not None:
        sender.flush()
    if (link := _link) is not None:
        link.flush()


def ask(what: str, **fields: Any) -> Any:
    """
    Ask what is remembered.

    Raises:
        TelemetryUnavailableError: Nobody answers, or nobody remembers it.
    """
    if (answering := _answering) is None:
        raise TelemetryUnavailableError
    try:
        return answering({"what": what, **fields})
    except LookupError:
        raise TelemetryUnavailableError from None
