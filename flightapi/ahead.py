"""
Answers that came with a description, and wait for the call that asks for them.

A client asks GetFlightInfo, which has to know the schema of the answer, and then DoGet for the rows. For a short
statement the engine has as much to do for the first as for the second, so it is run then, and its answer is handed
over: once, to the key that asked, for the statement and parameters of its ticket, over the data that was published
then. Nobody has to come for it: an answer that is forgotten is computed anew.

A statement is run ahead for a moment only. That is in vain for a long one, so what was in vain is remembered, by the
statement's shape: its text without its numbers and quoted texts.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from queryengine.catalog import Signature, manifest_path, signature
from queryengine.engine import Answer, ArrowParameters

#: Seconds for which a statement is run ahead.
AHEAD_S = 0.02

#: Seconds for which an answer waits, and for which a shape is not tried again.
WAITING_S = 5.0
IN_VAIN_S = 60.0

#: All that waits takes so much memory at most.
MAX_BYTES = 16 * 1024 * 1024

#: The longest text that is run ahead, in characters, and how many shapes are remembered.
MAX_CHARACTERS = 10_000
MAX_SHAPES = 1_000

#: What an entry takes besides its bytes, roughly.
_ENTRY_BYTES = 1024

_LITERAL = re.compile(r"'[^']*'|[0-9]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be run for whom: the key's fingerprint, the id of the ticket, the statement and its parameters."""

    fingerprint: str
    ticket_id: bytes
    sql: str
    parameters: ArrowParameters | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    answer: Answer
    published: Signature
    since: float
    size: int


class AnswersAhead:
    """The answers that wait, over the data that *state_dir* publishes. Safe from any thread."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Asked, _Waiting] = OrderedDict()  # oldest first
        self._bytes = 0
        self._in_vain: OrderedDict[int, float] = OrderedDict()  # by the hash of a shape, oldest first

    def published(self) -> Signature:
        """Say what is published now: to be asked before the statement is run."""
        return signature(self._manifest)

    def limit_s(self, sql: str) -> float:
        """Return for how long *sql* is to be run ahead; 0.0 for not at all."""
        if len(sql) > MAX_CHARACTERS:
            return 0.0
        shape = _shape(sql)
        with self._lock:
            since = self._in_vain.get(shape)
            if since is None:
                return AHEAD_S
            if self._clock() < since + IN_VAIN_S:
                return 0.0
            del self._in_vain[shape]
        return AHEAD_S

    def was_in_vain(self, sql: str) -> None:
        """Do not have statements of the shape of *sql* run ahead for some time."""
        with self._lock:
            self._in_vain[_shape(sql)] = self._clock()
            if len(self._in_vain) > MAX_SHAPES:
                self._in_vain.popitem(last=False)

    def keep(self, asked: Asked, answer: Answer, published: Signature) -> None:
        """Let *answer*, over what was *published*, wait for who asks for it. For room the oldest ones go."""
        size = _ENTRY_BYTES + sys.getsizeof(asked.sql) + sum(map(len, answer.chunks))
        if asked.parameters is not None:
            size += len(asked.parameters.stream)
        with self._lock:
            self._waiting[asked] = _Waiting(answer, published, self._clock(), size)
            self._bytes += size
            while self._bytes > MAX_BYTES:
                self._forget(next(iter(self._waiting)))

    def take(self, asked: Asked) -> Answer | None:
        """Return the answer that waits, once; None when there is none, or other data is published by now."""
        with self._lock:
            found = self._forget(asked)
        if found is None or self._clock() >= found.since + WAITING_S or found.published != self.published():
            return None
        return found.answer

    def expire(self) -> None:
        """Forget what nobody came for."""
        before = self._clock() - WAITING_S
        with self._lock:
            while self._waiting and next(iter(self._waiting.values())).since <= before:
                self._forget(next(iter(self._waiting)))

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting)

    def _forget(self, asked: Asked) -> _Waiting | None:
        found = self._waiting.pop(asked, None)
        if found is not None:
            self._bytes -= found.size
        return found


def _shape(sql: str) -> int:
    return hash(_LITERAL.sub("0", sql))
