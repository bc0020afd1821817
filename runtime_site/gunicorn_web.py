"""
gunicorn as the HTTP server: its settings from the runtime YAML, its worker class and its log.

The worker differs from gunicorn's threaded one in three things: what gunicorn itself refuses is a problem body like any
other refusal, an answer that is cut short never looks complete, and a connection with an unread body is closed.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from gunicorn.glogging import Logger
from gunicorn.http import errors as http_errors
from gunicorn.workers.gthread import ThreadWorker

from runtime_site import startup
from runtime_site.connections import reset
from runtimeconf.model import RuntimeConfig
from sqlapi.access_log import log_refused_request
from sqlapi.body import CLOSE_CONNECTION
from sqlapi.errors import AnswerCutError
from sqlapi.problems import problem

logger = logging.getLogger(__name__)

#: Threads beyond those that run or await a statement: health checks, status, refusals, bodies on their way in.
SPARE_THREADS = 32
#: Seconds between the end of a stopping worker's statements and the arbiter's SIGKILL.
STOP_MARGIN_S = 2.0
#: Seconds without a heartbeat until the arbiter takes a worker for dead.
HEARTBEAT_TIMEOUT_S = 120

#: What gunicorn refuses before the application runs: exception class, status, code, sentence.
_REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (http_errors.LimitRequestLine, 414, "uri_too_long", "The request line is too long."),
    (http_errors.LimitRequestHeaders, 431, "headers_too_large", "The request headers are too large."),
    (http_errors.ExpectationFailed, 417, "expectation_failed", "The Expect header asks for something unknown."),
    (http_errors.UnsupportedTransferCoding, 501, "unsupported_transfer_coding", "Only chunked is understood."),
    (http_errors.ParseException, 400, "malformed_request", "The request is not well-formed HTTP/1.1."),
)


def options(config: RuntimeConfig) -> dict[str, Any]:
    """Return gunicorn's settings for *config*, one process with threads."""
    settings: dict[str, Any] = {
        "bind": [str(config.http.bind)],
        "worker_class": "runtime_site.gunicorn_web.WebWorker",
        "workers": 1,
        "threads": config.query.workers + config.query.max_queued + SPARE_THREADS,
        "timeout": HEARTBEAT_TIMEOUT_S,
        "graceful_timeout": max(1, round(config.shutdown_timeout_s)),
        "keepalive": 15,
        "logger_class": "runtime_site.gunicorn_web.ServerLogger",
        "proc_name": "web",
        "control_socket_disable": True,
        # No header of a caller may change the path, the peer or the scheme.
        "forwarder_headers": "",
        "forwarded_allow_ips": "",
    }
    if config.tls.enabled:
        settings |= {"certfile": str(config.tls.certificate_file), "keyfile": str(config.tls.key_file)}
    return settings


class ServerLogger(Logger):
    """gunicorn's own log, through the handlers of this project; its access log is not used."""

    def setup(self, cfg: Any) -> None:
        """Leave handlers and formats to Django's LOGGING."""
        self.cfg = cfg
        self._access_log_enabled = False
        self.loglevel = self.LOG_LEVELS.get(cfg.loglevel.lower(), logging.INFO)
        # gunicorn says at INFO what an operator need not read: worker numbers, signals by name.
        self.error_log.setLevel(max(self.loglevel, logging.WARNING))
        self.error_log.propagate = True


class WebWorker(ThreadWorker):
    """A threaded worker that answers refusals with problem bodies and cuts a failed answer visibly."""

    wsgi: Any

    def load_wsgi(self) -> None:
        """Load the application and wrap it in what needs the response object and the socket."""
        super().load_wsgi()
        self.wsgi = _CutVisibly(self.wsgi)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin a graceful stop (SIGTERM): what still runs shortly before the end is cancelled with a typed error."""
        super().handle_exit(sig, frame)
        delay_s = max(self.cfg.graceful_timeout - STOP_MARGIN_S, self.cfg.graceful_timeout / 2)
        timer = threading.Timer(delay_s, startup.cancel_statements)
        timer.daemon = True
        timer.start()

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """
        Answer what went wrong outside the application with a problem body, except on a failed TLS connection.

        Nothing of the request is logged but its peer: a malformed header may hold a key.
        """
        peer = addr[0] if isinstance(addr, tuple) and addr else ""
        if isinstance(exc, ssl.SSLError):
            # The peer's doing (plain HTTP, no trust in the certificate), and nothing to answer it in.
            logger.info("a TLS connection failed", extra={"fields": {"peer": peer, "reason": exc.reason}})
            return
        status, code, detail = _refusal(exc)
        if status == 500:
            logger.error("a request failed outside the application", exc_info=exc)
        answer = problem(status, code, detail)
        log_refused_request(peer=peer, status=status, code=code, request_id=answer.request_id)
        try:
            client.sendall(answer.as_http11())
        except OSError:
            logger.debug("the peer of a refused request is gone")


def _refusal(error: BaseException) -> tuple[int, str, str]:
    """Return status, code and sentence for what went wrong outside the application."""
    for kind, status, code, detail in _REFUSALS:
        if isinstance(error, kind):
            return status, code, detail
    return 500, "internal_error", "The server failed to handle the request."


class _CutVisibly:
    """WSGI middleware: honour `CLOSE_CONNECTION`, and end a failed answer so that no client takes it for complete."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        response = start_response.__self__  # gunicorn passes a bound method of its response

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if environ.get(CLOSE_CONNECTION):
                response.force_close()
            return start_response(status, headers, exc_info)

        chunks = self._application(environ, start)
        return _Chunks(chunks, environ)


class _Chunks:
    """The chunks of one answer; an `AnswerCutError` becomes a connection reset as gunicorn understands it."""

    def __init__(self, chunks: Iterable[bytes], environ: dict[str, Any]) -> None:
        self._chunks = chunks
        self._environ = environ

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
        except AnswerCutError as error:
            # HTTP/1.1 sees the missing last chunk; HTTP/1.0 ends an answer by closing, so only a reset tells it.
            if self._environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
                reset(self._environ["gunicorn.socket"])
            raise ConnectionResetError(errno.ECONNRESET, "the answer was cut") from error

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
