"""Rebuild the errors that another process has sent by their code."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from queryengine import errors
from queryengine.errors import QueryError

logger = logging.getLogger(__name__)


def _rebuilder(kind: type[QueryError]) -> Callable[[Mapping[str, Any]], QueryError]:
    """Return a function that makes *kind* from the fields that its constructor takes."""
    names = list(inspect.signature(kind).parameters) if "__init__" in vars(kind) else ["message"]
    return lambda fields: kind(*(fields[name] for name in names))


#: The function that rebuilds an error from the fields of its frame, by code.
ERRORS: Mapping[str, Callable[[Mapping[str, Any]], QueryError]] = MappingProxyType(
    {
        kind.code: _rebuilder(kind)
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, QueryError)
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
