"""
The errors of an HTTP request, before or after its statement runs.

::

    SqlApiError
    ├── RouteNotFoundError              no route has this path
    ├── QueryNotFoundError              the caller has no statement with this id
    ├── HistoryDisabledError            the statement history is disabled
    ├── MethodNotAllowedError           the route exists for other methods
    ├── InvalidHostError                the Host header is malformed or not allowed
    ├── CrossSiteRequestError           a web page of another site sent the request
    ├── NotAcceptableError              `Accept` names no available type
    ├── InvalidParameterError           a parameter of the query string is wrong
    ├── BodyError                       the body cannot be read or is invalid
    │   ├── LengthRequiredError         the server needs a Content-Length
    │   ├── BodyTooLargeError           more than `runtime.http.max_body_bytes`
    │   ├── ContentEncodingError        the body is compressed
    │   ├── CharsetError                the declared charset is not UTF-8
    │   └── InvalidJsonError            the body is not valid JSON for the route
    ├── RequestTimeoutError             the request was not complete in time
    ├── ClientGoneError                 the client disconnected before its response began
    └── AnswerCutError                  the response was truncated after it began

`sqlapi.error_table` maps these errors to statuses. This module imports no framework.
"""

import errno
from collections.abc import Sequence


class SqlApiError(Exception):
    """Base of this package's errors. `str()` is a sentence for the caller (`detail` by default). `code` is public."""

    code = "request_error"
    detail = ""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.detail)


class RouteNotFoundError(SqlApiError):
    """No route has this path."""

    code = "not_found"
    detail = "No such route."


class QueryNotFoundError(SqlApiError):
    """No running or queued statement of the caller has this id."""

    code = "query_not_found"
    detail = "No running or queued statement has this id."


class HistoryDisabledError(SqlApiError):
    """The statement history is disabled."""

    code = "history_disabled"
    detail = "The history is off: runtime.history.enabled is false."


class MethodNotAllowedError(SqlApiError):
    """The route exists only for the methods `allowed`."""

    code = "method_not_allowed"

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(allowed)
        super().__init__(f"This route takes {', '.join(self.allowed)} only.")


class InvalidHostError(SqlApiError):
    """The Host header is malformed or not allowed."""

    code = "invalid_host"
    detail = "The Host header is missing, malformed, or not in runtime.http.allowed_hosts."


class CrossSiteRequestError(SqlApiError):
    """A web page of another site sent a request that it must not send."""

    code = "cross_site_request"
    detail = "Web pages on other origins cannot call this route."


class NotAcceptableError(SqlApiError):
    """`Accept` names no available type."""

    code = "not_acceptable"

    def __init__(self, offered: Sequence[str]) -> None:
        super().__init__(f"Accept must list a type that this route returns: {', '.join(offered)}.")


class InvalidParameterError(SqlApiError):
    """A parameter of the query string is wrong."""

    code = "invalid_parameter"


class BodyError(SqlApiError):
    """The body cannot be read, or is invalid."""

    code = "invalid_body"


class LengthRequiredError(BodyError):
    """The body is chunked, which this server does not decode."""

    code = "length_required"
    detail = "This server does not support chunked bodies: send Content-Length."


class BodyTooLargeError(BodyError):
    """The body is larger than the limit."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"The body is larger than {limit_bytes} bytes, the limit of runtime.http.max_body_bytes.")


class ContentEncodingError(BodyError):
    """The body is compressed."""

    code = "unsupported_content_encoding"
    detail = "Compressed bodies are not supported: send the body without Content-Encoding."


class CharsetError(BodyError):
    """The declared charset is not UTF-8."""

    code = "unsupported_charset"
    detail = "The body must be UTF-8: omit charset or set it to utf-8."


class InvalidJsonError(BodyError):
    """The body is not valid JSON for the route."""

    code = "invalid_json"


class RequestTimeoutError(SqlApiError):
    """The request headers or body did not arrive within the server's time limit."""

    code = "request_timeout"
    detail = "The request took too long to arrive: send the headers and body without long pauses."


class ClientGoneError(SqlApiError):
    """The client disconnected before its response began, so the statement was stopped."""

    code = "client_closed_request"
    detail = "The client closed the connection, so the statement was stopped."


class AnswerCutError(SqlApiError, ConnectionResetError):
    """
    The response was truncated after it began.

    The body iterator raises it, because WSGI servers expect this error for a lost connection. The server must then
    close the connection so that the response cannot look complete: without the last chunk, or with a reset if the end
    of the connection marks the end of the response.
    """

    code = "answer_cut"
    detail = "The response was cut off: the statement failed after the first bytes were sent."

    def __init__(self) -> None:
        super().__init__()
        self.errno = errno.ECONNRESET  # gunicorn logs a traceback for any other errno.
