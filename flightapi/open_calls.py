"""
Limits the number of open calls so that no key can lock out the others.

A call that waits for its client costs the client nothing: the client may never send its message, send it byte by byte,
or never read the response. Such calls therefore make room for others. Once the limit is reached, a new call ends a
waiting call of the key with the most calls. That is the oldest silent call, or else the call whose client has not read
for the longest time. At most `MAX_SILENT_OF_KEY` calls of one key may wait for a message. If there are more, the oldest
are ended.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from flightapi.errors import CallsBusyError

#: The number of calls of one key that may wait for a message for longer than `PATIENCE_S`.
MAX_SILENT_OF_KEY = 32

#: Seconds within which a well-behaved client sends its message, even on a busy machine. It sends it with the call.
PATIENCE_S = 1.0


class OpenCall(Protocol):
    """The part of a call that decides whether it can be ended. `key` is the caller's fingerprint."""

    began: float
    waits_for: Literal["", "message", "reader"]
    waits_since: float

    @property
    def key(self) -> str:
        """The caller's fingerprint."""

    def end(self) -> None:
        """End the call because its client is silent."""


class OpenCalls:
    """The calls of all keys, at most *max_calls*. Thread-safe."""

    def __init__(self, max_calls: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_calls = max_calls
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._of_keys: dict[str, dict[OpenCall, None]] = {}  # oldest first

    @contextmanager
    def enter(self, call: OpenCall) -> Iterator[None]:
        """
        Count *call* as open during the block, which may end a call that waits for its client.

        Raises:
            CallsBusyError: The limit is reached, and no open call can be ended to make room for this one.
        """
        victim = None
        with self._lock:
            if self._count >= self._max_calls:
                victim = self._one_to_end(call.key)
                if victim is None:
                    raise CallsBusyError
                self._remove(victim)
            self._of_keys.setdefault(call.key, {})[call] = None
            self._count += 1
        if victim is not None:
            victim.end()
        try:
            yield
        finally:
            with self._lock:
                self._remove(call)

    def trim(self) -> None:
        """End the oldest silent calls of each key that has too many. Call this periodically."""
        before = self._clock() - PATIENCE_S
        with self._lock:
            victims = []
            for of_key in self._of_keys.values():
                silent = [call for call in of_key if _is_silent(call) and call.began <= before]
                victims += silent[: max(0, len(silent) - MAX_SILENT_OF_KEY)]
            for victim in victims:
                self._remove(victim)
        for victim in victims:
            victim.end()

    def __len__(self) -> int:
        return self._count

    def _remove(self, call: OpenCall) -> None:
        of_key = self._of_keys.get(call.key, {})
        if call in of_key:
            del of_key[call]
            self._count -= 1
            if not of_key:
                del self._of_keys[call.key]

    def _one_to_end(self, key: str) -> OpenCall | None:
        """Return the call to end when *key* needs another one. Prefer a call of the key with the most calls."""
        by_number = sorted(self._of_keys, key=lambda one: len(self._of_keys[one]), reverse=True)
        own = len(self._of_keys.get(key, ()))
        heavy = [one for one in by_number if one == key or len(self._of_keys[one]) > own + 1]
        for one in heavy:
            if silent := next(filter(_is_silent, self._of_keys[one]), None):
                return silent
        before = self._clock() - PATIENCE_S
        for one in by_number:
            for call in self._of_keys[one]:
                if _is_silent(call) and call.began <= before:
                    return call
        for one in heavy:
            unread = [call for call in self._of_keys[one] if call.waits_for == "reader"]
            if unread and one != key:
                return min(unread, key=lambda call: call.waits_since)
        return None


def _is_silent(call: OpenCall) -> bool:
    return call.waits_for == "message"
