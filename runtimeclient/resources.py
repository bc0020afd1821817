"""What a runtime tells about itself, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from runtimeclient.errors import NotARuntimeError

T = TypeVar("T", str, int)

# Whatever a runtime counts fits into 64 bits.
_LARGEST_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """
    One row of `GET /v1/status`. `status` is Ready, Initializing, Disabled or Error.

    The workers are those of the engine, where they are processes of their own: how many answer now, and how many were
    killed or lost since the start. Elsewhere they are None.
    """

    name: str
    endpoint: str
    status: str
    workers_alive: int | None = None
    workers_killed: int | None = None

    @property
    def is_fine(self) -> bool:
        """The component does what it was switched on for, or was not switched on."""
        return self.status in {"Ready", "Disabled"}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Read one row; fields that are not known here are left alone. Raises NotARuntimeError on a wrong type."""
        return cls(
            name=_required(item, "name", str),
            endpoint=_required(item, "endpoint", str),
            status=_required(item, "status", str),
            workers_alive=_optional(item, "workers_alive", int),
            workers_killed=_optional(item, "workers_killed", int),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """
    One row of `GET /v1/datasets`.

    `status` is Initializing, Ready, Refreshing, Error or Disabled; times are ISO 8601 in UTC. `age_s` counts from
    `checked_at`, when a refresh last succeeded; `bytes` is the size on disk.
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

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Read one row; fields that are not known here are left alone. Raises NotARuntimeError on a wrong type."""
        return cls(
            from_=_required(item, "from", str),
            name=_required(item, "name", str),
            acceleration_enabled=bool(_required(item, "acceleration_enabled", int)),
            status=_required(item, "status", str),
            rows=_optional(item, "rows", int),
            refreshed_at=_optional(item, "refreshed_at", str),
            snapshot=_optional(item, "snapshot", str),
            error=_optional(item, "error", str),
            checked_at=_optional(item, "checked_at", str),
            next_refresh_at=_optional(item, "next_refresh_at", str),
            age_s=_optional(item, "age_s", int),
            bytes=_optional(item, "bytes", int),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRun:
    """
    One refresh of a dataset. `status` is queued, running, succeeded or failed; times are ISO 8601 in UTC.

    One that is `unchanged` loaded nothing, for the source is as it was, or has nothing newer. While it runs, `phase` is
    opening, loading or publishing, and `bytes` the size of what is written so far.
    """

    id: str
    status: str
    requested_at: str | None
    started_at: str | None
    finished_at: str | None
    rows: int | None
    duration_ms: int | None
    error: str | None
    unchanged: bool = False
    phase: str | None = None
    bytes: int | None = None

    @property
    def is_finished(self) -> bool:
        """The run came to its end, well or not."""
        return self.status not in {"queued", "running"}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Read one row; fields that are not known here are left alone. Raises NotARuntimeError on a wrong type."""
        return cls(
            id=_required(item, "id", str),
            status=_required(item, "status", str),
            requested_at=_optional(item, "requested_at", str),
            started_at=_optional(item, "started_at", str),
            finished_at=_optional(item, "finished_at", str),
            rows=_optional(item, "rows", int),
            duration_ms=_optional(item, "duration_ms", int),
            error=_optional(item, "error", str),
            unchanged=bool(_optional(item, "unchanged", int)),
            phase=_optional(item, "phase", str),
            bytes=_optional(item, "bytes", int),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveQuery:
    """One row of `GET /v1/sql/active`. `started` is ISO 8601 in UTC, `state` queued or running, `sql` its beginning."""

    id: str
    started: str
    state: str
    sql: str

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Read one row, of ours or of Spice.ai's. Raises NotARuntimeError on a wrong type."""
        if "query_id" in item:
            try:
                started = datetime.fromtimestamp((_optional(item, "started_at_ms", int) or 0) / 1000, UTC)
            except (OverflowError, ValueError, OSError) as exc:
                raise _wrong_type("started_at_ms") from exc
            return cls(
                id=_required(item, "query_id", str),
                started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                state="running",
                sql=_optional(item, "sql_preview", str) or "",
            )
        return cls(
            id=_required(item, "id", str),
            started=_required(item, "started", str),
            state=_required(item, "state", str),
            sql=_required(item, "sql", str),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRefresh:
    """The answer to a request for a refresh: a sentence, and the run that was started or joined."""

    message: str
    id: str
    status: str

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Self:
        """Read the answer. Raises NotARuntimeError on a wrong type."""
        run = item.get("refresh")
        if not isinstance(run, dict):
            raise NotARuntimeError("The answer to the refresh request names no refresh: is this a runtime?")
        return cls(
            message=_required(item, "message", str), id=_required(run, "id", str), status=_required(run, "status", str)
        )


def _required(item: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = _optional(item, name, kind)
    if value is None:
        raise NotARuntimeError(f"The answer lacks the field {name}: is this a runtime?")
    return value


def _optional(item: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    value = item.get(name)
    if value is not None and not isinstance(value, kind):
        raise _wrong_type(name)
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        raise _wrong_type(name)
    return value


def _wrong_type(name: str) -> NotARuntimeError:
    return NotARuntimeError(f"The field {name} of the answer is not of the type it should be: is this a runtime?")
