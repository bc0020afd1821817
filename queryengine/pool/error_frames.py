"""Rebuild the errors that another process has sent by their code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from queryengine.errors import (
    DatasetNotLoadedError,
    EmptyStatementError,
    EngineBusyError,
    EngineUnavailableError,
    EngineWorkerDiedError,
    ParameterError,
    QueryCancelledError,
    QueryError,
    QueryTimeoutError,
    ResourceLimitError,
    SqlError,
    SqlSyntaxError,
    StatementError,
    StatementNotAllowedError,
)

logger = logging.getLogger(__name__)


def _from_message(kind: type[QueryError]) -> Callable[[Mapping[str, Any]], QueryError]:
    return lambda fields: kind(fields["message"])


#: The function that rebuilds an error from the fields of its frame, by code.
ERRORS: Mapping[str, Callable[[Mapping[str, Any]], QueryError]] = MappingProxyType(
    {
        kind.code: _from_message(kind)
        for kind in (
            QueryError,
            StatementError,
            SqlSyntaxError,
            SqlError,
            ParameterError,
            StatementNotAllowedError,
            ResourceLimitError,
            EngineUnavailableError,
            DatasetNotLoadedError,
        )
    }
    | {
        EmptyStatementError.code: lambda _: EmptyStatementError(),
        QueryTimeoutError.code: lambda fields: QueryTimeoutError(fields["limit_s"]),
        QueryCancelledError.code: lambda _: QueryCancelledError(),
        EngineBusyError.code: lambda fields: EngineBusyError(fields["retry_after_s"]),
        EngineWorkerDiedError.code: lambda _: EngineWorkerDiedError(),
    }
)


def rebuild_error(fields: Mapping[str, Any]) -> QueryError:
    """Return the error that the *fields* of an ERROR frame describe."""
    code = fields.get("code")
    try:
        return ERRORS[str(code)](fields)
    except (KeyError, TypeError):
        logger.exception("an engine worker sent an unknown error", extra={"fields": {"code": code}})
        return QueryError("The statement failed.")
