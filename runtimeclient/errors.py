"""
The client's errors.

::

    ClientError                        exit status 1: any other failure
    ├── UsageError                 2   the command or its arguments are invalid; nothing was sent
    ├── ConnectionFailedError      3   no response: refused, unknown host, TLS, timeout
    │   ├── NotARuntimeError       3   the server is not a runtime
    │   └── IncompleteResultError         3   the response ended before it was complete
    ├── NotAuthorisedError         4   the runtime requires an API key, or a different one
    ├── RequestRefusedError        1   the runtime rejected the request, or the query failed
    ├── RefreshFailedError         1   the refresh did not succeed
    └── OutputError                1   the output cannot be written

`exit_status` is public: commands exit with it. `str()` is a sentence for people and never contains the key. It may
quote the server, so pass it through `terminal_text.one_line` before printing it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorPosition:
    """The position of an error in the user's SQL. Lines and columns count from 1."""

    line: int  # line number in the script
    column: int  # column number in characters
    text: str  # the part of the line that belongs to the statement
    source: str = ""  # name of the script; empty for a single statement
    text_column: int = 1  # where `text` starts


class ClientError(Exception):
    """Base of the client's errors."""

    exit_status = 1
    position: ErrorPosition | None = None  # in the user's statement, if known


class UsageError(ClientError):
    """The command or its arguments are invalid. Nothing was sent."""

    exit_status = 2


class ConnectionFailedError(ClientError):
    """No response: refused, unknown host, TLS, timeout."""

    exit_status = 3


class NotARuntimeError(ConnectionFailedError):
    """The server is not a runtime."""


class IncompleteResultError(ConnectionFailedError):
    """The response ended before it was complete. The data read must not be mistaken for the whole result."""


class NotAuthorisedError(ClientError):
    """The runtime returned 401 because it requires an API key, or a different one."""

    exit_status = 4


class RequestRefusedError(ClientError):
    """
    The runtime returned a problem body.

    Attributes:
        status: The HTTP status.
        code: The stable code of the problem, for programs.
        detail: The sentence for people.
        request_id: Identifies the request in the runtime's log; empty if the runtime sent none.
    """

    def __init__(
        self, status: int, code: str, detail: str, request_id: str, position: ErrorPosition | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.position = position
        # The request id is for failures inside the runtime. A caller's own mistake does not require the log.
        reference = f", request {request_id}" if status >= 500 and request_id else ""
        super().__init__(f"{detail} [{code}{reference}]")


class RefreshFailedError(ClientError):
    """The refresh did not succeed."""


class OutputError(ClientError):
    """The output cannot be written."""
