"""
Object storage for nodes: moto's server in a thread or in a process of its own, with faults on request.

S3 decides about a conditional write and carries it out in one step. moto does not, so requests are served one by one.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import parse_qs

import boto3
import botocore.config
import httpx
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from runtimeconf.model import SharingRole, SnapshotsConfig

BUCKET = "lake"
KEYS = {"s3_key": "key-of-nodes", "s3_secret": "canary-7Hq-secret-of-nodes"}
_FAULT = "/-/fault"
_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"

_Start = Callable[..., Any]


class Faulty:
    """A WSGI application before moto's; a request to `/-/fault` sets what happens to the ones that follow."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.kind, self.delay_s, self.only = "", 0.0, ""
        self.lose = ""  # requests of this method are carried out, and their answers are lost

    def __call__(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == _FAULT:
            query = parse_qs(environ["QUERY_STRING"])
            self.kind = query.get("kind", [""])[0]
            self.delay_s = float(query.get("delay_s", ["0"])[0])
            self.only = query.get("only", [""])[0]
            return _answer(start_response, "200 OK")
        if self.only not in path + environ.get("HTTP_AUTHORIZATION", ""):
            return self._carried_out(environ, start_response)
        time.sleep(self.delay_s)
        if self.kind == "denied":
            return _answer(start_response, "403 Forbidden", _DENIED)
        if self.kind == "down":
            return _answer(start_response, "503 Service Unavailable")
        if self.kind == "unconditional":
            environ = {
                name: value for name, value in environ.items() if name not in {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}
            }
        if self.kind == "lost" and environ["REQUEST_METHOD"] == "PUT":
            list(self._carried_out(environ, lambda *_: lambda _: None))
            return _answer(start_response, "503 Service Unavailable")
        return self._carried_out(environ, start_response)

    def _carried_out(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        with self._lock:
            return list(self._app(environ, start_response))


def _answer(start_response: _Start, status: str, body: bytes = b"") -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


class SharedStorage:
    """The storage at *url*."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = "nodes"

    def config(self, role: SharingRole = "auto", **more: Any) -> SnapshotsConfig:
        """Return the configuration of a node."""
        params = {"s3_endpoint": self.url, "allow_http": True, **KEYS, **more.pop("params", {})}
        return SnapshotsConfig(location=f"s3://{BUCKET}/{self.prefix}", role=role, params=params, poll_s=0.1, **more)

    def fault(self, kind: str = "", *, delay_s: float = 0.0, only: str = "") -> None:
        """
        Have requests fail as *kind* (denied, down, lost, unconditional or, "", not at all) after *delay_s* seconds.

        It concerns those whose path or key contains *only*.
        """
        httpx.get(f"{self.url}{_FAULT}", params={"kind": kind, "delay_s": delay_s, "only": only}, timeout=60)

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEYS["s3_key"],
            aws_secret_access_key=KEYS["s3_secret"],
            region_name="us-east-1",
            config=botocore.config.Config(retries={"total_max_attempts": 1}),
        )

    def names(self) -> list[str]:
        """Return the names of all objects."""
        with closing(self.client()) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.prefix}/")
            return [one["Key"].removeprefix(f"{self.prefix}/") for page in pages for one in page.get("Contents", ())]

    def document(self, name: str) -> bytes:
        with closing(self.client()) as client:
            return bytes(client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read())

    def put(self, name: str, content: bytes) -> None:
        with closing(self.client()) as client:
            client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=content)

    def delete(self, *names: str) -> None:
        with closing(self.client()) as client:
            for name in names:
                client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")


class _Quiet(MotoRequestHandler):
    def log(self, *arguments: Any) -> None:
        """Say nothing of each request."""


def _make(port: int = 0) -> BaseWSGIServer:
    return make_server("127.0.0.1", port, Faulty(), threaded=True, request_handler=_Quiet)


def _with_bucket(url: str) -> SharedStorage:
    storage = SharedStorage(url)
    with closing(storage.client()) as client:
        client.create_bucket(Bucket=BUCKET)
    return storage


@contextmanager
def storage_in_thread() -> Iterator[SharedStorage]:
    """Serve in a thread of this process."""
    server = _make()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield _with_bucket(f"http://127.0.0.1:{server.port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def storage_process() -> Iterator[tuple[SharedStorage, "subprocess.Popen[str]"]]:
    """Serve in a process, which can be stopped and continued."""
    program = [sys.executable, "-m", "tests.nodes.storage_server"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield _with_bucket(process.stdout.readline().strip()), process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.terminate()


if __name__ == "__main__":
    running = _make()
    print(f"http://127.0.0.1:{running.port}", flush=True)  # noqa: T201
    running.serve_forever()
