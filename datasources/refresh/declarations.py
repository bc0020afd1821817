"""Check the `refresh_sql` of datasets, before anything is read."""

from typing import TYPE_CHECKING

from datasources.control import AdmittedSql
from datasources.errors import AccelerationDisabledError, TimeColumnMissingError
from queryengine.engine import QueryEngine
from queryengine.errors import StatementError, StatementNotAllowedError
from runtimeconf.errors import ConfigFault
from runtimeconf.model import DatasetConfig, RefreshMode, RuntimeConfig

if TYPE_CHECKING:  # The process that serves HTTP loads no gate.
    from queryengine.gate.gate import Gate


def faults(config: RuntimeConfig, gate: "Gate") -> tuple[ConfigFault, ...]:
    """Return a fault for each `refresh_sql` in the YAML that may not run."""
    found = []
    for dataset in config.datasets:
        if dataset.acceleration.refresh_sql is None:
            continue
        try:
            admit_refresh_sql(gate, dataset, dataset.acceleration.refresh_sql)
        except StatementError as exc:
            path = f"{dataset.yaml_path}.acceleration.refresh_sql"
            found.append(ConfigFault(file=config.file, line=dataset.line, yaml_path=path, message=str(exc)))
    return tuple(found)


def check_refresh(dataset: DatasetConfig, mode: RefreshMode | None) -> None:
    """
    Check whether a caller may request a refresh of *dataset* in *mode*.

    Raises:
        AccelerationDisabledError, TimeColumnMissingError: As `DatasetControl.request_refresh`.
    """
    if not dataset.acceleration.enabled:
        raise AccelerationDisabledError(dataset.name)
    if mode == "append" and dataset.time_column is None:
        raise TimeColumnMissingError(dataset.name)


def admit_refresh_sql(gate: "Gate | QueryEngine", dataset: DatasetConfig, sql: str) -> AdmittedSql:
    """
    Return the SQL to run for *sql*, which must be one query over the rows of its own dataset.

    Raises:
        StatementError: It cannot be parsed, or is not such a query.
        QueryError: It cannot be checked at the moment.
    """
    if dataset.view is not None:  # It could raise an error that quotes what the view leaves out.
        raise StatementNotAllowedError(f"{dataset.name} is a materialized view: a refresh of it takes no refresh_sql.")
    statement = gate.admit(sql, frozenset({dataset.name.lower()}))
    if statement.kind != "select":
        raise StatementNotAllowedError(
            f"The refresh_sql of {dataset.name} must be a query for its rows: SELECT, FROM, WITH or VALUES. SHOW, "
            "DESCRIBE, SUMMARIZE, EXPLAIN and a PIVOT without IN (...) are not allowed."
        )
    # The gate replaces information_schema by views of a session, which a load does not have.
    if statement.sql.count("_catalog.") > sql.count("_catalog."):
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name} may not read information_schema.")
    if statement.parameters:
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name} takes no parameters.")
    return AdmittedSql(statement.sql)
