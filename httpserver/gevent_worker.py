"""
The worker class of the web tier: gunicorn's gevent worker with its own connection loop.

gunicorn's loop waits forever for the rest of the request headers, reuses a connection whose response was truncated when
the worker ended, and checks only once a second whether it may stop. This loop sets a deadline for each step of a
client.
"""

import errno
import gc
import logging
import signal
import ssl
import time
from email.utils import formatdate
from functools import lru_cache
from typing import Any

import gevent
import gevent.events
import gevent.socket
from gevent.pool import Pool
from gunicorn.http import wsgi as http_wsgi
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.http.parser import RequestParser
from gunicorn.sock import ssl_context
from gunicorn.workers.ggevent import GeventWorker

from httpserver.application import checked
from httpserver.client_connection import ClientConnection
from httpserver.connection_counts import ConnectionCounts
from httpserver.gunicorn_server import graceful_timeout
from httpserver.http_requests import HeadTimeoutError, WebRequest, refuse
from httpserver.truncation_guard import guarded
from runtimeconf.state import get_config
from system.process_limits import die_with_parent, raise_soft_limit

logger = logging.getLogger(__name__)

#: Seconds for complete request headers, from the opening of the connection or the first byte of a later request.
HEAD_TIMEOUT_S = 15.0
#: Seconds for the whole body, from the end of the headers.
BODY_TIMEOUT_S = 30.0

#: Seconds between checks for a stop, between heartbeats, and between checks for a free connection slot.
_POLL_S = 0.1
#: Seconds that a stopping worker waits for incomplete headers, and for requests on idle connections. A client may
#: already be sending a request, and learns from the response (`Connection: close`) that it was the last one.
_STOP_HEAD_S = 1.0
#: A stopping worker aborts unfinished requests this many seconds before the arbiter's SIGKILL.
_STOP_MARGIN_S = 1.0
#: Seconds until the next attempt if accept fails for lack of descriptors or memory.
_ACCEPT_PAUSE_S = 0.2
#: The delay if a connection is being closed to make room.
_ROOM_PAUSE_S = 0.01
#: Seconds that a worker leaves a pending connection to workers with fewer connections.
_YIELD_S = 0.005
#: Minimum seconds between two warnings about failed accepts.
_WARNING_INTERVAL_S = 10.0


#: Shared by all workers: the arbiter imports this module before it forks them.
_COUNTS = ConnectionCounts()


class _Settings:
    """
    gunicorn's settings as plain attributes. Everything else comes from gunicorn's own object.

    The settings do not change in a worker, but gunicorn's object looks them up by name several times per request.
    """

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        settings = {name: setting.get() for name, setting in cfg.settings.items() if not hasattr(type(cfg), name)}
        vars(self).update(settings, is_ssl=cfg.is_ssl)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cfg, name)


class _Parser(RequestParser):
    """The requests of one connection. `loop_iteration` is the event loop iteration in which the last request began."""

    mesg_class = WebRequest
    loop_iteration = -1

    def __next__(self) -> Any:
        """Read request headers. The caller has made sure that the last body is read and another request may follow."""
        self.req_count += 1
        self.mesg = self.mesg_class(self.cfg, self.unreader, self.source_addr, self.req_count)
        return self.mesg


class _Response(http_wsgi.Response):
    """A response that formats the date only once a second."""

    def default_headers(self) -> list[str]:
        """Return the status line and the `Server`, `Date` and connection headers."""
        major, minor = self.req.version
        lines = [
            f"HTTP/{major}.{minor} {self.status}\r\n",
            f"Server: {self.version}\r\n",
            f"Date: {_date(int(time.time()))}\r\n",
            f"Connection: {'close' if self.should_close() else 'keep-alive'}\r\n",
        ]
        return [*lines, "Transfer-Encoding: chunked\r\n"] if self.chunked else lines

    def _emit_body(self, data: bytes) -> None:
        """Send *data* without a copy. If gunicorn renames this hook, its own method copies each chunk into a frame."""
        if self.chunked:
            self.sock.send_parts(b"%X\r\n" % len(data), data, b"\r\n")
        else:
            self.sock.sendall(data)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _log_exception(_context: object, kind: Any, error: Any, traceback: Any) -> None:
    """Log the exception that ended a greenlet. gevent itself would print it."""
    logger.error("an exception ended a greenlet", exc_info=(kind, error, traceback))


