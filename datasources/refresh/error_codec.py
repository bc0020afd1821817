"""Errors as JSON, for the control socket and the process that loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from datasources.errors import (
    AccelerationDisabledError,
    DatasetError,
    DatasetsUnavailableError,
    SchemaChangedError,
    SnapshotError,
    SourceError,
    TimeColumnMissingError,
    UnknownDatasetError,
)
from queryengine.errors import QueryError
from queryengine.pool.client import ERRORS as QUERY_ERRORS

_Make = Callable[[Mapping[str, Any]], DatasetError | QueryError]


def _by(field: str, kind: Callable[[str], DatasetError]) -> _Make:
    return lambda fields: kind(fields[field])


#: How each error is made, by its code.
_MAKERS: Mapping[str, _Make] = {
    **QUERY_ERRORS,
    DatasetsUnavailableError.code: lambda _: DatasetsUnavailableError(),
    UnknownDatasetError.code: _by("name", UnknownDatasetError),
    AccelerationDisabledError.code: _by("name", AccelerationDisabledError),
    TimeColumnMissingError.code: _by("name", TimeColumnMissingError),
    **{kind.code: _by("message", kind) for kind in (SourceError, SchemaChangedError, SnapshotError)},
}


def encode(error: DatasetError | QueryError) -> dict[str, Any]:
    """Return *error* as JSON types: its attributes, its code and its message."""
    return {**vars(error), "code": error.code, "message": str(error)}


def decode(fields: Any) -> DatasetError | QueryError:
    """
    Return the error that `encode` made *fields* of. A code that is not known here gives a `DatasetError`.

    Raises:
        ValueError: *fields* has no message, or lacks an attribute of its error.
    """
    if not isinstance(fields, Mapping) or not isinstance(fields.get("message"), str):
        raise ValueError("an error has a message")  # noqa: TRY004 (what callers catch)
    make = _MAKERS.get(str(fields.get("code")), _by("message", DatasetError))
    try:
        return make(fields)
    except (KeyError, TypeError) as exc:
        raise ValueError("an error lacks an attribute") from exc
