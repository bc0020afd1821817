"""
The errors of Flight calls, except engine errors.

::

    FlightApiError
    ├── InvalidRequestError             the request cannot be read
    │   ├── MalformedMessageError       bytes are not the expected message
    │   ├── InvalidSqlTextError         the text of a statement is not UTF-8
    │   └── UploadError                 the parameters of DoPut are not a valid Arrow stream
    │       └── UploadTooLargeError     they exceed the size limit
    ├── NotFoundError                   the request names something that does not exist
    │   ├── UnknownTicketError          a ticket that this runtime did not issue
    │   └── UnknownPreparedStatementError   a prepared statement that is closed, expired or never existed
    ├── HandshakesBusyError             too many handshakes wait for their message
    ├── CallsBusyError                  too many calls are open
    ├── ReadOnlyError                   the call would write
    └── UnsupportedError                the protocol has it, but not this runtime

`error_table` maps each error to a gRPC status. No message contains a traceback, a path or a version.
"""


class FlightApiError(Exception):
    """Base of this package's errors. `str()` is a sentence for the caller (`detail` by default). `code` is public."""

    code = "flight_error"
    detail = ""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.detail)


class InvalidRequestError(FlightApiError):
    """The request cannot be read."""

    code = "invalid_request"


class MalformedMessageError(InvalidRequestError):
    """Bytes are not the expected message."""

    code = "malformed_message"


class InvalidSqlTextError(InvalidRequestError):
    """The text of a statement is not UTF-8."""

    code = "invalid_sql_text"
    detail = "The statement is neither a Flight SQL command nor text in UTF-8."


class UploadError(InvalidRequestError):
    """The parameters of DoPut are not a valid Arrow stream, or have more than one row."""

    code = "invalid_upload"


class UploadTooLargeError(UploadError):
    """The parameters take more than `limit_bytes` on the wire."""

    code = "upload_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"The parameters take more than {limit_bytes:,} bytes.")


class NotFoundError(FlightApiError):
    """The request names something that does not exist."""

    code = "not_found"


class UnknownTicketError(NotFoundError):
    """This runtime did not issue the ticket, or the ticket is damaged."""

    code = "unknown_ticket"
    detail = "The ticket is unknown: ask for a new one with GetFlightInfo."


class UnknownPreparedStatementError(NotFoundError):
    """The prepared statement is closed, has expired, or was never created by this key."""

    code = "unknown_prepared_statement"
    detail = "The prepared statement is unknown: it was closed, has expired, or never existed."


class HandshakesBusyError(FlightApiError):
    """This handshake cannot be read because other handshakes are waiting for their messages."""

    code = "handshakes_busy"
    detail = "Too many handshakes are waiting: try again, or send the metadata authorization: Bearer <key>."


class CallsBusyError(FlightApiError):
    """Too many calls are open, and none of them can be ended to make room for this one."""

    code = "calls_busy"
    detail = "Too many calls are open: close unused ones, or try again."


class ReadOnlyError(FlightApiError):
    """The call would write, and everything here is read-only."""

    code = "read_only"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} would write, and the runtime is read-only.")


class UnsupportedError(FlightApiError):
    """The protocol defines the feature, but this runtime does not support it."""

    code = "not_supported"
