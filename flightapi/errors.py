"""
What can be wrong with a Flight call, before or after its statement runs.

::

    FlightApiError
    ├── InvalidRequestError             the caller sent something that cannot be read
    │   ├── MalformedMessageError       bytes that are not the message that belongs there
    │   ├── InvalidSqlTextError         the text of a statement is not UTF-8
    │   └── UploadError                 the parameters of DoPut are no sound Arrow stream
    │       └── UploadTooLargeError     they take more bytes than are read
    ├── NotFoundError                   the caller names something that is not there
    │   ├── UnknownTicketError          a ticket that this runtime did not give out
    │   └── UnknownPreparedStatementError   a prepared statement that is closed, expired or was never made
    ├── HandshakesBusyError             more handshakes wait for their message than are read
    ├── ReadOnlyError                   the call would write
    ├── UnsupportedError                the format has it and the runtime does not

A table at the edge says which gRPC status each of them has. `code` is public and stable.
"""

from __future__ import annotations


class FlightApiError(Exception):
    """Base of this room's errors. `str()` is a sentence for the caller: no traceback, no path, no version."""

    code = "flight_error"


class InvalidRequestError(FlightApiError):
    """The caller sent something that cannot be read."""

    code = "invalid_request"


class MalformedMessageError(InvalidRequestError):
    """Bytes are not the message that belongs there."""

    code = "malformed_message"


class InvalidSqlTextError(InvalidRequestError):
    """The text of a statement is not UTF-8."""

    code = "invalid_sql_text"

    def __init__(self) -> None:
        super().__init__("The statement is neither a Flight SQL command nor text in UTF-8.")


class UploadError(InvalidRequestError):
    """What DoPut sent as parameters is no sound Arrow stream, or more than one row."""

    code = "invalid_upload"


class UploadTooLargeError(UploadError):
    """The parameters take more than `limit_bytes` on the wire."""

    code = "upload_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"The parameters take more than {limit_bytes:,} bytes.")


class NotFoundError(FlightApiError):
    """The caller names something that is not there."""

    code = "not_found"


class UnknownTicketError(NotFoundError):
    """The ticket is not one that this runtime gave out, or not whole."""

    code = "unknown_ticket"

    def __init__(self) -> None:
        super().__init__("The ticket is unknown: ask for a new one with GetFlightInfo.")


class UnknownPreparedStatementError(NotFoundError):
    """The prepared statement was closed, has expired, or was never made by this caller."""

    code = "unknown_prepared_statement"

    def __init__(self) -> None:
        super().__init__("The prepared statement is unknown: it was closed, it has expired, or it was never made.")


class HandshakesBusyError(FlightApiError):
    """Handshakes whose message does not come keep this one from being read."""

    code = "handshakes_busy"

    def __init__(self) -> None:
        super().__init__(
            "Too many handshakes wait for their message: try again, or send the metadata authorization: Bearer <key>."
        )


class ReadOnlyError(FlightApiError):
    """The call would write, and everything here is read-only."""

    code = "read_only"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} would write, and the runtime is read-only.")


class UnsupportedError(FlightApiError):
    """The format has it and this runtime does not."""

    code = "not_supported"
