"""
gunicorn as the HTTP server: its settings from the configuration file, its threaded worker class and its logging.

The worker differs from gunicorn's threaded one in four ways: requests that gunicorn itself refuses get a problem body
like any other refusal, a truncated response never looks complete, a connection with an unread body is closed, and a
connection that never sends anything is closed sooner than an idle one. The worker class of the web tier is in
`httpserver.gevent_worker`.
"""

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.http.parser import RequestParser
from gunicorn.systemd import SD_LISTEN_FDS_START
from gunicorn.workers.gthread import ThreadWorker

from httpserver.application import Application, checked
from httpserver.connection_counts import web_workers
from httpserver.http_requests import WebRequest, refuse
from httpserver.truncation_guard import guarded
from runtimeconf.model import MIB, RuntimeConfig
from system.addresses import Address, bound_address
from system.heartbeat import HUNG_S, HangDetector, is_stopped
from system.process_limits import connection_limit

#: Seconds within which a new connection must send its first bytes, in addition to the time that a thread waits for
#: them.
HEAD_TIMEOUT_S = 15.0
#: Threads for health checks, status, refusals and incoming bodies, in addition to threads that run or await a
#: statement.
SPARE_THREADS = 32
#: Connections of a threaded worker, unless it has many threads.
MAX_CONNECTIONS = 1000
#: Seconds between the cancellation of a stopping worker's statements and the arbiter's SIGKILL.
STOP_MARGIN_S = 2.0
#: Seconds without a heartbeat after which the arbiter kills a worker that runs statements itself.
HEARTBEAT_TIMEOUT_S = 120
#: Bytes of a body that a web worker checks per second on a busy machine. It sends no heartbeat while checking.
_CHECKED_BYTES_PER_S = MIB


def options(config: RuntimeConfig) -> dict[str, Any]:
    """Return gunicorn's settings for *config*: one process with threads and the engine."""
    threads = config.query.workers + config.query.max_queued + SPARE_THREADS
    return _common(config) | {
        "worker_class": "httpserver.gunicorn_server.WebWorker",
        "workers": 1,
        "threads": threads,
        # gunicorn keeps at most `worker_connections - threads` connections idle. Further responses close their
        # connection.
        "worker_connections": max(MAX_CONNECTIONS, 2 * threads),
        "timeout": HEARTBEAT_TIMEOUT_S,
    }


def web_options(config: RuntimeConfig) -> dict[str, Any]:
    """Return gunicorn's settings for the web tier of *config*: one process per core, without an engine."""
    return _common(config) | {
        "worker_class": "httpserver.gevent_worker.GeventWebWorker",
        "workers": web_workers(),
        # The number of engine workers limits the statement sockets of all processes together.
        "worker_connections": connection_limit(config.query.workers),
        "timeout": heartbeat_timeout(config),
    }


def addresses(bound: Iterable[Any], environ: Mapping[str, str]) -> Iterator[Address]:
    """
    Yield the TCP addresses on which gunicorn will listen.

    Args:
        bound: The `bind` settings, parsed by gunicorn: pairs, paths of Unix sockets and descriptors.
        environ: gunicorn's environment, which may contain sockets that systemd or a previous gunicorn passes instead.
    """
    passed = [int(one) for one in environ.get("GUNICORN_FD", "").split(",") if one.isdecimal()]
    if environ.get("LISTEN_PID") == str(os.getpid()):
        passed += range(SD_LISTEN_FDS_START, SD_LISTEN_FDS_START + int(environ.get("LISTEN_FDS", "0")))
    for one in (*bound, *passed):
        if isinstance(one, tuple):
            yield Address(*one)
        elif isinstance(one, int) and (address := bound_address(one)) is not None:
            yield address


def heartbeat_timeout(config: RuntimeConfig) -> int:
    """Return the seconds without a heartbeat after which a web worker is killed."""
    return math.ceil(HUNG_S + config.http.max_body_bytes / _CHECKED_BYTES_PER_S)


def graceful_timeout(config: RuntimeConfig) -> int:
    """Return the seconds that requests in progress have to finish when a worker is told to stop."""
    return max(1, round(config.shutdown_timeout_s))


