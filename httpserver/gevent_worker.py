"""
The worker of the web tier: gunicorn's gevent worker with a loop of its own.

gunicorn's loop waits without end for the rest of a head, goes on with a connection whose answer was broken off by the
end of the worker, and looks once a second whether it may stop. This one has a deadline for whatever a client must do.
"""

from __future__ import annotations

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
import gevent.socket
from gevent.pool import Pool
from gunicorn.http import wsgi as http_wsgi
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.http.parser import RequestParser
from gunicorn.sock import ssl_context
from gunicorn.workers.ggevent import GeventWorker

from httpserver.connection_counts import ConnectionCounts
from httpserver.gevent_connections import ClientConnection
from httpserver.http_requests import WebRequest
from httpserver.refusals import refuse
from httpserver.truncation_guard import TruncationGuard
from sqlapi.errors import RequestTimeoutError
from system.descriptors import raise_soft_limit
from system.parent_death import die_with_parent

logger = logging.getLogger(__name__)

#: Seconds from the connection's opening, later from the first byte of a request, until its head must be complete.
HEAD_TIMEOUT_S = 15.0
#: Seconds from the end of the head until the whole body must have come.
BODY_TIMEOUT_S = 30.0

#: Seconds between two looks: at signals, at the arbiter, at room for another connection.
_LOOK_S = 0.1
#: Seconds that a stopping worker waits for the rest of heads that have begun.
_STOP_HEAD_S = 1.0
#: Seconds before the arbiter's SIGKILL at which a stopping worker breaks off what still runs.
_STOP_MARGIN_S = 1.0
#: Seconds until the next try when no connection can be accepted for want of descriptors or memory.
_ACCEPT_PAUSE_S = 0.2
#: The same when a connection is just being closed for it.
_ROOM_PAUSE_S = 0.01
#: Seconds that a worker leaves a connection to those that have fewer.
_TURN_S = 0.005
#: At most one line about that in so many seconds.
_WARNING_INTERVAL_S = 10.0


#: Of the workers; the arbiter loads this module before it forks them.
_COUNTS = ConnectionCounts()


class _Parser(RequestParser):
    """The requests of one connection. `turn` is the turn of the event loop in which the last of them began."""

    mesg_class = WebRequest
    turn = -1

    def __next__(self) -> Any:
        """Read a head. That one may follow, and that nothing is left of the last body, was settled before."""
        self.req_count += 1
        self.mesg = self.mesg_class(self.cfg, self.unreader, self.source_addr, self.req_count)
        return self.mesg


class _Response(http_wsgi.Response):
    """A response that has its date from a clock which is read out once a second."""

    def default_headers(self) -> list[str]:
        """Return the status line, and the headers that are about the server and the connection."""
        major, minor = self.req.version
        lines = [
            f"HTTP/{major}.{minor} {self.status}\r\n",
            f"Server: {self.version}\r\n",
            f"Date: {_date(int(time.time()))}\r\n",
            f"Connection: {'close' if self.should_close() else 'keep-alive'}\r\n",
        ]
        return [*lines, "Transfer-Encoding: chunked\r\n"] if self.chunked else lines

    def _emit_body(self, data: bytes) -> None:
        """Send bytes of the body as they are: gunicorn copies each chunk into its frame."""
        if self.chunked:
            self.sock.send_parts(b"%X\r\n" % len(data), data, b"\r\n")
        else:
            self.sock.sendall(data)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


