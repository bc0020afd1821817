"""Checks a `refresh_sql`, the SELECT that a refresh runs over its source's rows."""

from datasources.control import AdmittedSql
from queryengine.engine import QueryEngine, StatementGate
from queryengine.errors import StatementNotAllowedError
from runtimeconf.model import DatasetConfig


def admit_refresh_sql(gate: StatementGate | QueryEngine, dataset: DatasetConfig, sql: str) -> AdmittedSql:
    """
    Return the SQL to run for *sql*, which must be a single query over the rows of *dataset*.

    Raises:
        StatementError: The SQL cannot be parsed, or is not such a query.
        QueryError: The SQL cannot be checked at the moment.
    """
    if dataset.view is not None:  # The SQL could raise an error that quotes data that the view leaves out.
        raise StatementNotAllowedError(f"{dataset.name} is a materialized view: a refresh of it takes no refresh_sql.")
    statement = gate.admit(sql, frozenset({dataset.name.lower()}))
    if statement.kind != "select":
        raise StatementNotAllowedError(
            f"The refresh_sql of {dataset.name} must be a query for its rows: SELECT, FROM, WITH or VALUES. SHOW, "
            "DESCRIBE, SUMMARIZE, EXPLAIN and a PIVOT without IN (...) are not allowed."
        )
    # The gate replaces information_schema with session views, which a load does not have.
    if statement.sql.count("_catalog.") > sql.count("_catalog."):
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name} may not read information_schema.")
    if statement.parameters:
        raise StatementNotAllowedError(f"The refresh_sql of {dataset.name} takes no parameters.")
    return AdmittedSql(statement.sql)
