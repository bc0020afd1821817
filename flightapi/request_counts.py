"""
Counts the requests of keys with `requests_per_minute`, once per statement or metadata command, not per call.

A client prepares a statement, binds its parameters, asks for its FlightInfo and fetches its rows. Some clients skip
some of these calls. Each call except the last leaves a credit for the next one with the same key, statement and
parameters. A credit pays for one later call in this order, within `CREDIT_S` seconds. The request is then counted at
that call, so credits cannot be saved up. Every call without a credit is counted.
"""

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from authkeys.principal import Principal
from flightapi.descriptions import StatementRequest
from queryengine.engine import Allowance
from queryengine.errors import RateLimitError

#: Seconds for which a credit is valid, which is as long as the result of a speculative execution.
CREDIT_S = 5.0

#: A request is counted again once its earlier call is this many seconds old.
_RECOUNT_S = 1.0

#: The maximum number of claims with credits remembered for each key.
MAX_CLAIMS_OF_KEY = 10_000

_DIGEST_BYTES = 16


class Step(IntEnum):
    """The calls that a statement may take, in order."""

    PREPARE = 1
    BIND = 2
    DESCRIBE = 3
    FETCH = 4


class Counted(Struct, frozen=True):
    """A counted call: its step, the second on the engine's clock, and the times of the count and of the credit."""

    step: Step
    counted_at: int
    since: float
    granted: float


class CountsRequests(Protocol):
    """The part of the engine that counts."""

    def count_request(self, fingerprint: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """See `QueryEngine.count_request`."""


class RequestCounts:
    """The credits of all keys. Thread-safe. *engine* counts for all processes."""

    def __init__(self, engine: CountsRequests, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        #: By key and claim, oldest first. Clients may run the same metadata command several times at once.
        self._credits: dict[str, OrderedDict[bytes, deque[Counted]]] = {}

    def count(self, caller: Principal, step: Step, claim: bytes = b"") -> Counted | None:
        """
        Count a call, unless an earlier call of the same request left a credit for *claim*.

        Returns:
            The value that `grant` needs to leave a credit; None for a key without a limit.

        Raises:
            RateLimitError: The key has exceeded its limit.
        """
        per_minute = caller.limits.requests_per_minute
        if per_minute is None:
            return None
        credit = self._take(caller.fingerprint, claim, step)
        now = self._clock()
        if credit is not None and now - credit.since < _RECOUNT_S:
            return replace(credit, step=step)
        instead_of = None if credit is None else credit.counted_at
        allowance = self._engine.count_request(caller.fingerprint, per_minute, instead_of)
        if not allowance.is_allowed:
            raise RateLimitError(allowance.limit, allowance.reset_s)
        return Counted(step, allowance.counted_at, now, now)

    def grant(self, caller: Principal, claim: bytes, counted: Counted | None) -> None:
        """Leave a credit for the next call of the request in *counted*."""
        if counted is None:
            return
        with self._lock:
            of_key = self._credits.setdefault(caller.fingerprint, OrderedDict())
            of_key.setdefault(claim, deque(maxlen=MAX_CLAIMS_OF_KEY)).append(replace(counted, granted=self._clock()))
            of_key.move_to_end(claim)
            if len(of_key) > MAX_CLAIMS_OF_KEY:
                of_key.popitem(last=False)

    def expire(self) -> None:
        """Drop the credits that were not used in time."""
        before = self._clock() - CREDIT_S
        with self._lock:
            for of_key in self._credits.values():
                while of_key and next(iter(of_key.values()))[-1].granted <= before:
                    of_key.popitem(last=False)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._credits.values()))

    def _take(self, fingerprint: str, claim: bytes, step: Step) -> Counted | None:
        before = self._clock() - CREDIT_S
        with self._lock:
            of_key = self._credits.get(fingerprint)
            counts = of_key.pop(claim, None) if of_key else None
            while counts:
                # Use the newest first. It counts the same as the oldest, and is more likely to be valid.
                credit = counts.pop()
                if credit.granted > before and credit.step < step:
                    if counts and of_key is not None:
                        of_key[claim] = counts
                    return credit
        return None


def claim_of(request: StatementRequest) -> bytes:
    """Return the claim of the ticket of *request*: id, statement and parameters."""
    parameters = b"" if request.parameters is None else request.parameters
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (request.claim, request.sql.encode(errors="surrogatepass"), parameters):
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.digest()


def claim_of_command(command: bytes) -> bytes:
    """Return the claim of a serialised metadata command, whose ticket has no id."""
    return hashlib.blake2b(command, digest_size=_DIGEST_BYTES).digest()
