"""
Speculative execution: a short statement runs while it is described, and its result waits for the call that claims it.

A client asks GetFlightInfo, which needs the schema of the result, and then DoGet for the rows. For a short statement
the engine does the same work for both, so GetFlightInfo runs it and keeps the result. The result is handed out once: to
the same key, for the statement and parameters of the ticket, and only while the same data is published. A result that
nobody claims is dropped, and a later claim runs the statement again.

Some clients prepare a statement for each execution. A deterministic one runs when it is prepared: its result first
waits for the handle, and after GetFlightInfo for the ticket.

Speculation stops after a few milliseconds, so it is wasted on a long statement. A statement that ran over this budget
is not speculated on again for a while, nor is any other that differs only in its literals.
"""

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

#: Seconds that a statement may run speculatively.
BUDGET_S = 0.02

#: Seconds that a result waits, and that a statement over the budget is not tried again. The second is short, because a
#: short statement may only have waited for a processor.
RESULT_TTL_S = 5.0
BACKOFF_S = 5.0

#: Memory for all results that wait.
MAX_BYTES = 16 * 1024 * 1024

#: Longer texts are not speculated on, in characters.
MAX_CHARACTERS = 10_000

#: Statements over the budget that are remembered.
MAX_BACKOFFS = 1_000

#: The approximate overhead of an entry, in bytes.
_ENTRY_BYTES = 1024

_LITERAL = re.compile(r"'[^']*'|[0-9]+")


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """
    A statement, its parameters, and the fingerprint of the key that asks for it.

    `claim` is the ticket id or handle that will claim the result; b"" if nothing will.
    """

    fingerprint: str
    claim: bytes
    sql: str
    parameters: ArrowParameters | None = None

    @property
    def bound(self) -> Parameters:
        """The parameters for the engine, where () says that there are none."""
        return () if self.parameters is None else self.parameters


@dataclass(frozen=True, slots=True)
class _Entry:
    description: Description
    version: Signature
    since: float
    size: int


class SpeculativeResults:
    """The results that wait to be claimed, over the data that *state_dir* publishes. Safe from any thread."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._manifest = str(manifest_path(state_dir))
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[StatementRequest, _Entry] = OrderedDict()  # oldest first
        self._bytes = 0
        self._backoffs: OrderedDict[int, float] = OrderedDict()  # by the hash of the normalized text, oldest first

    def data_version(self) -> Signature:
        """Return the version of the published data. Read it before running the statement whose result is kept."""
        return signature(self._manifest)

    def budget_s(self, sql: str) -> float:
        """Return the seconds for which *sql* may run speculatively; 0.0 if it should not."""
        if len(sql) > MAX_CHARACTERS:
            return 0.0
        normalized = _normalized(sql)
        with self._lock:
            since = self._backoffs.get(normalized)
            if since is None:
                return BUDGET_S
            if self._clock() < since + BACKOFF_S:
                return 0.0
            del self._backoffs[normalized]
        return BUDGET_S

    def back_off(self, sql: str) -> None:
        """Do not speculate on *sql*, and statements that differ only in literals, for `BACKOFF_S` seconds."""
        with self._lock:
            self._backoffs[_normalized(sql)] = self._clock()
            if len(self._backoffs) > MAX_BACKOFFS:
                self._backoffs.popitem(last=False)

    def keep(self, request: StatementRequest, description: Description, version: Signature) -> None:
        """Keep the result in *description*, if any, over the data *version*. The oldest results make room."""
        answer = description.answer
        if answer is None:
            return
        size = _ENTRY_BYTES + sys.getsizeof(request.sql) + len(description.schema or b"")
        size += sum(map(len, answer.chunks))
        if request.parameters is not None:
            size += len(request.parameters.stream)
        with self._lock:
            self._put(request, _Entry(description, version, self._clock(), size))

    def transfer(self, source: StatementRequest, target: StatementRequest) -> Description | None:
        """Let the result that waits for *source* wait for *target*, and return it; None as for `take`."""
        with self._lock:
            entry = self._remove(source)
            if entry is None or not self._is_valid(entry, self.data_version()):
                return None
            self._put(target, entry)
            return entry.description

    def take(self, request: StatementRequest) -> Answer | None:
        """Remove and return the result; None if there is none, it has expired, or newer data is published."""
        with self._lock:
            entry = self._remove(request)
        return entry.description.answer if entry is not None and self._is_valid(entry, self.data_version()) else None

    def expire(self) -> None:
        """Drop the results that nobody claimed in time."""
        version = self.data_version()
        with self._lock:
            for request in [one for one, entry in self._entries.items() if not self._is_valid(entry, version)]:
                self._remove(request)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def _is_valid(self, entry: _Entry, version: Signature) -> bool:
        return self._clock() < entry.since + RESULT_TTL_S and entry.version == version

    def _put(self, request: StatementRequest, entry: _Entry) -> None:
        self._entries[request] = entry
        self._bytes += entry.size
        while self._bytes > MAX_BYTES:
            self._remove(next(iter(self._entries)))

    def _remove(self, request: StatementRequest) -> _Entry | None:
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._bytes -= entry.size
        return entry


def _normalized(sql: str) -> int:
    return hash(_LITERAL.sub("0", sql))