class GeventWebWorker(GeventWorker):
    """Serves HTTP/1.1 in greenlets, one for each connection."""

    wsgi: Any

    def init_process(self) -> None:
        """Serve, and exit when the arbiter exits."""
        # Until gunicorn sets its own handler, a new worker has the arbiter's handler, which would lose a SIGTERM.
        signal.signal(signal.SIGTERM, self.handle_exit)
        die_with_parent(self.ppid)
        raise_soft_limit()
        self._settings = _Settings(self.cfg)
        # Connections waiting for a request, longest wait first. They may be closed at any time.
        self._idle: dict[ClientConnection, None] = {}
        # Connections with incomplete request headers, or without a request yet.
        self._heads: set[ClientConnection] = set()
        # Connections waiting for bytes from their client, longest wait first.
        self._waiting: dict[ClientConnection, None] = {}
        self._pool = Pool(self.cfg.worker_connections)
        self._tls: ssl.SSLContext | None = None
        self._warned = 0.0
        super().init_process()

    def patch(self) -> None:
        """Replace blocking functions by gevent's, without plug-ins of gevent."""
        # gevent would search all installed distributions for plug-ins before and after each module that it replaces.
        gevent.events.notify_and_call_entry_points = gevent.events.notify
        super().patch()

    def init_signals(self) -> None:
        """Install gunicorn's handlers, and ignore signals that have no meaning here."""
        super().init_signals()
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    def load_wsgi(self) -> None:
        """Load the application and guard its responses."""
        super().load_wsgi()
        self.application = checked(self.wsgi)
        self.wsgi = guarded(self.application, lambda: not self.alive)

    def run(self) -> None:
        """Serve until SIGTERM, then finish the requests in progress."""
        hub = gevent.get_hub()
        hub.print_exception = _log_exception
        self._loop = hub.loop
        # Existing objects live as long as the worker: the garbage collector need not scan them again.
        gc.collect()
        gc.freeze()
        self._tls = self._tls_context()
        _COUNTS.join(self.age)
        acceptors = [gevent.spawn(self._accept, listener) for listener in self.sockets]
        while self.alive:
            self.notify()
            self._follow()
            gevent.sleep(_POLL_S)
        gevent.killall(acceptors)
        _COUNTS.leave()
        for listener in self.sockets:
            listener.close()
        self._drain()

    def _tls_context(self) -> ssl.SSLContext | None:
        """Read the certificate of the current configuration; None without TLS."""
        self._config = get_config()
        self.cfg.set("graceful_timeout", graceful_timeout(self._config))
        if not self.cfg.is_ssl:
            return None
        self.cfg.set("certfile", str(self._config.tls.certificate_file))
        self.cfg.set("keyfile", str(self._config.tls.key_file))
        context: ssl.SSLContext = ssl_context(self.cfg)
        return context

    def _follow(self) -> None:
        """Use the certificate and the timeout of a new configuration once it takes effect."""
        if get_config() is not self._config:
            try:
                self._tls = self._tls_context()
            except OSError as error:
                logger.error("the certificate of runtime.tls cannot be read, and the previous one is used: %s", error)  # noqa: TRY400

    def _drain(self) -> None:
        """Let requests in progress finish within `graceful_timeout`, and close every other connection."""
        began = time.monotonic()
        # The arbiter kills the worker at `graceful_timeout`, which would simply cut off its responses.
        limit_s = max(self.cfg.graceful_timeout - _STOP_MARGIN_S, self.cfg.graceful_timeout / 2)
        stopped: set[ClientConnection] = set()
        while not self._pool.join(timeout=_POLL_S):
            self.notify()
            waited_s = time.monotonic() - began
            if waited_s > min(_STOP_HEAD_S, limit_s):
                for connection in {*self._idle, *self._heads} - stopped:
                    connection.stop_reading()
                    stopped.add(connection)
            if waited_s > limit_s:
                logger.warning("requests were cut off because they did not finish within %g s", limit_s)
                self.application.cancel_all()  # Requests without a response so far get an error.
                self._pool.join(timeout=_STOP_MARGIN_S / 2)
                self._pool.kill(timeout=_STOP_MARGIN_S / 4)
                return

    def _accept(self, listener: Any) -> None:
        """Accept connections one at a time, so that requests are served, and other workers can accept, in between."""
        while True:
            try:
                self._accept_one(listener)
            except Exception as error:  # noqa: BLE001 (a worker that stopped accepting would look healthy)
                self._warn("a connection could not be accepted: %r", error, exc_info=error)
                gevent.sleep(_ACCEPT_PAUSE_S)

    def _accept_one(self, listener: Any) -> None:
        """Wait for a connection, and serve it when a slot is free."""
        gevent.socket.wait_read(listener.fileno())
        if _COUNTS.others_have_fewer():
            gevent.sleep(_YIELD_S)
        try:
            client, address = listener.accept()
        except OSError as error:
            if error.errno != errno.ECONNABORTED:
                self._warn("connections cannot be accepted: %s", error.strerror)
                gevent.sleep(_ROOM_PAUSE_S if self._make_room() else _ACCEPT_PAUSE_S)
            return
        while self._pool.full():
            self._pool.wait_available(timeout=_ROOM_PAUSE_S if self._make_room() else _POLL_S)
        _COUNTS.add(1)
        self._pool.spawn(self._converse, listener.getsockname(), client, address)
        gevent.sleep(0)

    def _make_room(self) -> bool:
        """
        Close the connection that has been idle longest, or else the one that has waited longest for client data.

        A connection that waits for client data has sent only part of a request, which anybody can do. Return True if a
        connection was closed.
        """
        if (connection := next(iter(self._idle), None)) is not None:
            del self._idle[connection]
            connection.stop_reading()
        elif (connection := next(iter(self._waiting), None)) is not None:
            del self._waiting[connection]
            connection.give_way()
        return connection is not None

    def _warn(self, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        now = time.monotonic()
        if now - self._warned > _WARNING_INTERVAL_S:
            self._warned = now
            logger.warning(message, *values, exc_info=exc_info)

    def _converse(self, server: Any, client: Any, address: Any) -> None:
        """Handle the requests of one connection."""
        connection = ClientConnection(client, self._waiting)
        try:
            self._idle[connection] = None
            self._heads.add(connection)
            self._follow()
            if self._tls is not None:
                connection.start_tls(self._tls)
            connection.allow(HEAD_TIMEOUT_S)
            parser = _Parser(self._settings, connection, address)
            while (request := self._next_request(connection, parser)) is not None:
                if not self._answer(request, connection, address, server):
                    self._finish(connection)
                    return
        except ssl.SSLError as error:
            refuse(self.application, connection, address, error)
        except OSError:
            logger.debug("a client left or was too slow")
        except Exception as error:  # noqa: BLE001 (an error must not affect other connections)
            refuse(self.application, connection, address, error)
            self._finish(connection)
        finally:
            self._idle.pop(connection, None)
            self._heads.discard(connection)
            connection.close()
            _COUNTS.add(-1)

    def _finish(self, connection: ClientConnection) -> None:
        """Close a connection after its last response. A stop waits for this, so that the client can read all of it."""
        if self.alive:
            self._idle[connection] = None
        connection.finish()

    def _next_request(self, connection: ClientConnection, parser: Any) -> Any:
        """
        Wait for a request and read its headers. Return None if no request follows.

        Raises:
            HeadTimeoutError: The headers were not complete in time.
            ParseException: The headers are malformed.
            OSError: The client disconnected before the headers were complete.
        """
        self._idle[connection] = None
        try:
            # Skip the unread rest of the last body, then read the first bytes of the next headers.
            first = parser.unreader.read() if parser.finish_body() else b""
        except (OSError, ParseException):
            return None
        finally:
            self._idle.pop(connection, None)
        if not first:
            return None
        parser.unreader.unread(first)
        if parser.req_count:
            connection.allow(HEAD_TIMEOUT_S)
            # Pipelined requests that never block must not starve other clients.
            if parser.loop_iteration == self._loop.iteration:
                gevent.sleep(0)
        parser.loop_iteration = self._loop.iteration
        self._heads.add(connection)
        try:
            request = next(parser)
        except TimeoutError as error:
            raise HeadTimeoutError from error
        except (NoMoreData, StopIteration):
            return None
        finally:
            self._heads.discard(connection)
        connection.allow(BODY_TIMEOUT_S)
        return request

    def _answer(self, request: Any, connection: ClientConnection, address: Any, server: Any) -> bool:
        """Respond to *request*, and return whether the connection may be reused."""
        response, environ = http_wsgi.create(request, connection, address, server, self._settings, _Response)
        environ["wsgi.multithread"] = True
        connection.hold()
        try:
            chunks = self.wsgi(environ, response.start_response)
            try:
                for number, chunk in enumerate(chunks):
                    if number:
                        gevent.sleep(0)  # A long response to a fast reader must not starve other clients either.
                    response.write(chunk)
                response.close()
                connection.release()
            finally:
                chunks.close()
        except OSError:
            raise
        except (Exception, gevent.GreenletExit):
            if response.headers_sent:
                connection.reset()
            connection.release()
            raise
        connection.allow(self._config.http.keep_alive_s)
        return not response.should_close()
