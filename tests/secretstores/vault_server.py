"""
A server on loopback that answers as Vault documents it: logins, and the key-value engine, version 2.

No Vault or OpenBao can be installed from the registries that the tests use.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN, ROLE_ID, SECRET_ID, JWT = "hvs.root", "role-1", "secret-id-1", "jwt-1"


@dataclass
class VaultServer:
    """`secrets` by mount and path. A *fault* answers a request in the place of the server, or never."""

    url: str = ""
    secrets: dict[str, object] = field(default_factory=dict)
    namespace: str = ""
    fault: Callable[["Handler"], None] | None = None
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    vault: VaultServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Read a secret."""
        self.vault.asked.append(self.path)
        if self.vault.fault is not None:
            self.vault.fault(self)
            return
        _, _, mount, data, *path = self.path.split("/")
        known = (TOKEN, self.vault.namespace)
        if (self.headers.get("X-Vault-Token"), self.headers.get("X-Vault-Namespace", "")) != known:
            self.answer(403, {"errors": ["permission denied"]})
        elif data != "data" or (secret := self.vault.secrets.get("/".join([mount, *path]))) is None:
            self.answer(404, {"errors": []})
        else:
            self.answer(200, {"data": {"data": secret, "metadata": {"version": 1}}})

    def do_POST(self) -> None:
        """Log in."""
        self.vault.asked.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        logins = {
            "/v1/auth/approle/login": {"role_id": ROLE_ID, "secret_id": SECRET_ID},
            "/v1/auth/clusters/one/login": {"role": "querykeep", "jwt": JWT},
        }
        if logins.get(self.path) == body:
            self.answer(200, {"auth": {"client_token": TOKEN}})
        else:
            self.answer(400, {"errors": ["invalid role or secret ID"]})

    def answer(self, status: int, content: object, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def vault_server(context: ssl.SSLContext | None = None) -> Iterator[VaultServer]:
    """Start a server; with *context*, it has TLS."""
    vault = VaultServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"vault": vault}))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    vault.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield vault
    finally:
        vault.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
