import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from cluster import connection as module
from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.protocol import messages
from queryengine.errors import EngineUnavailableError
from system.addresses import Address
from tests.cluster.clusters import Sail

TOKEN = "token-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"


class Front:
    """A server that speaks TLS and passes everything on to *address*, as before a cluster without TLS."""

    def __init__(self, address: Address, certificate: trustme.LeafCert) -> None:
        self._address = address
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.set_alpn_protocols(["h2"])
        certificate.configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with (
            raw,
            suppress(OSError),
            self._context.wrap_socket(raw, server_side=True) as caller,
            socket.create_connection((self._address.host, self._address.port)) as behind,
        ):
            back = threading.Thread(target=_pass_on, args=(behind, caller), daemon=True)
            back.start()
            _pass_on(caller, behind)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def front(sail: Sail, authority: trustme.CA) -> Iterator[Front]:
    with closing(Front(sail.address, authority.issue_cert("localhost"))) as front:
        yield front


def asked(cluster: ClusterConfig) -> str | None:
    """Return the value of a setting that a new session of *cluster* lacks."""
    with closing(Connection(cluster)) as connection:
        return connection.option(str(uuid.uuid4()), "spark.querykeep.nothing")


def test_the_connection_is_encrypted_for_whom_the_authority_vouches(
    front: Front, authority: trustme.CA, tmp_path: Path
) -> None:
    trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(str(trusted))
    trustme.CA().cert_pem.write_to_path(str(other))
    address = Address("localhost", front.port)

    assert asked(ClusterConfig(address=address, uses_tls=True, tls_ca=trusted, token=TOKEN)) is None
    for untrusted in (
        ClusterConfig(address=address, uses_tls=True, tls_ca=other),
        ClusterConfig(address=address, uses_tls=True),
        ClusterConfig(address=Address("127.0.0.1", front.port), uses_tls=True, tls_ca=trusted),
        ClusterConfig(address=address),
    ):
        with pytest.raises(EngineUnavailableError, match=r"^The cluster cannot be reached: try again\.$"):
            asked(untrusted)


class Guarded(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    """A cluster that asks for a token."""

    def service(self, call: Any) -> Any:
        metadata = dict(call.invocation_metadata)

        def answer(_request: bytes, context: Any) -> bytes:
            if metadata.get("authorization") != f"Bearer {TOKEN}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return bytes(messages.ConfigResponse(pairs=[messages.KeyValue(key="k", value="v")]).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(answer)


def test_the_token_goes_with_every_call() -> None:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[Guarded()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        address = Address("127.0.0.1", port)

        assert asked(ClusterConfig(address=address, token=TOKEN)) == "v"
        for token in (None, TOKEN[:-1]):
            with pytest.raises(EngineUnavailableError, match=r"rejected the runtime: its token is missing or wrong\.$"):
                asked(ClusterConfig(address=address, token=token))
        server.stop(None).wait()


def test_a_connection_that_was_closed_is_no_failure_of_ours(sail: Sail) -> None:
    connection = Connection(ClusterConfig(address=sail.address))
    connection.close()
    connection.interrupt(str(uuid.uuid4()), operation_id=str(uuid.uuid4()))

    with pytest.raises(EngineUnavailableError):
        connection.option(str(uuid.uuid4()), "spark.querykeep.nothing")


def test_an_interrupt_of_nothing_is_given_up(sail: Sail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", (0.01, 0.02, 0.03))
    connection = Connection(ClusterConfig(address=sail.address))
    connection.interrupt(str(uuid.uuid4()), operation_id=str(uuid.uuid4()))

    connection.close(timeout_s=10.0)

    assert connection._interrupts == 0
