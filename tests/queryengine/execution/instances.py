"""Running statements on an `EngineInstance`."""

from functools import cache
from typing import Any

import pyarrow as pa

from queryengine.cancellation import Interruption
from queryengine.engine import GatedStatement, Parameters, Query
from queryengine.execution.instance import EngineInstance
from queryengine.execution.reader import Reader
from queryengine.gate.gate import Gate
from runtimeconf.model import ViewConfig


@cache
def gate() -> Gate:
    return Gate()


def run(
    session: EngineInstance,
    sql: str,
    parameters: Parameters | None = None,
    interruption: Interruption | None = None,
    relations: frozenset[str] = frozenset({"flights", "planes", "ids", "select"}),
) -> Reader:
    return session.run(
        gate().admit(sql, relations), Query(sql=sql, parameters=parameters), interruption or Interruption()
    )


def run_ungated(session: EngineInstance, sql: str, *, deterministic: bool = True) -> Reader:
    statement = GatedStatement(sql, "select", frozenset(), frozenset(), deterministic=deterministic)
    return session.run(statement, Query(sql=statement.sql), Interruption())


def table(reader: Reader) -> pa.Table:
    try:
        return pa.Table.from_batches(list(reader), schema=reader.schema)
    finally:
        reader.close()


def rows(session: EngineInstance, sql: str, parameters: Parameters | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(run(session, sql, parameters)).to_pylist()
    return found


def declared(**views: str) -> list[ViewConfig]:
    return [
        ViewConfig(name=name, sql=sql, line=1 + number, yaml_path=f"views[{number}].sql")
        for number, (name, sql) in enumerate(views.items())
    ]
