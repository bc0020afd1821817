"""The interface of the application that the server serves."""

from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Application(Protocol):
    """
    A WSGI application that also responds to requests that the server cannot pass on.

    If the application must truncate a response, its iterator raises `ConnectionResetError`. Reading a body raises
    `OSError` with `errno.EMSGSIZE` for a chunk larger than any allowed body, and `TimeoutError` when the time for the
    body is over.
    """

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Handle one request."""

    def refuse(self, peer: str, status: int, code: str, detail: str) -> bytes:
        """Log a request from *peer* that the server refuses, and return the response. The connection then closes."""

    def must_close(self, environ: MutableMapping[str, Any]) -> bool:
        """Return whether the connection must close after the response because a long body is unread."""

    def cancel_all(self) -> None:
        """Cancel the work on all requests, so that those without a response get an error before the server stops."""


def checked(application: Any) -> Application:
    """
    Return *application*.

    Raises:
        TypeError: The argument is another WSGI application.
    """
    if not isinstance(application, Application):
        raise TypeError(
            f"{application!r} is not the application of runtime_site.wsgi, the only one that this server supports."
        )
    return application
