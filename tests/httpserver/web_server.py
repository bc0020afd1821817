"""
The web tier without an engine, as a program: `python -m tests.httpserver.web_server APPLICATION OPTIONS`.

APPLICATION is "runtime", that of this project with the YAML in RUNTIME_CONFIG, or "plain", a small one for tests of
connections and answers. OPTIONS is a JSON object with settings of gunicorn that override ours.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import gevent
from gunicorn.app.base import BaseApplication
from msgspec.structs import replace

from httpserver import gevent_worker, gunicorn_server
from httpserver.gevent_worker import GeventWebWorker
from runtimeconf.state import get_config, set_config
from sqlapi import disconnects
from sqlapi.errors import AnswerCutError, SqlApiError
from sqlapi.request_bodies import read_body
from supervisor import startup


class WebServer(BaseApplication):  # type: ignore[misc]
    """gunicorn with the settings of the web tier."""

    def __init__(self, application: str, settings: dict[str, Any]) -> None:
        self._application = application
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        config = startup.checked_config()
        for name, value in (gunicorn_server.web_options(config) | self._settings).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        from sqlapi.wsgi_handler import ApiHandler  # noqa: PLC0415 (as in production: in the worker)

        class Plain(ApiHandler):
            def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
                return plain(environ, start_response)

        return Plain() if self._application == "plain" else ApiHandler()

    def limit_stop(self) -> None:
        """The configuration does not change here."""

    def heartbeat_timeout(self) -> int:
        return int(self.cfg.timeout)


class PatientWorker(GeventWebWorker):
    """The worker of the web tier, with more time for the next and for the last requests than any test takes."""

    def run(self) -> None:
        gevent_worker.HEAD_TIMEOUT_S = gevent_worker.BODY_TIMEOUT_S = gevent_worker._STOP_HEAD_S = 600.0
        super().run()


class ImpatientThreads(gunicorn_server.WebWorker):
    """The threaded worker, which gives a new connection no more time than gunicorn does."""

    def run(self) -> None:
        gunicorn_server.HEAD_TIMEOUT_S = 0.0
        super().run()


class HastyThreads(gunicorn_server.WebWorker):
    """The threaded worker. The first one is told to stop while it loads the application."""

    def load_wsgi(self) -> None:
        mark = Path(os.environ["RUNTIME_CONFIG"]).with_name("stopped")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        super().load_wsgi()


class StumblingWorker(GeventWebWorker):
    """The worker of the web tier, whose first accept raises an error that no socket raises."""

    _stumbled = False

    def _accept_one(self, listener: Any) -> None:
        super()._accept_one(listener)
        if not self._stumbled:
            self._stumbled = True
            raise LookupError("an unexpected error")


def plain(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer according to the path; the query string holds its numbers."""
    asked = {name: float(values[0]) for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    path = environ["PATH_INFO"]
    if path == "/body":
        try:
            text = f"{len(read_body(environ, 1 << 24))}"
        except SqlApiError as error:
            text = error.code
        return _whole(start_response, text)
    if path == "/close":
        return _whole(start_response, "closing")
    if path in {"/hold", "/reload"}:
        return _whole(start_response, _held() if path == "/hold" else _reloaded(asked["keep_alive_s"]))
    if path == "/watch":
        return _watched(environ, start_response, asked["s"])
    if path == "/block":
        ctypes.CDLL(None).sleep(600)  # which gevent does not replace: no other greenlet runs
    if path in {"/pid", "/greenlet"}:
        if path == "/greenlet":  # one that fails
            gevent.spawn(int, "no number")
        return _whole(start_response, str(os.getpid()))
    if path == "/fail":
        raise RuntimeError("the application fails")
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    return _stream(path, round(asked.get("chunks", 10)), round(asked.get("size", 65536)), asked.get("pause", 0.0))


def _whole(start_response: Any, text: str) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text.encode()]


def _held() -> str:
    """Wait until the file `released` exists beside the YAML."""
    _say("holding")
    released = Path(os.environ["RUNTIME_CONFIG"]).with_name("released")
    while not released.exists():
        time.sleep(0.2)
    return "released"


def _reloaded(keep_alive_s: float) -> str:
    """Put another configuration into force, as a reload does."""
    config = get_config()
    set_config(replace(config, http=replace(config.http, keep_alive_s=keep_alive_s)))
    return "reloaded"


def _watched(environ: dict[str, Any], start_response: Any, seconds: float) -> list[bytes]:
    """Wait at most *seconds* for the client to disconnect, and print whether it did."""
    gone: list[float] = []
    watch = disconnects.watch(environ, lambda: gone.append(time.monotonic()))
    began = time.monotonic()
    while not gone and time.monotonic() < began + seconds:
        time.sleep(0.01)
    watch.stop()
    _say("gone" if watch.gone else "stayed")
    return _whole(start_response, "watched")


def _stream(path: str, chunks: int, size: int, pause_s: float) -> Iterator[bytes]:
    """Give chunks of zeros; after the last one, "/cut" is truncated, and "/break" raises an unexpected error."""
    try:
        for _ in range(chunks):
            time.sleep(pause_s)
            yield bytes(size)
        if path == "/cut":
            raise AnswerCutError
        if path == "/break":
            raise RuntimeError("the answer fails")
    finally:
        _say("closed")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "runtime_site.settings")
    import django

    django.setup()
    gunicorn_server.WebArbiter(WebServer(sys.argv[1], json.loads(sys.argv[2]))).run()