class GeventWebWorker(GeventWorker):
    """Serves HTTP/1.1 in greenlets, one for each connection."""

    wsgi: Any

    def init_process(self) -> None:
        """Serve, and die when the arbiter does."""
        # Until gunicorn sets it, a worker that starts has the arbiter's handler, and a stop would be lost on it.
        signal.signal(signal.SIGTERM, self.handle_exit)
        die_with_parent(self.ppid)
        raise_soft_limit()
        # They are final now, and looked up by name at each request: as plain attributes that costs nothing.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        # Connections that wait for a client, the one that waits longest first: those that may be closed at any time.
        self._idle: dict[ClientConnection, None] = {}
        # Connections on which a head has begun.
        self._heads: set[ClientConnection] = set()
        self._pool = Pool(self.cfg.worker_connections)
        self._tls: ssl.SSLContext | None = None
        self._warned = 0.0
        super().init_process()

    def init_signals(self) -> None:
        """Take what gunicorn takes, but let signals that mean nothing here end nothing."""
        super().init_signals()
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    def load_wsgi(self) -> None:
        """Load the application and wrap it in what needs the response object and the socket."""
        super().load_wsgi()
        self.wsgi = TruncationGuard(self.wsgi, lambda: not self.alive)

    def run(self) -> None:
        """Serve until SIGTERM, then finish what has begun."""
        self._loop = gevent.get_hub().loop
        # What is there now stays: the garbage collector need not look at it again.
        gc.collect()
        gc.freeze()
        if self.cfg.is_ssl:
            self._tls = ssl_context(self.cfg)
        _COUNTS.join(self.age)
        acceptors = [gevent.spawn(self._accept, listener) for listener in self.sockets]
        while self.alive:
            self.notify()
            gevent.sleep(_LOOK_S)
        gevent.killall(acceptors)
        _COUNTS.leave()
        for listener in self.sockets:
            listener.close()
        self._drain()

    def _drain(self) -> None:
        """Let requests under way end within `graceful_timeout`, and nobody else keep the worker from its end."""
        began = time.monotonic()
        # The arbiter kills at that time, and a killed worker's answers would just end.
        limit_s = max(self.cfg.graceful_timeout - _STOP_MARGIN_S, self.cfg.graceful_timeout / 2)
        for connection in tuple(self._idle):
            connection.stop_reading()
        while not self._pool.join(timeout=_LOOK_S):
            self.notify()
            waited_s = time.monotonic() - began
            if waited_s > _STOP_HEAD_S:
                for connection in tuple(self._heads):
                    connection.stop_reading()
            if waited_s > limit_s:
                logger.warning("requests were cut off: they did not end in %g s", limit_s)
                self._pool.kill(timeout=_STOP_MARGIN_S / 2)
                return

    def _accept(self, listener: Any) -> None:
        """Accept connections for ever, one at a time: what has come is served, or taken by another worker, between."""
        while True:
            try:
                self._accept_one(listener)
            except Exception as error:  # noqa: BLE001 (a worker that accepts no more would look healthy)
                self._warn("a connection could not be taken: %r", error, exc_info=error)
                gevent.sleep(_ACCEPT_PAUSE_S)

    def _accept_one(self, listener: Any) -> None:
        """Wait for a connection, and have it served as soon as there is room for it."""
        gevent.socket.wait_read(listener.fileno())
        if _COUNTS.others_have_fewer():
            gevent.sleep(_TURN_S)
        try:
            client, address = listener.accept()
        except OSError as error:
            if error.errno != errno.ECONNABORTED:
                self._warn("no connection can be accepted: %s", error.strerror)
                gevent.sleep(_ROOM_PAUSE_S if self._make_room() else _ACCEPT_PAUSE_S)
            return
        while self._pool.full():
            self._make_room()
            self._pool.wait_available(timeout=_LOOK_S)
        _COUNTS.add(1)
        self._pool.spawn(self._converse, listener.getsockname(), client, address)
        gevent.sleep(0)

    def _make_room(self) -> bool:
        """End the connection that has been idle longest, if one is: it had its time, and another client waits."""
        connection = next(iter(self._idle), None)
        if connection is None:
            return False
        del self._idle[connection]
        connection.stop_reading()
        return True

    def _warn(self, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        now = time.monotonic()
        if now - self._warned > _WARNING_INTERVAL_S:
            self._warned = now
            logger.warning(message, *values, exc_info=exc_info)

    def _converse(self, server: Any, client: Any, address: Any) -> None:
        """Answer the requests of one connection."""
        connection = ClientConnection(client)
        try:
            self._idle[connection] = None
            if self._tls is not None:
                connection.start_tls(self._tls)
            connection.allow(HEAD_TIMEOUT_S)
            parser = _Parser(self.cfg, connection, address)
            while (request := self._next_request(connection, parser)) is not None:
                if not self._answer(request, connection, address, server):
                    self._idle[connection] = None
                    connection.finish()
                    return
        except ssl.SSLError as error:
            refuse(connection, address, error)
        except OSError:
            logger.debug("a client left or was too slow")
        except Exception as error:  # noqa: BLE001 (whatever it is, it is this connection's only)
            refuse(connection, address, error)
            self._idle[connection] = None
            connection.finish()
        finally:
            self._idle.pop(connection, None)
            connection.close()
            _COUNTS.add(-1)

    def _next_request(self, connection: ClientConnection, parser: Any) -> Any:
        """
        Wait for a request and return it with its head read; None when there will be none.

        Raises:
            RequestTimeoutError: The head has begun and was not complete in time.
            ParseException: It is not well-formed.
            OSError: The client left in the middle of it.
        """
        self._idle[connection] = None
        if not self.alive:
            connection.stop_reading()
        try:
            # What nobody read of the last body, then the first bytes of the next head.
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
            # Requests that neither wait nor make anybody wait must not keep other clients from their turn.
            if parser.turn == self._loop.iteration:
                gevent.sleep(0)
        parser.turn = self._loop.iteration
        self._heads.add(connection)
        try:
            request = next(parser)
        except TimeoutError as error:
            raise RequestTimeoutError from error
        except (NoMoreData, StopIteration):
            return None
        finally:
            self._heads.discard(connection)
        connection.allow(BODY_TIMEOUT_S)
        return request

    def _answer(self, request: Any, connection: ClientConnection, address: Any, server: Any) -> bool:
        """Answer *request* and say whether the connection may live on."""
        response, environ = http_wsgi.create(request, connection, address, server, self.cfg, _Response)
        environ["wsgi.multithread"] = True
        connection.hold()
        try:
            chunks = self.wsgi(environ, response.start_response)
            try:
                for number, chunk in enumerate(chunks):
                    if number:
                        gevent.sleep(0)  # neither must a long answer to a fast reader
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
        connection.allow(self.cfg.keepalive)
        return not response.should_close()
