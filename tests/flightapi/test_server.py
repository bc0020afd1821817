"""The certificate and the port of the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme

from flightapi.server import FlightServer
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import FlightConfig, RuntimeConfig, TlsConfig
from system.addresses import Address
from tests.flightapi.endpoint import OPEN, Endpoint


@pytest.fixture
def secure(config: RuntimeConfig, tmp_path: Path) -> RuntimeConfig:
    """A configuration with a certificate for localhost."""
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    tls = TlsConfig(enabled=True, certificate_file=certificate, key_file=key)
    return replace(config, tls=tls, flight=FlightConfig(bind=Address("127.0.0.1", 0)))


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_certificate_that_went_bad_since_it_was_checked(
    secure: RuntimeConfig, engine: InProcessEngine, name: str, content: bytes | None
) -> None:
    assert secure.tls.key_file is not None
    file = secure.tls.key_file.with_name(name)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)

    with pytest.raises(OSError, match=r"^The certificate of runtime\.tls cannot be (used|read): .*\.$"):
        FlightServer(secure, engine, OPEN)


def test_two_servers_do_not_share_a_port(config: RuntimeConfig, engine: InProcessEngine, endpoint: Endpoint) -> None:
    taken = replace(config, flight=FlightConfig(bind=Address("127.0.0.1", endpoint.port)))

    with pytest.raises(OSError, match=rf"^Cannot listen on 127\.0\.0\.1:{endpoint.port} for Flight SQL\.$"):
        FlightServer(taken, engine, OPEN)


def test_compressed_messages_are_refused(endpoint: Endpoint) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.port}", compression=grpc.Compression.Gzip) as channel:
        packed = Endpoint(endpoint.port, endpoint.server, channel)

        refused = packed.fails("DoGet", b"x" * 100_000)

    assert refused.status in {"UNIMPLEMENTED", "INTERNAL"}
