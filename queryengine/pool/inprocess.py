"""
The engine in the process that asks: statements run in threads of this process.

A statement enters the list of active ones, passes the gate, waits in the fair queue for an execution slot, and runs.
This engine cannot end a call inside DuckDB that ignores its interrupt flag; engine workers (`queryengine.pool.client`),
which are processes that can be killed, have the same interface.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from queryengine.cancellation import Interruption
from queryengine.engine import (
    ACTIVE_SQL_CHARACTERS,
    ActiveQuery,
    Admitted,
    Allowance,
    CancelToken,
    Description,
    EngineStatus,
    GatedStatement,
    Query,
)
from queryengine.errors import QueryCancelledError
from queryengine.execution.instance import DuckDBBackend
from queryengine.execution.statement_result import StatementResult
from queryengine.execution.statement_runner import StatementRunner, WaitForSlot
from queryengine.pool.fair_queue import Admission
from queryengine.pool.rate_limits import RateLimits
from runtimeconf.model import RuntimeConfig
from system.wallclock import utc_at


@dataclass(eq=False, slots=True)
class _ActiveStatement:
    """A statement from its arrival until it has released its slot; `stop` stops it, from any thread."""

    query: Query
    stop: Callable[[], None]
    arrived: float = field(default_factory=time.time)
    is_running: bool = False


class InProcessEngine:
    """
    A `QueryEngine` for one process with threads. It is made after any fork, and closed by its maker.

    *several_keys* says whether there is more than one key to be fair to.
    """

    def __init__(self, config: RuntimeConfig, *, several_keys: bool = True) -> None:
        """
        Check the views and open a session over what is published.

        Raises:
            ConfigError: A view cannot be made.
            EngineUnavailableError: The engine cannot start.
            RuntimeError: This process runs on gevent.
        """
        monkey = sys.modules.get("gevent.monkey")
        if monkey is not None and monkey.is_module_patched("threading"):
            # One query would block every other greenlet until it ends.
            raise RuntimeError(
                "The engine needs threads, and gevent has replaced them: run the server with gunicorn's gthread or "
                "sync worker, or with the command `serve`."
            )
        # In the order of arrival. No lock: adding, removing and listing the keys of a dictionary are atomic.
        self._active: dict[_ActiveStatement, None] = {}
        self._admission = Admission(config.query, several_keys=several_keys)
        self._rate_limits = RateLimits()
        self._runner = StatementRunner(config, DuckDBBackend(config, variant_casts=False))

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> StatementResult:
        """As `QueryEngine.run`; a small result is computed to its end."""
        interruption = Interruption()
        with ExitStack() as held:
            return self._runner.run(query, interruption, held, self._enter(query, cancel, interruption, held, admitted))

    def describe(self, query: Query, cancel: CancelToken | None = None, *, speculate_s: float = 0.0) -> Description:
        """As `QueryEngine.describe`."""
        interruption = Interruption()
        with ExitStack() as held:
            return self._runner.describe(
                query, interruption, held, self._enter(query, cancel, interruption, held), speculate_s=speculate_s
            )

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """As `QueryEngine.admit`."""
        return self._runner.admit(sql, relations)

    def count_request(self, fingerprint: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """As `QueryEngine.count_request`, in this process."""
        return self._rate_limits.take(fingerprint, per_minute, instead_of)

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """As `QueryEngine.active`."""
        return tuple(
            ActiveQuery(
                query_id=one.query.query_id,
                started=utc_at(one.arrived),
                state="running" if one.is_running else "queued",
                sql=one.query.sql[:ACTIVE_SQL_CHARACTERS],
            )
            for one in self._active_of(fingerprint)
        )

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """As `QueryEngine.cancel`."""
        found = [one for one in self._active_of(fingerprint) if one.query.query_id == query_id]
        for one in found:
            one.stop()
        return bool(found)

    @property
    def instance_id(self) -> object | None:
        """As `QueryEngine.instance_id`: this object, until it is closed."""
        return None if self._runner.closed else self

    def status(self) -> EngineStatus | None:
        """Return None: there are no worker processes."""
        return None

    def is_alive(self) -> bool:
        """As `QueryEngine.is_alive`."""
        return self._runner.is_alive()

    def close(self) -> None:
        """Stop everything that runs, and free what it holds. Twice is harmless."""
        self._runner.close()

    def _active_of(self, fingerprint: str) -> list[_ActiveStatement]:
        return [one for one in list(self._active) if one.query.fingerprint == fingerprint]

    def _enter(
        self,
        query: Query,
        cancel: CancelToken | None,
        interruption: Interruption,
        held: ExitStack,
        admitted: Admitted | None = None,
    ) -> WaitForSlot:
        """List the statement as active, let *cancel* stop it, and return what waits for its slot."""
        stop = partial(interruption.stop, QueryCancelledError)
        active = _ActiveStatement(query, stop)
        self._active[active] = None
        held.callback(self._active.pop, active, None)
        if cancel is not None:
            held.callback(cancel.subscribe(stop))

        def wait_for_slot() -> None:
            held.callback(self._admission.enter(query.fingerprint, interruption, query.concurrent))
            active.is_running = True
            if admitted is not None:
                admitted()

        return wait_for_slot
