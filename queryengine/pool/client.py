"""The client of the engine: a `QueryEngine` whose statements run in engine workers."""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queryengine.engine import (
    ActiveQuery,
    Admitted,
    Allowance,
    Answer,
    ArrowParameters,
    CancelToken,
    Description,
    EngineStatus,
    GatedStatement,
    Query,
)
from queryengine.errors import EngineUnavailableError
from queryengine.pool.client_result import ClientResult
from queryengine.pool.slots import SlotPool
from runtimeconf.model import RuntimeConfig


class EngineClient:
    """
    A `QueryEngine` whose statements run in engine workers. Make it after any fork; its maker closes it.

    It can be made without an engine: until there is one, statements fail with `EngineUnavailableError`.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        self._limits = config.query
        self._remembers = config.results_cache.enabled
        self._pool = SlotPool(config.state_dir)

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> ClientResult:
        """As `QueryEngine.run`; it waits for all of a small answer."""
        call = {"call": "run", **_fields(query)}
        if self._remembers and query.cache != "none":
            call["data_version"] = True
        return ClientResult(self._pool, query, query.time_limit_s(self._limits)).start(call, cancel, admitted)

    def describe(self, query: Query, cancel: CancelToken | None = None, *, speculate_s: float = 0.0) -> Description:
        """As `QueryEngine.describe`."""
        call = {"call": "describe", "speculate_s": speculate_s, **_fields(query)}
        statement = ClientResult(self._pool, query, query.time_limit_s(self._limits))
        with _read_to_its_end(statement.start(call, cancel)):
            chunks = tuple(statement)
            fields = statement.fields["description"]
            schema = fields["schema"]
            return Description(
                schema=None if schema is None else b64decode(schema),
                parameters=tuple(fields["parameters"]),
                is_schema_cacheable=fields["is_schema_cacheable"],
                is_cacheable=fields["is_cacheable"],
                answer=Answer(chunks=chunks, timings=statement.timings) if chunks else None,
            )

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """As `QueryEngine.admit`."""
        statement = ClientResult(self._pool, Query(sql=sql), self._limits.timeout_s)
        call = {"call": "admit", "sql": sql, "relations": sorted(relations)}
        with _read_to_its_end(statement.start(call, inner=True)):
            fields = statement.fields["statement"]
            return GatedStatement(
                fields["sql"], fields["kind"], frozenset(fields["relations"]), frozenset(fields["parameters"])
            )

    def count_request(self, fingerprint: str, per_minute: int) -> Allowance:
        """As `QueryEngine.count_request`, over all processes."""
        answer = self._pool.link.ask({"do": "count", "key": fingerprint, "limit": per_minute})
        return Allowance(**answer["allowance"])

    def active(self, fingerprint: str) -> tuple[ActiveQuery, ...]:
        """As `QueryEngine.active`: the statements of all processes."""
        self._pool.report()
        answer = self._pool.link.ask({"do": "active", "key": fingerprint})
        return tuple(
            ActiveQuery(query_id=one["id"], started=one["started"], state=one["state"], sql=one["sql"])
            for one in answer["statements"]
        )

    def cancel(self, query_id: str, fingerprint: str) -> bool:
        """As `QueryEngine.cancel`: a statement of any process."""
        self._pool.report()
        return bool(self._pool.link.ask({"do": "cancel", "key": fingerprint, "id": query_id})["found"])

    @property
    def instance_id(self) -> object | None:
        """As `QueryEngine.instance_id`: the connection to the broker, which is a new one for each engine."""
        return self._pool.link.instance_id

    def status(self) -> EngineStatus:
        """Return the number of live and of killed workers; none is alive when the engine has been silent for long."""
        return self._pool.link.status

    def is_alive(self) -> bool:
        """Return whether the engine accepts statements; a busy engine is alive."""
        return self._pool.link.is_alive

    def close(self) -> None:
        """Stop every statement and give back all slots."""
        self._pool.close()


@contextmanager
def _read_to_its_end(statement: ClientResult) -> Iterator[ClientResult]:
    """Close *statement* after the block; raises EngineUnavailableError if the block cannot read its fields."""
    try:
        yield statement
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnavailableError("The engine's answer cannot be read.") from error
    finally:
        statement.close()


def _fields(query: Query) -> dict[str, Any]:
    """Return the request fields that describe *query*."""
    fields: dict[str, Any] = {"sql": query.sql, "encoding": query.encoding, "fingerprint": query.fingerprint}
    if query.limit_s is not None:
        fields["limit_s"] = query.limit_s
    if query.scope is not None:
        fields["scope"] = sorted(query.scope)
    if isinstance(query.parameters, ArrowParameters):
        return {**fields, "arrow_parameters": b64encode(query.parameters.stream).decode("ascii")}
    return {**fields, "parameters": query.parameters}
