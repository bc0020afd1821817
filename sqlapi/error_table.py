"""
The table that maps the errors of all packages to HTTP statuses.

Each package raises its own errors and knows nothing about HTTP. A test proves that every error class has a row.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from authkeys import errors as auth
from datasources import errors as data
from queryengine import errors as query
from runtimeconf import errors as conf
from sqlapi import errors as api
from system import errors as system
from telemetry import errors as telemetry

#: The detail of an internal error, whose own message is only logged.
HIDDEN_DETAIL = "Internal error. Look up this request id in the server log."
INTERNAL_CODE = "internal_error"

#: The status of a request whose client has disconnected. Only the access log shows it.
CLIENT_CLOSED_REQUEST = 499

#: Seconds until a client should retry when something is unavailable.
RETRY_AFTER_S = 1

#: The status of each class. A subclass without a row has the status of its base.
STATUSES: Mapping[type[Exception], int] = {
    query.QueryError: 500,
    query.StatementError: 400,
    query.EmptyStatementError: 400,
    query.SqlSyntaxError: 400,
    query.SqlError: 400,
    query.ParameterError: 400,
    query.StatementNotAllowedError: 403,
    query.QueryTimeoutError: 504,
    query.QueryCancelledError: 503,
    query.ResourceLimitError: 507,
    query.RateLimitError: 429,
    query.EngineBusyError: 503,
    query.EngineUnavailableError: 503,
    query.DatasetNotLoadedError: 503,
    query.EngineWorkerDiedError: 500,
    data.DatasetError: 500,
    data.UnknownDatasetError: 404,
    data.AccelerationDisabledError: 400,
    data.TimeColumnMissingError: 400,
    data.DatasetsUnavailableError: 503,
    data.SourceError: 500,
    data.SchemaChangedError: 500,
    data.SourceEmptyError: 500,
    data.SnapshotError: 500,
    data.SharedStorageError: 500,
    auth.AuthKeysError: 500,
    auth.SaltError: 500,
    auth.AccessNotBuiltError: 503,
    auth.NotPermittedError: 403,
    conf.RuntimeConfError: 500,
    conf.ConfigError: 500,
    system.StateDirectoryError: 500,
    telemetry.TelemetryError: 500,
    telemetry.TelemetryUnavailableError: 503,
    api.SqlApiError: 400,
    api.RouteNotFoundError: 404,
    api.QueryNotFoundError: 404,
    api.HistoryDisabledError: 404,
    api.MethodNotAllowedError: 405,
    api.InvalidHostError: 400,
    api.CrossSiteRequestError: 403,
    api.NotAcceptableError: 406,
    api.InvalidParameterError: 400,
    api.BodyError: 400,
    api.LengthRequiredError: 411,
    api.BodyTooLargeError: 413,
    api.ContentEncodingError: 415,
    api.CharsetError: 415,
    api.InvalidJsonError: 400,
    api.RequestTimeoutError: 408,
    api.ClientGoneError: CLIENT_CLOSED_REQUEST,
    api.AnswerCutError: 500,
}

#: Internal errors, whose messages may contain text that no caller wrote.
_HIDDEN = (data.SourceError, data.SnapshotError, system.StateDirectoryError, auth.SaltError, conf.RuntimeConfError)


class Refusal(Struct, frozen=True, kw_only=True):
    """An error as the caller sees it: the parts of a problem document."""

    status: int
    code: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False


def refusal_of(error: Exception) -> Refusal:
    """Return the part of *error* that the caller sees. An error without a row is internal and reveals nothing."""
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
    if status is None or isinstance(error, _HIDDEN):
        return Refusal(status=status or 500, code=code_of(error), detail=HIDDEN_DETAIL, is_internal=True)
    return Refusal(status=status, code=code_of(error), detail=str(error), headers=_headers(error, status))


def code_of(error: BaseException) -> str:
    """Return the stable code of *error*."""
    return str(getattr(error, "code", INTERNAL_CODE)) if isinstance(error, tuple(STATUSES)) else INTERNAL_CODE


def _headers(error: Exception, status: int) -> dict[str, str]:
    match error:
        case api.MethodNotAllowedError(allowed=allowed):
            return {"Allow": ", ".join(allowed)}
        case api.ContentEncodingError():
            return {"Accept-Encoding": "identity"}
        case query.EngineBusyError(retry_after_s=seconds) | query.RateLimitError(retry_after_s=seconds):
            return {"Retry-After": str(seconds)}
        case query.QueryCancelledError():
            return {}  # The statement was cancelled on purpose, so clients must not retry it automatically.
    return {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
