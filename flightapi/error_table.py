"""
The table that maps the errors of every package to gRPC statuses.

A test proves that every error class that can reach this endpoint has its own row. Some clients retry a call with the
status UNKNOWN, INTERNAL, UNAVAILABLE or ABORTED, so none of these statuses is used for a caller's error.
"""

from bisect import bisect_left
from collections.abc import Mapping
from urllib.parse import quote_from_bytes

from grpc import StatusCode
from msgspec import Struct

from authkeys import errors as auth
from datasources import errors as data
from flightapi import errors as flight
from queryengine import errors as query
from runtimeconf import errors as conf
from system import errors as system

#: The message of an internal error; the real one is only logged.
HIDDEN_DETAIL = "Internal error. Look up this request id in the server log."
INTERNAL_CODE = "internal_error"

#: Longer messages are cut because they are sent as trailing metadata, which clients limit to 8 or 16 KiB in total.
MAX_MESSAGE_BYTES = 3000
#: The limit after encoding: gRPC escapes everything except printable ASCII as %XX ("gRPC over HTTP2", Status-Message).
MAX_ENCODED_BYTES = 4500

_CUT = "..."

#: The status of each class. A subclass without a row has the status of its base.
STATUSES: Mapping[type[Exception], StatusCode] = {
    query.QueryError: StatusCode.INTERNAL,
    query.StatementError: StatusCode.INVALID_ARGUMENT,
    query.EmptyStatementError: StatusCode.INVALID_ARGUMENT,
    query.SqlSyntaxError: StatusCode.INVALID_ARGUMENT,
    query.SqlError: StatusCode.INVALID_ARGUMENT,
    query.ParameterError: StatusCode.INVALID_ARGUMENT,
    query.StatementNotAllowedError: StatusCode.PERMISSION_DENIED,
    query.QueryTimeoutError: StatusCode.DEADLINE_EXCEEDED,
    query.QueryCancelledError: StatusCode.CANCELLED,
    query.ResourceLimitError: StatusCode.RESOURCE_EXHAUSTED,
    query.RateLimitError: StatusCode.RESOURCE_EXHAUSTED,
    query.EngineBusyError: StatusCode.RESOURCE_EXHAUSTED,
    query.EngineUnavailableError: StatusCode.UNAVAILABLE,
    query.DatasetNotLoadedError: StatusCode.UNAVAILABLE,
    # Not INTERNAL or ABORTED: a retry could kill the next worker too.
    query.EngineWorkerDiedError: StatusCode.DATA_LOSS,
    flight.FlightApiError: StatusCode.INTERNAL,
    flight.InvalidRequestError: StatusCode.INVALID_ARGUMENT,
    flight.MalformedMessageError: StatusCode.INVALID_ARGUMENT,
    flight.InvalidSqlTextError: StatusCode.INVALID_ARGUMENT,
    flight.UploadError: StatusCode.INVALID_ARGUMENT,
    flight.UploadTooLargeError: StatusCode.RESOURCE_EXHAUSTED,
    flight.NotFoundError: StatusCode.NOT_FOUND,
    flight.UnknownTicketError: StatusCode.NOT_FOUND,
    flight.UnknownPreparedStatementError: StatusCode.NOT_FOUND,
    flight.HandshakesBusyError: StatusCode.RESOURCE_EXHAUSTED,
    flight.CallsBusyError: StatusCode.RESOURCE_EXHAUSTED,
    flight.ReadOnlyError: StatusCode.PERMISSION_DENIED,
    flight.UnsupportedError: StatusCode.UNIMPLEMENTED,
    data.DatasetError: StatusCode.INTERNAL,
    data.DatasetsUnavailableError: StatusCode.UNAVAILABLE,
    auth.AuthKeysError: StatusCode.INTERNAL,
    auth.AccessNotBuiltError: StatusCode.UNAVAILABLE,
    auth.NotPermittedError: StatusCode.PERMISSION_DENIED,
    conf.RuntimeConfError: StatusCode.INTERNAL,
    system.StateDirectoryError: StatusCode.INTERNAL,
}

#: Internal errors, whose messages may contain names that the caller did not write.
_HIDDEN = (data.DatasetError, auth.SaltError, conf.RuntimeConfError, system.StateDirectoryError)


class Refusal(Struct, frozen=True, kw_only=True):
    """The status, code and message for the caller. An internal error is also logged."""

    status: StatusCode
    code: str
    message: str
    is_internal: bool = False


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal for *error*. An error that is not in the table is an internal error."""
    for kind in type(error).__mro__:
        status = STATUSES.get(kind)
        if status is not None:
            hidden = isinstance(error, _HIDDEN)
            message = HIDDEN_DETAIL if hidden else shortened(str(error))
            return Refusal(status=status, code=code_of(error), message=message, is_internal=hidden)
    return Refusal(status=StatusCode.INTERNAL, code=INTERNAL_CODE, message=HIDDEN_DETAIL, is_internal=True)


def code_of(error: BaseException) -> str:
    """Return the stable code of *error*."""
    return str(getattr(error, "code", INTERNAL_CODE)) if isinstance(error, tuple(STATUSES)) else INTERNAL_CODE


def shortened(message: str) -> str:
    """Return *message*, cut between characters to `MAX_MESSAGE_BYTES` and `MAX_ENCODED_BYTES`."""
    plain = message.encode("utf-8", "replace").decode()
    if _fits(plain):
        return plain
    too_long = bisect_left(range(MAX_MESSAGE_BYTES), True, key=lambda end: not _fits(plain[:end] + _CUT))
    return plain[: too_long - 1] + _CUT


def _fits(text: str) -> bool:
    plain = text.encode()
    if len(plain) > MAX_MESSAGE_BYTES:
        return False
    return len(quote_from_bytes(plain, safe="!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~ ")) <= MAX_ENCODED_BYTES
