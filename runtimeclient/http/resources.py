"""The resources of the HTTP API as values."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Self, get_args, get_origin, get_type_hints

from runtimeclient.errors import NotARuntimeError

# All counts from a runtime fit into 64 bits.
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resource:
    """Base of the resources. The fields are the JSON object's fields, and times are ISO 8601 in UTC."""

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """
        Parse a JSON object, ignoring unknown fields. A trailing underscore (`from_`) is not part of a name.

        Raises:
            NotARuntimeError: A field is missing or has the wrong type.
        """
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for field in fields(cls):
            name, kinds = field.name.rstrip("_"), get_args(hints[field.name]) or (hints[field.name],)
            if (value := item.get(name)) is not None:
                values[field.name] = _converted(name, value, kinds[0])
            elif type(None) in kinds:
                values[field.name] = None
            elif field.default is MISSING:
                raise NotARuntimeError(f"The response lacks the field {name}: is this a runtime?")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus(_Resource):
    """
    One row of `GET /v1/status`. `status` is Ready, Initializing, Disabled or Error.

    The worker counts are for an engine with worker processes: workers that are alive and busy now, and workers that
    were killed or lost since the start. The engine's statement counts include all keys. `waiting_for` lists the
    datasets readable with the key that prevent readiness.
    """

    name: str
    endpoint: str
    status: str
    workers_alive: int | None = None
    workers_killed: int | None = None
    waiting_for: tuple[str, ...] | None = None
    workers_busy: int | None = None
    statements_running: int | None = None
    statements_queued: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus(_Resource):
    """
    One row of `GET /v1/datasets`.

    `status` is Initializing, Ready, Refreshing, Error or Disabled. `age_s` counts from `checked_at`, the time of the
    last successful refresh. `bytes` is the size on disk.
    """

    from_: str
    name: str
    acceleration_enabled: bool
    status: str
    rows: int | None
    refreshed_at: str | None
    snapshot: str | None
    error: str | None
    checked_at: str | None = None
    next_refresh_at: str | None = None
    age_s: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRun(_Resource):
    """
    One refresh of a dataset. `status` is queued, running, succeeded or failed.

    An `unchanged` run loaded nothing because the source has not changed or has no newer rows. While a run is running,
    `phase` is opening, loading or publishing, and `bytes` the size written so far.
    """

    id: str
    status: str
    requested_at: str | None
    started_at: str | None
    finished_at: str | None
    rows: int | None
    duration_ms: int | None
    error: str | None
    unchanged: bool | None = False
    phase: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveQuery(_Resource):
    """One row of `GET /v1/sql/active`. `state` is queued or running, `sql` the start of the statement."""

    id: str
    started: str
    state: str
    sql: str

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Parse one row from this runtime or from Spice.ai. Raises NotARuntimeError."""
        if "query_id" in item:
            started_ms = _checked("started_at_ms", item.get("started_at_ms", 0), int)
            try:
                started = datetime.fromtimestamp(started_ms / 1e3, UTC)
            except (OverflowError, ValueError, OSError) as exc:
                raise _wrong_type("started_at_ms") from exc
            item = {
                "id": item["query_id"],
                "started": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "state": "running",
                "sql": item.get("sql_preview", ""),
            }
        # Without arguments, super() fails in a class with slots.
        return super(ActiveQuery, cls).from_json(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedQuery(_Resource):
    """One row of `GET /v1/sql/history`. `outcome` is ok or an error code. `sql` is None unless the history keeps it."""

    id: str
    request_id: str | None
    trace_id: str | None
    started: str
    protocol: str
    outcome: str
    queued_ms: float
    parse_ms: float
    run_ms: float
    encode_ms: float
    total_ms: float
    rows: int
    bytes: int
    cache: str | None
    statement: str | None
    sql: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementStatistics(_Resource):
    """Statistics of the statements with one digest. Means and 95th percentiles are in milliseconds."""

    statement: str | None
    calls: int
    errors: int
    cache_hits: int
    rows: int
    bytes: int
    last: str
    mean_queued_ms: float | None
    p95_queued_ms: float | None
    mean_parse_ms: float | None
    p95_parse_ms: float | None
    mean_run_ms: float | None
    p95_run_ms: float | None
    mean_encode_ms: float | None
    p95_encode_ms: float | None
    mean_total_ms: float
    p95_total_ms: float
    sql: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(_Resource):
    """The response of `GET /v1/sql/statistics`. `evicted` digests were dropped since the time `since`."""

    since: str
    evicted: int
    statements: tuple[StatementStatistics, ...]

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Parse the response. Raises NotARuntimeError."""
        rows = [_checked("statements", row, dict) for row in _checked("statements", item.get("statements"), list)]
        return cls(
            since=_checked("since", item.get("since"), str),
            evicted=_checked("evicted", item.get("evicted"), int),
            statements=tuple(map(StatementStatistics.from_json, rows)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRefresh(RefreshRun):
    """The run that a refresh request started or joined, and the runtime's message."""

    message: str

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Parse the response. Raises NotARuntimeError."""
        run = item.get("refresh")
        if not isinstance(run, dict):
            raise NotARuntimeError("The response to the refresh request names no refresh: is this a runtime?")
        return super(RequestedRefresh, cls).from_json(run | {"message": item.get("message")})


def _converted(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(_checked(name, item, str) for item in _checked(name, value, list))
    if kind is float:
        return float(_checked(name, value, (int, float)))
    return kind(_checked(name, value, str if kind is str else int))


def _checked(name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
    # also refuses NaN
    if not isinstance(value, kind) or (isinstance(value, int | float) and not abs(value) <= _MAX_NUMBER):
        raise _wrong_type(name)
    return value


def _wrong_type(name: str) -> NotARuntimeError:
    return NotARuntimeError(f"The field {name} of the response has the wrong type: is this a runtime?")
