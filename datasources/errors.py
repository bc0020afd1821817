"""
The errors of this package.

::

    DatasetError
    ├── UnknownDatasetError           no dataset has that name
    ├── AccelerationDisabledError     the dataset is read only once, at startup
    ├── TimeColumnMissingError        append was requested, and the dataset has no time_column
    ├── DatasetsUnavailableError      no process manages the datasets at the moment
    ├── SourceError                   the source cannot be read, or its data is not valid
    │   ├── SchemaChangedError        columns or types differ from those served
    │   └── SourceEmptyError          a source that had rows has none
    └── SnapshotError                 a snapshot cannot be built, verified or published
        └── SharedStorageError        the storage that nodes share does not respond or refuses
"""

from collections.abc import Mapping
from typing import Any

#: The error of a run that was interrupted because the runtime ended.
INTERRUPTED = "interrupted"


class DatasetError(Exception):
    """Base of this package's errors. `str()` is a sentence without paths, except paths that the caller wrote."""

    code = "dataset_error"


class UnknownDatasetError(DatasetError):
    """No dataset has this name."""

    code = "dataset_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"Dataset {name} not found.")


class AccelerationDisabledError(DatasetError):
    """The dataset is read once at startup and is not refreshed."""

    code = "acceleration_disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"Dataset {name} does not have acceleration enabled.")


class TimeColumnMissingError(DatasetError):
    """An append was requested, but the dataset declares no `time_column`."""

    code = "time_column_missing"

    def __init__(self, name: str) -> None:
        super().__init__(f"Dataset {name} has no time_column, which refresh_mode append needs to find newer rows.")


class DatasetsUnavailableError(DatasetError):
    """No process manages the datasets at the moment."""

    code = "datasets_unavailable"

    def __init__(self, message: str = "The refresher does not respond at the moment: try again.") -> None:
        super().__init__(message)


class SourceError(DatasetError):
    """
    The source cannot be read, or its data is not valid.

    If *broke_library* is true, the library that reads the source cannot be used again in this process.
    """

    code = "source_error"

    def __init__(self, message: str, *, broke_library: bool = False) -> None:
        self.broke_library = broke_library
        super().__init__(message)


class SchemaChangedError(SourceError):
    """Columns or types differ from those served, and `on_schema_change` is `fail`."""

    code = "schema_changed"


class SourceEmptyError(SourceError):
    """A source that previously had rows has none, and `on_empty` is `fail`."""

    code = "source_empty"


class SnapshotError(DatasetError):
    """A snapshot cannot be built, verified or published."""

    code = "snapshot_error"


class SharedStorageError(SnapshotError):
    """The storage through which nodes share snapshots does not respond or refuses the request."""

    code = "shared_storage_error"


def error_fields(error: DatasetError) -> dict[str, str]:
    """Return the code and message of *error* as JSON types, to send to another process."""
    return {"code": error.code, "message": str(error)}


def error_from(fields: Mapping[str, Any], name: str = "") -> DatasetError:
    """
    Return the error encoded by `error_fields` in *fields*. *name* is the dataset name as the caller wrote it.

    An unknown code results in a `DatasetError`.

    Raises:
        ValueError: *fields* does not describe an error.
    """
    if not isinstance(fields, Mapping) or not isinstance(message := fields.get("message"), str):
        raise ValueError("an error has a message")  # noqa: TRY004 (what callers catch)
    code = str(fields.get("code"))
    return _OF_A_NAME[code](name) if code in _OF_A_NAME else _OF_A_MESSAGE.get(code, DatasetError)(message)


_OF_A_NAME = {kind.code: kind for kind in (UnknownDatasetError, AccelerationDisabledError, TimeColumnMissingError)}
_OF_A_MESSAGE: dict[str, type[DatasetError]] = {
    kind.code: kind
    for kind in (
        DatasetsUnavailableError,
        SourceError,
        SchemaChangedError,
        SourceEmptyError,
        SnapshotError,
        SharedStorageError,
    )
}


#: The reasons in errors about the state directory.
NOT_WRITTEN = "cannot be written to the state directory"


def not_written(what: str, reason: str | None) -> SnapshotError:
    """Return the error for *what*, which cannot be written. *reason* is the system's message, without a path."""
    return SnapshotError(f"{what} {NOT_WRITTEN}: {reason or 'it failed'}.")
