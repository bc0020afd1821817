"""The client of the engine: a `QueryEngine` whose statements run in engine workers."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from queryengine.engine import (
    ActiveQuery,
    Admitted,
    Allowance,
    CancelToken,
    Description,
    EngineStatus,
    GatedStatement,
    Query,
)
from queryengine.errors import EngineBusyError, EngineUnavailableError
from queryengine.pool.broker_client import unreachable
from queryengine.pool.client_result import ClientResult
from queryengine.pool.exchange import unreadable
from queryengine.pool.messages import Active, Cancel, Count, Counted, End, Found, Listed, Request
from queryengine.pool.slots import Durations, SlotPool
from runtimeconf.model import RuntimeConfig

_T = TypeVar("_T")


class EngineClient:
    """
    A `QueryEngine` whose statements run in engine workers. Create it after any fork. Its creator closes it.

    It can be created before the engine exists. Until then, statements fail with `EngineUnavailableError`.

    When another engine takes over, its client is the `successor` of this one. Statements that this engine refuses
    because it is stopping run there, if the successor accepts them. The successor also lists and cancels the statements
    that still run here.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        self.successor: EngineClient | None = None
        self._predecessor: EngineClient | None = None
        #: Notices whether another configuration has taken effect, and then calls `succeed` of its client.
        self.look: Callable[[], None] = lambda: None
        self._accepts: Callable[[Query], bool] = lambda _: True
        self._limits = config.query
        self._pool = SlotPool(config.engine_dir, None if config.engine is None else Durations())

    def succeed(self, predecessor: "EngineClient", accepts: Callable[[Query], bool] = lambda _: True) -> None:
        """Take over from *predecessor*, which its creator still closes. Run its statements that *accepts* admits."""
        self._accepts = accepts
        self._predecessor, predecessor.successor = predecessor, self

    def forget_predecessor(self) -> None:
        """Stop asking the predecessor, whose engine has ended."""
        self._predecessor = None

    @property
    def has_ended(self) -> bool:
        """Whether the engine is gone and no statement of this process is left."""
        return self._pool.link.instance_id is None and not self._pool.has_statements

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> ClientResult:
        """See `QueryEngine.run`. For a small result, this waits for the complete result."""
        return self._start(Request(call="run", query=query), cancel, admitted)

    def _start(
        self, request: Request, cancel: CancelToken | None = None, admitted: Admitted | None = None
    ) -> ClientResult:
        limit_s = request.query.time_limit_s(self._limits)
        statement = ClientResult(self._pool, request, limit_s, is_replaced=self._is_replaced)
        while True:
            try:
                return statement.start(cancel, admitted)
            except EngineBusyError as error:
                # The caller has received nothing yet. While the worker is stopping, the slot and the id are in use.
                if not error.is_reclaimed or statement.slot is not None:
                    raise
                statement = ClientResult(self._pool, request, limit_s, repeats=statement, is_replaced=self._is_replaced)
            except EngineUnavailableError:
                if self.successor is None or statement.had_slot or not self.successor._may_run(request):  # noqa: SLF001
                    raise
                break
        result = self.successor._start(request, cancel, admitted)  # noqa: SLF001 (of this class)
        # It is of another configuration, so the cache of this one must neither share nor keep it.
        result.data_version = None
        return result

    def _is_replaced(self) -> bool:
        """Return whether a statement must not begin here: it could read data that the new configuration published."""
        self.look()
        return self.successor is not None

    def _may_run(self, request: Request) -> bool:
        return request.call == "admit" or self._accepts(request.query)

    def describe(self, query: Query, cancel: CancelToken | None = None, *, speculate_s: float = 0.0) -> Description:
        """See `QueryEngine.describe`."""
        statement = self._start(Request(call="describe", query=query, speculate_s=speculate_s), cancel)
        description = _complete(statement).description
        if description is None:
            raise unreadable()
        if description.answer is not None:
            statement.timings.take(description.answer.timings)
            description.answer.timings = statement.timings
        return description

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """See `QueryEngine.admit`."""
        request = Request(call="admit", query=Query(sql=sql), relations=relations)
        if (statement := _complete(self._start(request)).statement) is None:
            raise unreadable()
        return statement

    def count_request(self, fingerprint: str, per_minute: int, instead_of: int | None = None) -> Allowance:
        """See `QueryEngine.count_request`. Requests of all processes are counted."""
        try:
            answer = self._pool.link.ask(
                lambda ask: Count(ask=ask, key=fingerprint, limit=per_minute, instead_of=instead_of)
            )
        except EngineUnavailableError:
            if self.successor is None:
                raise
            return self.successor.count_request(fingerprint, per_minute, instead_of)
        if not isinstance(answer, Counted):
            raise unreachable()
        return answer.allowance

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """See `QueryEngine.active`. The result includes the statements of all processes."""
        self._pool.report()
        answer = self._pool.link.ask(lambda ask: Active(ask=ask, key=fingerprint))
        if not isinstance(answer, Listed):
            raise unreachable()
        return (self._of_predecessor(lambda engine: engine.active(fingerprint)) or ()) + answer.statements

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """See `QueryEngine.cancel`. The statement may belong to any process."""
        self._pool.report()
        answer = self._pool.link.ask(lambda ask: Cancel(ask=ask, key=fingerprint, id=query_id))
        found = isinstance(answer, Found) and answer.found
        return found or bool(self._of_predecessor(lambda engine: engine.cancel(query_id, fingerprint)))

    def _of_predecessor(self, ask: "Callable[[EngineClient], _T]") -> _T | None:
        if self._predecessor is not None:
            with suppress(EngineUnavailableError):  # It has just ended.
                return ask(self._predecessor)
        return None

    @property
    def instance_id(self) -> object | None:
        """See `QueryEngine.instance_id`. This is the connection to the broker, which is new for each engine."""
        return self._pool.link.instance_id

    def status(self) -> EngineStatus:
        """Return the engine's status. If the engine has been silent for too long, no worker counts as alive."""
        return self._pool.link.status

    def is_alive(self) -> bool:
        """Return whether the engine accepts statements. A busy engine is alive."""
        return self._pool.link.is_alive

    def close(self) -> None:
        """Stop every statement and return all slots."""
        self._pool.close()


def _complete(statement: ClientResult) -> End:
    """Close *statement* and return the end of its response. Raises QueryError if it has not arrived."""
    statement.close()
    if statement.end is None:
        raise unreadable()
    return statement.end
