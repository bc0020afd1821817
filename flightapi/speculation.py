"""
Answers that came with a description, and wait for the call that asks for them.

A client asks GetFlightInfo, which has to know the schema of the answer, and then DoGet for the rows. For a short
statement the engine has as much to do for the first as for the second, so it is run then, and its answer is handed
over: once, to the key that asked, for the statement and parameters of its ticket, over the data that was published
then. Nobody has to come for it: an answer that is forgotten is computed anew.

Some clients prepare a statement for each execution. One whose answer follows from the data alone is run then: its
answer waits for the handle, and from GetFlightInfo on for the ticket.

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

from queryengine.engine import Answer, ArrowParameters, Description, Parameters
from queryengine.manifest import Signature, manifest_path, signature

#: Seconds for which a statement is run ahead.
AHEAD_S = 0.02

#: Seconds for which an answer waits, and for which a shape is not tried again. That is not long: a short statement may
#: just have had to wait for a processor.
WAITING_S = 5.0
IN_VAIN_S = 5.0

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
    """
    What is to be run for whom: the key's fingerprint, the statement and its parameters.

    `name` is the ticket's id or the handle with which somebody will come for the answer, b"" when nobody will.
    """

    fingerprint: str
    name: bytes
    sql: str
    parameters: ArrowParameters | None = None

    @property
    def given(self) -> Parameters:
        """The parameters for an engine: without any, that there are none."""
        return () if self.parameters is None else self.parameters


@dataclass(frozen=True, slots=True)
class _Waiting:
    description: Description
    published: Signature
    since: float
    size: int


class AnswersAhead:
    """The answers that wait, over the data that *state_dir* publishes. Safe from any thread."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Asked, _Waiting] = OrderedDict()  # the longest known first
        self._bytes = 0
        self._in_vain: OrderedDict[int, float] = OrderedDict()  # by the hash of a shape, oldest first

    def published(self) -> Signature:
        """Say what is published now; whoever has an answer to keep has asked before its statement ran."""
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

    def keep(self, asked: Asked, found: Description, published: Signature) -> None:
        """Let the answer in *found*, over what was *published*, wait for who asks for it. For room the oldest go."""
        if found.answer is None:
            return
        size = _ENTRY_BYTES + sys.getsizeof(asked.sql) + len(found.schema or b"") + sum(map(len, found.answer.chunks))
        if asked.parameters is not None:
            size += len(asked.parameters.stream)
        with self._lock:
            self._put(asked, _Waiting(found, published, self._clock(), size))

    def pass_on(self, former: Asked, asked: Asked) -> Description | None:
        """Let what waits for *former* wait for *asked*, and return it; None as for `take`."""
        with self._lock:
            found = self._forget(former)
            if found is None or not self._is_good(found, self.published()):
                return None
            self._put(asked, found)
            return found.description

    def take(self, asked: Asked) -> Answer | None:
        """Return the answer that waits, once; None when there is none, or other data is published by now."""
        with self._lock:
            found = self._forget(asked)
        return found.description.answer if found is not None and self._is_good(found, self.published()) else None

    def expire(self) -> None:
        """Forget what nobody came for."""
        published = self.published()
        with self._lock:
            for asked in [asked for asked, found in self._waiting.items() if not self._is_good(found, published)]:
                self._forget(asked)

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting)

    def _is_good(self, found: _Waiting, published: Signature) -> bool:
        return self._clock() < found.since + WAITING_S and found.published == published

    def _put(self, asked: Asked, waiting: _Waiting) -> None:
        self._waiting[asked] = waiting
        self._bytes += waiting.size
        while self._bytes > MAX_BYTES:
            self._forget(next(iter(self._waiting)))

    def _forget(self, asked: Asked) -> _Waiting | None:
        found = self._waiting.pop(asked, None)
        if found is not None:
            self._bytes -= found.size
        return found


def _shape(sql: str) -> int:
    return hash(_LITERAL.sub("0", sql))
