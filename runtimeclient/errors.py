"""
What can go wrong for somebody who talks to a runtime.

::

    ClientError                        exit status 1
    ├── UsageError                 2   the command or its arguments make no sense; nothing was sent
    ├── ConnectionFailedError      3   no answer: refused, unknown host, TLS, silence
    │   ├── NotARuntimeError       3   something answered, but not as a runtime does
    │   └── AnswerCutError         3   an answer began and did not come to its end
    ├── NotAuthorisedError         4   the runtime wants a key, or another one
    ├── RequestRefusedError        1   the runtime understood and said no, or the query failed
    ├── StatementsFailedError      1   statements of a script failed, and the others were run all the same
    ├── RefreshFailedError         1   the refresh that was waited for did not succeed
    ├── NotReadyError              1   a component of the runtime is not ready
    ├── ChartError                 1   the answer cannot be drawn
    └── OutputError                1   the answer cannot be written where it should go

`exit_status` is public: the commands exit with it. `str()` is a sentence for people; it holds no key. It may quote what
a server said, so whoever prints it passes it through `screen.one_line`.
"""

from __future__ import annotations

from runtimeclient.excerpts import Place


class ClientError(Exception):
    """
    Base of this room's errors.

    Attributes:
        place: Where in the user's statement it is, if that is known.
    """

    exit_status = 1
    place: Place | None = None


class UsageError(ClientError):
    """The command or its arguments make no sense; nothing was sent."""

    exit_status = 2


class ConnectionFailedError(ClientError):
    """No answer came: refused, unknown host, TLS, silence."""

    exit_status = 3


class NotARuntimeError(ConnectionFailedError):
    """Something answered, but not as a runtime does."""


class AnswerCutError(ConnectionFailedError):
    """An answer began and did not come to its end: what was read of it must not be taken for the whole."""


class NotAuthorisedError(ClientError):
    """The runtime answered 401: it wants a key, or another one."""

    exit_status = 4


class RequestRefusedError(ClientError):
    """
    The runtime answered with a problem body.

    Attributes:
        status: The HTTP status.
        code: The stable code of the problem, for programs.
        detail: The sentence, for people.
        request_id: Names the request in the runtime's log; empty when the runtime gave none.
    """

    def __init__(self, status: int, code: str, detail: str, request_id: str, place: Place | None = None) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.place = place
        # A failure inside the runtime is looked up in its log, by the id; the caller's own mistake is not.
        reference = f", request {request_id}" if status >= 500 and request_id else ""
        super().__init__(f"{detail} [{code}{reference}]")


class StatementsFailedError(ClientError):
    """Statements of a script failed, and the others were run all the same."""


class RefreshFailedError(ClientError):
    """The refresh that was waited for did not succeed."""


class NotReadyError(ClientError):
    """A component of the runtime is neither ready nor disabled."""


class ChartError(ClientError):
    """The answer cannot be drawn as it was asked for."""


class OutputError(ClientError):
    """The answer cannot be written where it should go."""
