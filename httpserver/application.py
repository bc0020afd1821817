"""What the server needs of the application that it serves."""

from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Application(Protocol):
    """
    A WSGI application that also answers requests which the server cannot pass on.

    If it must truncate a response, its iterator raises `ConnectionResetError`. The `read` of a body raises `OSError`
    with `errno.EMSGSIZE` at a chunk larger than any allowed body, and `TimeoutError` after the time for the body.
    """

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""

    def refuse(self, peer: str, status: int, code: str, detail: str) -> bytes:
        """Log a request from *peer* that the server refuses. Return the response, after which it closes."""

    def must_close(self, environ: MutableMapping[str, Any]) -> bool:
        """Return whether the connection closes after the response, because the body is unread and long."""

    def cancel_all(self) -> None:
        """Cancel the work on all requests, so that those without a response get an error before the server stops."""


def checked(application: Any) -> Application:
    """
    Return *application*.

    Raises:
        TypeError: It is another WSGI application.
    """
    if not isinstance(application, Application):
        raise TypeError(
            f"{application!r} is not the application of runtime_site.wsgi, and this server serves no other."
        )
    return application
