"""The client of the engine: a `QueryEngine` whose statements run in engine workers."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from queryengine.engine import (
    ActiveQuery,
    Admitted,
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
        self._limit_s = config.query.timeout_s
        self._remembers = config.results_cache.enabled
        self._pool = SlotPool(config.state_dir)

    def run(self, query: Query, cancel: CancelToken | None = None, admitted: Admitted | None = None) -> ClientResult:
        """
        Have a worker gate and start one statement, and wait for the start of its answer, or all of a small one.

        Raises:
            QueryError: Any of the tree in `queryengine.errors`.
        """
        call = {"call": "run", **_fields(query)}
        if self._remembers and query.cache != "none":
            call["basis"] = True
        result = self._statement(query.query_id, query.fingerprint, query.timeout_s)
        result.on_admitted = admitted
        result.start(call, cancel)
        return result

    def describe(self, query: Query, cancel: CancelToken | None = None, *, ahead_s: float = 0.0) -> Description:
        """As `QueryEngine.describe`."""
        call = {"call": "describe", "ahead_s": ahead_s, **_fields(query)}
        statement = self._statement(query.query_id, query.fingerprint, query.timeout_s)
        statement.start(call, cancel)
        try:
            chunks = tuple(statement)
            fields = statement.fields["description"]
            schema = fields["schema"]
            return Description(
                schema=None if schema is None else b64decode(schema),
                parameters=tuple(fields["parameters"]),
                is_lasting=fields["is_lasting"],
                is_steady=fields["is_steady"],
                answer=Answer(chunks=chunks, timings=statement.timings) if chunks else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineUnavailableError("The engine's answer cannot be read.") from error
        finally:
            statement.close()

    def admit(self, sql: str, relations: frozenset[str]) -> GatedStatement:
        """As `QueryEngine.admit`."""
        statement = self._statement("", "", None)
        statement.start({"call": "admit", "sql": sql, "relations": sorted(relations)}, None, inner=True)
        try:
            fields = statement.fields["statement"]
            return GatedStatement(
                sql=fields["sql"],
                kind=fields["kind"],
                relations=frozenset(fields["relations"]),
                parameters=frozenset(fields["parameters"]),
            )
        except (KeyError, TypeError) as error:
            raise EngineUnavailableError("The engine's answer cannot be read.") from error
        finally:
            statement.close()

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
    def era(self) -> object | None:
        """As `QueryEngine.era`: the connection to the broker, which is a new one for each engine."""
        return self._pool.link.era

    def status(self) -> EngineStatus:
        """Return the number of live and of killed workers; none is alive when the engine has been silent for long."""
        return self._pool.link.status

    def is_alive(self) -> bool:
        """Return whether the engine accepts statements; a busy engine is alive."""
        return self._pool.link.is_alive

    def close(self) -> None:
        """Stop every statement and give back all slots."""
        self._pool.close()

    def _statement(self, query_id: str, key: str, limit_s: float | None) -> ClientResult:
        whole_s = self._limit_s
        return ClientResult(
            self._pool, query_id, key, limit_s=whole_s if limit_s is None else limit_s, shown_limit_s=whole_s
        )


def _fields(query: Query) -> dict[str, Any]:
    """Return the request fields that describe *query*."""
    fields = {"sql": query.sql, "encoding": query.encoding, "fingerprint": query.fingerprint}
    if isinstance(query.parameters, ArrowParameters):
        return {**fields, "arrow_parameters": b64encode(query.parameters.stream).decode("ascii")}
    return {**fields, "parameters": query.parameters}
