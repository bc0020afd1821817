"""The JSON schemas of bodies, by name. The fields of datasets and refreshes come from their classes."""

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from datasources.control import DatasetState, RefreshRun
from queryengine.engine import ActiveQuery
from sqlapi.openapi.error_codes import LOG_ONLY, WHEN

Schema = dict[str, Any]

_TYPES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    types.NoneType: "null",
}

_TIME: Schema = {"format": "date-time"}
_COUNT: Schema = {"minimum": 0}


def reference(name: str) -> Schema:
    """Return a reference to the schema *name*."""
    return {"$ref": f"#/components/schemas/{name}"}


def array_of(name: str) -> Schema:
    """Return the schema of an array of *name*."""
    return {"type": "array", "items": reference(name)}


def object_of(description: str, properties: Mapping[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of an object that has all *properties* but perhaps those that are *optional*."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "description": description, "required": required, "properties": dict(properties)}


def _nullable(type_: str, description: str, **more: Any) -> Schema:
    return {"type": [type_, "null"], "description": description, **more}


def _count(description: str) -> Schema:
    return {"type": "integer", "description": description, **_COUNT}


def _milliseconds(description: str) -> Schema:
    return {"type": "number", "description": description, **_COUNT}


def _field(type_: Any, description: str, more: Mapping[str, Any]) -> Schema:
    """Return the schema of a field of a dataclass: a plain type, a Literal, or either of these or None."""
    kinds = get_args(type_) if get_origin(type_) in (types.UnionType, Union) else (type_,)
    allowed = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    names = ["string" if get_origin(kind) is Literal else _TYPES[get_origin(kind) or kind] for kind in kinds]
    schema: Schema = {"type": names[0] if len(names) == 1 else names, "description": description, **more}
    if allowed:
        schema["enum"] = [*allowed, *([None] if "null" in names else [])]
    return schema


def _row_of(
    kind: type, description: str, described: Mapping[str, tuple[str, Schema]], names: Mapping[str, str] | None = None
) -> Schema:
    """Return the schema of the dataclass *kind*. Each field is described, under the name it has in JSON by *names*."""
    hints = get_type_hints(kind)
    properties = {
        (name := (names or {}).get(field.name, field.name)): _field(hints[field.name], *described[name])
        for field in fields(kind)
    }
    return object_of(description, properties)


_DATASET: Mapping[str, tuple[str, Schema]] = {
    "from": ("The source, as in the YAML.", {}),
    "name": ("The name.", {}),
    "acceleration_enabled": ("Whether it can be refreshed.", {}),
    "status": ("`Error`: the last load failed; older data, if any, is still served.", {}),
    "rows": ("Rows served; null if there are none yet.", _COUNT),
    "refreshed_at": ("When the served data was loaded.", _TIME),
    "snapshot": ("The name of the served version.", {}),
    "error": ("Why the last load failed: a sentence without server paths or credentials.", {}),
    "checked_at": ("When a refresh last succeeded, even if the source was unchanged.", _TIME),
    "next_refresh_at": (
        "When the next scheduled refresh is due. Null without an interval, and while a refresh is queued or running.",
        _TIME,
    ),
    "age_s": ("Whole seconds since `checked_at`.", _COUNT),
    "bytes": ("The size of the snapshot file.", _COUNT),
    "description": ("The description in the YAML.", {}),
    "metadata": ("The metadata in the YAML.", {"additionalProperties": {"type": "string"}}),
}

_REFRESH_ID: Schema = {"pattern": "^[0-9a-f]{16}$"}
_STATEMENT_ID: Schema = {"pattern": "^[0-9a-f]{32}$"}

_REFRESH: Mapping[str, tuple[str, Schema]] = {
    "id": ("The id of the run.", _REFRESH_ID),
    "status": ("Once it is `succeeded`, every later statement sees the new data.", {}),
    "requested_at": ("When it was requested or scheduled.", _TIME),
    "started_at": ("When it started.", _TIME),
    "finished_at": ("When it ended.", _TIME),
    "rows": ("The rows that it loaded, or the rows that are served if it is `unchanged`.", _COUNT),
    "duration_ms": ("How long the run took; for a running refresh, the time so far.", _COUNT),
    "error": ("Why the run failed, in a sentence.", {}),
    "unchanged": ("True if nothing was loaded: the source was unchanged, or an append found no newer rows.", {}),
    "phase": ("What a running refresh does.", {}),
    "bytes": ("For a running refresh, the bytes written so far; otherwise the size of what it published.", _COUNT),
}

_ACTIVE: Mapping[str, tuple[str, Schema]] = {
    "id": ("The id of the statement: the `X-Query-Id` of its response.", _STATEMENT_ID),
    "started": ("When it arrived.", _TIME),
    "state": ("`queued`, or `running` until its last row is computed.", {}),
    "sql": ("Its first 1,000 characters.", {"maxLength": 1000}),
}

_DIGEST: Schema = {"pattern": "^[0-9a-f]{16}$"}

_TIMES: Mapping[str, Schema] = {
    "queued_ms": _milliseconds("Waiting for a free worker."),
    "parse_ms": _milliseconds("Parsing and checking."),
    "run_ms": _milliseconds("In the engine."),
    "encode_ms": _milliseconds("Encoding as JSON, CSV or Arrow."),
    "total_ms": _milliseconds("From its arrival to the end of its response."),
}

#: A statement that has ended: see `telemetry.history.COLUMNS`.
_ENDED: Mapping[str, Schema] = {
    "id": {"type": "string", "description": "The `X-Query-Id` of its response.", **_STATEMENT_ID},
    "request_id": _nullable("string", "The `X-Request-Id` of its response."),
    "trace_id": _nullable("string", "The trace that the request belongs to, if it sent one.", **_STATEMENT_ID),
    "started": {"type": "string", "description": "When it arrived.", **_TIME},
    "protocol": {"type": "string", "enum": ["http", "flight-sql"]},
    "verdict": {"type": "string", "description": "`ok`, or the code of the error."},
    **_TIMES,
    "rows": _count("Of the response, as far as it was produced."),
    "bytes": _count("Of the response, as far as it was produced."),
    "cache": _nullable("string", "With the results cache on.", enum=["hit", "miss", "bypass", None]),
    "statement": _nullable(
        "string", "What it has in common with others that differ only in values; null if it was refused.", **_DIGEST
    ),
    "sql": _nullable("string", "Its first 1,000 characters, if the history keeps them."),
}

#: Statements that differ only in values: see `telemetry.statistics.COLUMNS`.
_ALIKE: Mapping[str, Schema] = {
    "statement": _nullable("string", "The digest, as in the history.", **_DIGEST),
    "calls": _count("How many such statements ended."),
    "errors": _count("How many of them failed."),
    "cache_hits": _count("How many the results cache answered."),
    "rows": _count("Of all responses."),
    "bytes": _count("Of all responses."),
    "last": {"type": "string", "description": "When the last one arrived.", **_TIME},
    **{
        f"{kind}_{phase}": _nullable("number", f"{words} {described['description']}", **_COUNT)
        for phase, described in _TIMES.items()
        for kind, words in (("mean", "The mean."), ("p95", "The 95th percentile."))
    },
    "sql": _nullable("string", "The text of the last one, if the history keeps it."),
}

#: The order and the units of DurationField, from 0s to 365d; the runtime checks the upper bound.
_DURATION = "^[0-9]{1,18}(\\.[0-9]{1,9})? ?(ms|s|m|h|d)$"

_ARROW_FIELD = object_of(
    "A column, as the Rust implementation of Arrow describes it in JSON.",
    {
        "name": {"type": "string"},
        "data_type": {
            "type": ["string", "object"],
            "minProperties": 1,
            "maxProperties": 1,
            "description": 'The type: `"Int64"`, `{"Decimal128":[18,3]}`.',
        },
        "nullable": {"type": "boolean"},
        "dict_id": {"type": "integer"},
        "dict_is_ordered": {"type": "boolean"},
    },
)


#: All schemas that the document names.
SCHEMAS: Mapping[str, Schema] = {
    "Problem": object_of(
        "An error (RFC 9457). Programs branch on `code`.",
        {
            "type": {"type": "string", "const": "about:blank"},
            "title": {"type": "string", "description": "The reason phrase of the status."},
            "status": {"type": "integer", "description": "The status of the response."},
            "detail": {"type": "string", "description": "A sentence for people, which may change."},
            "code": reference("ErrorCode"),
            "request_id": {"type": "string", "description": "The `X-Request-Id` of the response."},
        },
    ),
    "ErrorCode": {
        "type": "string",
        "description": "What went wrong. Codes are stable.",
        "oneOf": [{"const": code, "description": when} for code, when in WHEN.items() if code not in LOG_ONLY],
    },
    "Row": {"type": "object", "description": "A row: its values by the names of the columns."},
    "Rows": array_of("Row"),
    "RowsWithSchema": object_of(
        "The rows with their schema and their number.",
        {
            "schema": object_of(
                "The schema of the rows.",
                {"fields": array_of("ArrowField"), "metadata": {"type": "object", "maxProperties": 0}},
            ),
            "data": reference("Rows"),
            "row_count": {"type": "integer", "minimum": 0},
        },
    ),
    "ArrowField": _ARROW_FIELD,
    "Statement": object_of(
        "A statement with its parameters.",
        {
            "sql": {"type": "string", "description": "One SQL statement."},
            "parameters": {
                "type": ["array", "object", "null"],
                "description": "A list for `?` and `$1`, an object for `$name`.",
            },
        },
        optional=("parameters",),
    )
    | {"additionalProperties": False},
    "ActiveStatement": _row_of(ActiveQuery, "A queued or running statement.", _ACTIVE, {"query_id": "id"}),
    "EndedStatement": object_of("A statement that has ended.", _ENDED),
    "AlikeStatements": object_of("Statements that differ only in values.", _ALIKE),
    "Statistics": object_of(
        "Statistics of the statements of a key.",
        {
            "since": {"type": "string", "description": "When counting began.", **_TIME},
            "evicted": _count("How many digests were dropped for lack of room."),
            "statements": array_of("AlikeStatements") | {"description": "Those that took the longest time in all."},
        },
    ),
    "Cancelled": object_of("The statement is being cancelled.", {"message": {"type": "string"}}),
    "Component": object_of(
        "A component of the runtime.",
        {
            "name": {"type": "string", "enum": ["http", "flight", "engine", "refresh", "snapshots", "cluster"]},
            "endpoint": {"type": "string", "description": "An address, a socket, `in-process` or `N/A`."},
            "status": {"type": "string", "enum": ["Ready", "Initializing", "Disabled", "Error"]},
            "workers_alive": _count("Of the engine: worker processes that respond."),
            "workers_killed": _count("Of the engine: worker processes killed or lost since startup."),
            "workers_busy": _count("Of the engine: worker processes that run a statement."),
            "statements_running": _count("Of the engine: statements of all keys that run."),
            "statements_queued": _count("Of the engine: statements of all keys that wait for a worker."),
            "waiting_for": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Of refresh: the datasets that hold up `/v1/ready`.",
            },
            "node": {"type": "string", "description": "Of snapshots: the id of this node."},
            "publisher": {
                "type": "string",
                "description": "Of snapshots: the id of the node that publishes; empty if it is not known.",
            },
            "answered_s": _nullable("integer", "Of snapshots: seconds since the shared storage last answered."),
        },
        optional=(
            *("workers_alive", "workers_killed", "workers_busy", "statements_running", "statements_queued"),
            "waiting_for",
            *("node", "publisher", "answered_s"),
        ),
    ),
    "Dataset": _row_of(
        DatasetState,
        "A dataset. Until there is data to serve, `rows` and the fields from there to `bytes` are null, but "
        "`error` and `next_refresh_at`.",
        _DATASET,
        {"from_": "from"},
    ),
    "Refresh": _row_of(RefreshRun, "A refresh of a dataset, requested or scheduled.", _REFRESH),
    "RefreshRequest": {
        "type": ["object", "null"],
        "description": "What applies to this refresh only. Null counts as absent.",
        "properties": {
            "refresh_sql": _nullable("string", "A query over the source."),
            "refresh_mode": _nullable(
                "string", "`full` replaces all rows, `append` adds the newer ones.", enum=["full", "append", None]
            ),
            "refresh_jitter_max": _nullable(
                "string",
                "The refresh starts after a random delay of up to this length, from `0s` to `365d`.",
                pattern=_DURATION,
                examples=["30s"],
            ),
        },
        "additionalProperties": False,
    },
    "RefreshRequested": object_of(
        "The refresh is queued.",
        {
            "message": {"type": "string"},
            "refresh": object_of(
                "The run, as the list of refreshes shows it.",
                {"id": {"type": "string", **_REFRESH_ID}, "status": {"type": "string", "enum": ["queued", "running"]}},
            ),
        },
    ),
    "Key": object_of(
        "What a key may do. Null stands for no name, no expiry, all datasets, and no limit.",
        {
            "name": _nullable("string", "The name of the key."),
            "expires": _nullable("string", "When the key expires.", **_TIME),
            "datasets": _nullable("array", "The datasets and views it may read.", items={"type": "string"}),
            "rights": {"type": "array", "items": {"type": "string", "enum": ["query", "refresh"]}},
            "limits": object_of(
                "The limits of the key.",
                {
                    "requests_per_minute": _nullable("integer", "Requests in a minute.", minimum=1),
                    "concurrent": _nullable("integer", "Statements at the same time.", minimum=1),
                    "timeout_seconds": _nullable("number", "Seconds that a statement may run.", exclusiveMinimum=0),
                },
            ),
        },
    ),
    "Catalog": object_of(
        "A catalog that statements see.",
        {"from": {"type": "string", "const": "runtime"}, "name": {"type": "string", "const": "runtime"}},
    ),
    "OpenApi": {
        "type": "object",
        "description": "An OpenAPI 3.1 document.",
        "required": ["openapi", "info", "paths", "components"],
        "properties": {"openapi": {"type": "string", "pattern": "^3\\.1\\.[0-9]+$"}},
    },
}
