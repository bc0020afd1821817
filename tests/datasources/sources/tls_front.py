"""TLS before a server of the tests that has none of its own."""

import socket
import ssl
import struct
import threading
from contextlib import suppress

#: The first message of a PostgreSQL client: whether the server speaks TLS (chapter 54.2.11 of PostgreSQL's manual).
_SSL_REQUEST = struct.pack("!II", 8, 80877103)


class PostgresTlsFront:
    """Listens on loopback, speaks TLS as a PostgreSQL server does, and passes on what comes to a Unix socket."""

    def __init__(self, context: ssl.SSLContext, path: str) -> None:
        self._context = context
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=[client], daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            assert client.recv(len(_SSL_REQUEST)) == _SSL_REQUEST
            client.sendall(b"S")
            server.connect(self._path)
            with self._context.wrap_socket(client, server_side=True) as secured:
                back = threading.Thread(target=_pump, args=[server, secured], daemon=True)
                back.start()
                _pump(secured, server)
                back.join()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
