"""
Answers to Flight SQL's metadata commands, as Arrow tables with the schemas of the format (`FlightSql.proto`).

There is one catalog with one schema, and in it the datasets (TABLE) and views (VIEW) of the YAML, by their declared
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from flightapi.commands import Metadata

CATALOG = "runtime"
SCHEMA = "main"


@dataclass(frozen=True, slots=True)
class Relation:
    """A declared dataset or view, by the name in the YAML."""

    name: str
    kind: Literal["TABLE", "VIEW"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What GetSqlInfo tells about this very server. `handle_timeout_ms` is how long a prepared statement is kept."""

    version: str
    handle_timeout_ms: int
    max_statement_bytes: int


#: Gives the Arrow schemas of the relations of these names. One that it leaves out is shown without columns.
TableSchemas = Callable[[Sequence[str]], Mapping[str, pa.Schema]]


def answer_schema(plan: Metadata) -> pa.Schema:
    """Return the schema of the answer to *plan*: known before there is an answer."""
    raise NotImplementedError


def answer(plan: Metadata, relations: Iterable[Relation], table_schemas: TableSchemas, facts: ServerFacts) -> pa.Table:
    """
    Return the answer to *plan*, sorted as the format says. *table_schemas* is called at most once, and only when asked for.

    What *table_schemas* raises passes through.
    """
    raise NotImplementedError
