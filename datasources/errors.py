"""
What can go wrong with datasets.

::

    DatasetError
    ├── UnknownDatasetError           no dataset has that name
    ├── AccelerationDisabledError     the dataset is read once at start only
    ├── TimeColumnMissingError        append was asked for, and the dataset has no time_column
    ├── DatasetsUnavailableError      no process answers for the datasets at the moment
    ├── SourceError                   the source cannot be read, or is not what it should be
    │   └── SchemaChangedError        columns or types differ from those served
    └── SnapshotError                 a snapshot cannot be built, verified or published
"""

from __future__ import annotations

#: What a run that was cut off by the end of the runtime says, in the list of refreshes.
INTERRUPTED = "interrupted"


class DatasetError(Exception):
    """Base of this room's errors. `str()` is a sentence without paths that the caller did not write."""

    code = "dataset_error"


class UnknownDatasetError(DatasetError):
    """No dataset has that name."""

    code = "dataset_not_found"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Dataset {name} not found.")


class AccelerationDisabledError(DatasetError):
    """The dataset is read once at start and not refreshed."""

    code = "acceleration_disabled"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Dataset {name} does not have acceleration enabled.")


class TimeColumnMissingError(DatasetError):
    """A refresh was to append, and nothing declares which rows are newer."""

    code = "time_column_missing"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Dataset {name} has no time_column, by which refresh_mode append finds newer rows.")


class DatasetsUnavailableError(DatasetError):
    """No process answers for the datasets at the moment."""

    code = "datasets_unavailable"

    def __init__(self) -> None:
        super().__init__("The refresher does not answer at the moment: try again.")


class SourceError(DatasetError):
    """
    The source cannot be read, or is not what it should be.

    With *broke_library*, what reads it is not fit for another load, nor is its process.
    """

    code = "source_error"

    def __init__(self, message: str, *, broke_library: bool = False) -> None:
        self.broke_library = broke_library
        super().__init__(message)


class SchemaChangedError(SourceError):
    """Columns or types differ from those served, and `on_schema_change` is `fail`."""

    code = "schema_changed"


class SnapshotError(DatasetError):
    """A snapshot cannot be built, verified or published."""

    code = "snapshot_error"


def not_written(what: str, reason: str | None) -> SnapshotError:
    """Return the error about *what* the disk did not take; *reason* is the system's, without a path, if it has one."""
    return SnapshotError(f"{what} cannot be written to the state directory: {reason or 'it failed'}.")
