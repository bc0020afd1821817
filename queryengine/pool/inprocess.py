"""
The in-process engine, which runs statements in threads of the current process.

A statement is added to the list of active statements, passes the gate, waits in the fair queue for an execution slot,
and runs. This engine cannot end a DuckDB call that ignores its interrupt flag. Engine workers
(`queryengine.pool.client`), which are processes that can be killed, have the same interface.
"""

import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

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
from queryengine.errors import EngineBusyError, QueryCancelledError
from queryengine.execution.instance import DuckDBBackend
from queryengine.execution.statement_result import StatementResult
from queryengine.execution.statement_runner import StatementRunner, WaitForSlot
from queryengine.pool.statement_queue import Admission, RateLimits
from runtimeconf.model import RuntimeConfig
from system.wallclock import utc_at

_T = TypeVar("_T")


class _ActiveStatement(Struct, eq=False):
    """A statement from its arrival until it has released its slot. *cancel* and `stop` stop it from any thread."""

    query: Query
    cancel: CancelToken | None
    admitted: Admitted | None = None
    interruption: Interruption = field(default_factory=Interruption)
    is_cancelled: bool = False
    is_repeated: bool = False
    arrived: float = field(default_factory=time.time)
    is_running: bool = False

    def stop(self) -> None:
        self.is_cancelled = True
        self.interruption.stop(QueryCancelledError)


class InProcessEngine:
    """
    A `QueryEngine` for one process with threads. Create it after any fork. Its creator closes it.

    *several_keys*: there is more than one key to be fair to.
    """

    def __init__(self, config: RuntimeConfig, *, several_keys: bool = True) -> None:
        """
        Check the views and open a session over the published data.

        Raises:
            ConfigError: A view cannot be created.
            EngineUnavailableError: The engine cannot start.
            RuntimeError: This process runs on gevent.
        """
        monkey = sys.modules.get("gevent.monkey")
        if monkey is not None and monkey.is_module_patched("threading"):
            # One query would block all other greenlets until it ends.
            raise RuntimeError(
                "The engine needs threads, but gevent has replaced them: run the server with gunicorn's gthread or "
                "sync worker, or with the command `serve`."
            )
        # In order of arrival. No lock is needed, because adding, removing and listing dictionary keys are atomic.
        self._active: dict[_ActiveStatement, None] = {}
        self._limits = config.query
        self._admission = Admission(config.query, several_keys=several_keys)
        self._rate_limits = RateLimits()
        self._runner = StatementRunner(config, DuckDBBackend(config, variant_casts=False))

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> StatementResult:
        """See `QueryEngine.run`. A small result is computed to its end."""
        return self._until_done(_ActiveStatement(query, cancel, admitted), self._runner.run)

    def describe(self, query: Query, cancel: CancelToken | None = None, *, speculate_s: float = 0.0) -> Description:
        """See `QueryEngine.describe`."""
        return self._until_done(
            _ActiveStatement(query, cancel), partial(self._runner.describe, speculate_s=speculate_s)
        )

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """See `QueryEngine.admit`."""
        return self._runner.admit(sql, relations)

    def count_request(self, fingerprint: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """See `QueryEngine.count_request`. Only requests to this process are counted."""
        return self._rate_limits.take(fingerprint, per_minute, instead_of)

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """See `QueryEngine.active`."""
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
        """See `QueryEngine.cancel`."""
        found = [one for one in self._active_of(fingerprint) if one.query.query_id == query_id]
        for one in found:
            one.stop()
        return bool(found)

    @property
    def instance_id(self) -> object | None:
        """See `QueryEngine.instance_id`. This is the engine object itself until it is closed."""
        return None if self._runner.closed else self

    def status(self) -> EngineStatus | None:
        """Return None, because there are no worker processes."""
        return None

    def is_alive(self) -> bool:
        """See `QueryEngine.is_alive`."""
        return self._runner.is_alive()

    def close(self) -> None:
        """Stop all statements and release all resources. Repeated calls are harmless."""
        self._runner.close()

    def _active_of(self, fingerprint: str) -> list[_ActiveStatement]:
        return [one for one in list(self._active) if one.query.fingerprint == fingerprint]

    def _until_done(
        self, active: _ActiveStatement, run: Callable[[Query, Interruption, ExitStack, WaitForSlot], _T]
    ) -> _T:
        """Run the statement with *run*. Whenever another key takes its slot, run it again with its remaining time."""
        began = time.monotonic()
        query = active.query
        limit_s = query.time_limit_s(self._limits) if query.timeout_s is None else query.timeout_s
        while True:
            try:
                with ExitStack() as held:
                    return run(query, active.interruption, held, self._enter(active, held))
            except EngineBusyError as error:
                if not error.is_reclaimed:
                    raise
            if active.is_cancelled:
                raise QueryCancelledError
            query = replace(query, timeout_s=max(0.0, began + limit_s - time.monotonic()))
            active.interruption, active.is_repeated, active.is_running = Interruption(), True, False

    def _enter(self, active: _ActiveStatement, held: ExitStack) -> WaitForSlot:
        """List the statement as active, make it cancellable, and return the function that waits for its slot."""
        self._active[active] = None
        held.callback(self._active.pop, active, None)
        if active.cancel is not None:
            held.callback(active.cancel.subscribe(active.stop))

        def wait_for_slot() -> None:
            timeout_s = math.inf if active.is_repeated else None  # Its time limit ends the wait.
            query, interruption = active.query, active.interruption
            held.callback(self._admission.enter(query.fingerprint, interruption, query.concurrent, timeout_s))
            active.is_running = True
            if active.admitted is not None:
                active.admitted()

        return wait_for_slot
