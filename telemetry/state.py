"""
Sends the events of this process, and queries the history.

`connect` is for the parts of a supervised runtime, `deliver_to` for a single process. Until one of them is called,
events are discarded.
"""

import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec.json

from telemetry.errors import TelemetryUnavailableError
from telemetry.events import Event, Question, encode
from telemetry.sender import WATCH_SOCKET, Sender, SocketLink

logger = logging.getLogger(__name__)

#: Seconds to wait for an answer.
TIMEOUT_S = 2.0

_BUFFER_BYTES = 256 * 1024

_sender: Sender | None = None
#: Answers a request with JSON types. Raises LookupError if there is no answer.
_answer: Callable[[Question], Any] | None = None


def connect(state_dir: Path, *, keeps_sql: bool = False, has_thread: bool = True) -> None:
    """
    Send the events of this process to the collector in *state_dir*.

    Args:
        state_dir: The state directory.
        keeps_sql: Whether statement events should contain the SQL text.
        has_thread: Whether a thread calls `flush`. Otherwise the process must call `flush` regularly.
    """
    global _sender, _answer  # noqa: PLW0603 (process-wide)
    if _sender is not None and has_thread and _sender.link is not None:
        _sender.keeps_sql = keeps_sql
        return
    disconnect()
    path = state_dir / WATCH_SOCKET
    _sender = Sender(SocketLink(path), keeps_sql=keeps_sql, has_thread=has_thread)
    _answer = partial(_ask_at, path)


def deliver_to(put: Callable[[Event], None], answer: Callable[[Question], Any], *, keeps_sql: bool = False) -> None:
    """Pass the events of this process to *put*, and its requests to *answer*. Both are methods of a `Memory`."""
    global _sender, _answer  # noqa: PLW0603 (process-wide)
    disconnect()
    _sender = Sender(put, keeps_sql=keeps_sql)
    _answer = answer


def disconnect() -> None:
    """Send sums and kept events, then stop sending."""
    flush()
    forget()


def forget() -> None:
    """Stop sending. In a newly forked process, this leaves kept events to the parent."""
    global _sender, _answer  # noqa: PLW0603 (process-wide)
    if _sender is not None:
        _sender.close()
    _sender = _answer = None


def send(event: Event) -> None:
    """Send *event*. Never waits and never raises."""
    if (sender := _sender) is not None:
        try:
            sender.send(event)
        except Exception:  # Reporting an event must never break the reported operation.
            logger.exception("an event could not be sent")


def is_on() -> bool:
    """Whether events go anywhere."""
    return _sender is not None


def keeps_sql() -> bool:
    """Whether statement events should contain the SQL text."""
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
    """Send sums and kept events. A process with `has_thread=False` calls this regularly."""
    if (sender := _sender) is not None:
        sender.flush()


def ask(question: Question) -> Any:
    """
    Return the answer to *question* as JSON types.

    Raises:
        TelemetryUnavailableError: The collector does not respond or keeps no history.
    """
    if (answer := _answer) is None:
        raise TelemetryUnavailableError
    try:
        return answer(question)
    except LookupError:
        raise TelemetryUnavailableError from None


def _ask_at(path: Path, question: Question) -> Any:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(encode(question))
            with connection.makefile("rb", _BUFFER_BYTES) as stream:
                return msgspec.json.decode(stream.read())
    except (OSError, msgspec.DecodeError):
        raise LookupError from None
