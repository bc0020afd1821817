"""Checks a `refresh_sql`, the SELECT that a refresh runs over its source's rows."""

from datasources.control import AdmittedSql
from queryengine.engine import QueryEngine, StatementGate
from queryengine.errors import StatementNotAllowedError
from queryengine.gate.arrays import NOT_HERE
from runtimeconf.model import DatasetConfig


def admit_refresh_sql(gate: StatementGate | QueryEngine, dataset: DatasetConfig, sql: str) -> AdmittedSql:
    """
    Return the SQL to run for *sql*, which must be a single query over the rows of *dataset*.

    Raises:
        StatementError: The SQL cannot be parsed, or is not such a query.
        QueryError: The SQL cannot be checked at the moment.
    """
    if dataset.view is not None:  # The SQL could raise an error that quotes data that the view leaves out.
        raise StatementNotAllowedError(
            f"{dataset.name} is a materialized view: its refresh does not accept a refresh_sql."
        )
    statement = gate.admit(sql, frozenset({dataset.name.lower()}))
    if statement.kind != "select":
        raise StatementNotAllowedError(
            f"The refresh_sql of {dataset.name} must be a query that returns rows: SELECT, FROM, WITH or VALUES. SHOW, "
            "DESCRIBE, SUMMARIZE, EXPLAIN and a PIVOT without IN (...) are not allowed."
        )
    # The gate replaces information_schema with session views, which a load does not have.
    if statement.sql.count("_catalog.") > sql.count("_catalog."):
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name} cannot read information_schema.")
    if statement.parameters:
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name} cannot have parameters.")
    if statement.makes_arrays:
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name}: {NOT_HERE}")
    return AdmittedSql(statement.sql)