def _common(config: RuntimeConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bind": [str(config.http.bind)],
        "graceful_timeout": graceful_timeout(config),
        "keepalive": math.ceil(config.http.keep_alive_s),
        "logger_class": "system.gunicorn_log.ServerLogger",
        "proc_name": "web",
        "control_socket_disable": True,
        # Not "auto", which depends on the installed packages. See docs/internals/decisions/0010-web-server.md for the
        # reasons.
        "http_parser": "python",
        # Request headers must not change the path, the peer or the scheme, even if a proxy is trusted by mistake.
        "forwarder_headers": "",
        "secure_scheme_headers": {},
        "forwarded_allow_ips": "",
    }
    if config.tls.enabled:
        settings |= {"certfile": str(config.tls.certificate_file), "keyfile": str(config.tls.key_file)}
    return settings


class WebArbiter(Arbiter):
    """
    gunicorn's arbiter for the web tier, as one part of a supervised runtime.

    The arbiter ignores the signals that would reload the configuration (SIGHUP), change the number of workers (SIGTTIN
    and SIGTTOU) or start a second arbiter (SIGUSR2).
    """

    WORKERS: dict[int, Any]
    app: Any

    def __init__(self, app: Any, beat: Callable[[], None] = lambda: None) -> None:
        self._beat = beat
        self._detectors: dict[int, HangDetector] = {}
        super().__init__(app)

    def handle_hup(self) -> None:
        """Do nothing, because the configuration file is read only at startup."""

    handle_ttin = handle_ttou = handle_usr2 = handle_hup

    def stop(self, graceful: bool = True) -> None:
        """Stop the workers within the time that the current configuration allows."""
        self.app.limit_stop()
        super().stop(graceful)

    def reap_workers(self) -> None:
        """Send a heartbeat and record the workers that have ended. This runs in the loop and while the workers stop."""
        self._beat()
        super().reap_workers()

    def murder_workers(self) -> None:
        """Send a heartbeat, and kill the workers that have not sent one in time."""
        self._beat()
        now, limit_s = time.monotonic(), self.app.heartbeat_timeout()
        beats = {pid: worker.tmp.last_update() for pid, worker in self.WORKERS.items()}
        self._detectors = {
            pid: self._detectors.get(pid) or HangDetector("web", now, beat, worker=pid) for pid, beat in beats.items()
        }
        for pid, beat in beats.items():
            if self._detectors[pid].is_hung(beat, limit_s, now, is_stopped=is_stopped(pid)):
                self.kill_worker(pid, signal.SIGKILL)


class WebWorker(ThreadWorker):
    """A threaded worker that sends problem bodies for refusals and never lets a truncated response look complete."""

    wsgi: Any
    application: Application

    def init_process(self) -> None:
        """Serve until SIGTERM. gunicorn hardcodes the parser of a connection, so change the parser's request class."""
        RequestParser.mesg_class = WebRequest
        super().init_process()

    def load_wsgi(self) -> None:
        """Load the application and guard its responses."""
        super().load_wsgi()
        self.application = checked(self.wsgi)
        self.wsgi = guarded(self.application, lambda: not self.alive)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin a graceful stop (SIGTERM). Statements still running shortly before its end get a typed error."""
        super().handle_exit(sig, frame)
        delay_s = max(self.cfg.graceful_timeout - STOP_MARGIN_S, self.cfg.graceful_timeout / 2)
        timer = threading.Timer(delay_s, self._cancel_all)
        timer.daemon = True
        timer.start()

    def _cancel_all(self) -> None:
        if hasattr(self, "application"):  # SIGTERM may arrive while the application is being loaded.
            self.application.cancel_all()

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Continue with a connection after a request. One that has sent nothing has less time than an idle one."""
        super().finish_request(conn, fs)
        if self.pending_conns and self.pending_conns[-1] is conn:
            conn.timeout = time.monotonic() + min(HEAD_TIMEOUT_S, self.cfg.keepalive)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Respond to a request that failed outside the application."""
        refuse(self.application, client, addr, exc)
