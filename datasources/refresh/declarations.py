"""Checks each dataset's `refresh_sql` before any source is read."""

from msgspec.structs import replace

from datasources.errors import AccelerationDisabledError, TimeColumnMissingError
from datasources.refresh_sql import admit_refresh_sql
from queryengine.engine import StatementGate
from queryengine.errors import StatementError
from runtimeconf.errors import ConfigFault
from runtimeconf.model import DatasetConfig, RefreshMode, RuntimeConfig


def faults(config: RuntimeConfig, gate: StatementGate) -> tuple[ConfigFault, ...]:
    """Return an error for each declared `refresh_sql` that *gate* refuses. It is DuckDB's gate, as DuckDB loads."""
    found = []
    for dataset in config.datasets:
        if dataset.acceleration.refresh_sql is None:
            continue
        try:
            admit_refresh_sql(gate, dataset, dataset.acceleration.refresh_sql)
        except StatementError as exc:
            path = f"{dataset.yaml_path}.acceleration.refresh_sql"
            found.append(ConfigFault(file=config.file_of(path), line=dataset.line, yaml_path=path, message=str(exc)))
    return tuple(found)


def with_admitted_sql(config: RuntimeConfig, gate: StatementGate) -> RuntimeConfig:
    """Return *config*, which has no `faults`, with the SQL that the gate rewrote for DuckDB in each `refresh_sql`."""

    def admitted(dataset: DatasetConfig) -> DatasetConfig:
        written = dataset.acceleration.refresh_sql
        if written is None or (sql := admit_refresh_sql(gate, dataset, written)) in written:
            return dataset
        return replace(dataset, acceleration=replace(dataset.acceleration, refresh_sql=sql))

    return replace(config, datasets=tuple(map(admitted, config.datasets)))


def check_refresh(dataset: DatasetConfig, mode: RefreshMode | None) -> None:
    """
    Check whether a caller may request a refresh of *dataset* in *mode*.

    Raises:
        AccelerationDisabledError, TimeColumnMissingError: See `DatasetControl.request_refresh`.
    """
    if not dataset.acceleration.enabled:
        raise AccelerationDisabledError(dataset.name)
    if mode == "append" and dataset.time_column is None:
        raise TimeColumnMissingError(dataset.name)
