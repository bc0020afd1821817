"""No call passes without a valid key: A01, A02 and A05 for every RPC, and for methods that do not exist."""

import base64
import logging
import socket
import struct

import pytest
from msgspec.structs import replace

from flightapi.authentication import HANDSHAKE, Accepted, authenticate_call
from flightapi.protocol.messages import PATHS
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import HttpConfig, RuntimeConfig
from tests.corpus import each
from tests.flightapi.endpoint import LOCKED, OPEN, Endpoint, Metadata, bearer, serving
from tests.system.harness import K1, K2, WRONG

MISSING = "An API key is required: send the metadata authorization: Bearer <key>."
UNKNOWN = "The API key is not valid."

BASIC = base64.b64encode(f"user:{K1}".encode()).decode()

METHOD_PATHS = [
    *PATHS.values(),
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/arrow.flight.protocol.FlightService/doget",
    "/arrow.flight.protocol.flightservice/DoGet",
    PATHS["DoGet"] + "/",
    "//path",
    "/x",
]

#: Metadata that every method refuses, with a part of the message. These are samples, and what gRPC adds:
#: tests/authkeys/test_credentials.py covers every form of a credential.
REFUSED: dict[str, tuple[Metadata, str]] = {
    "nothing": ((), MISSING),
    "a wrong key": (bearer(WRONG), UNKNOWN),
    "an empty value": ((("authorization", ""),), MISSING),
    "another scheme": ((("authorization", f"ApiKey {K1}"),), "Only the Bearer scheme"),
    "x-api-key": ((("x-api-key", K1),), MISSING),
    "another valid x-api-key": ((*bearer(K1), ("x-api-key", K2)), "Another credential"),
    "authorization-bin": ((("authorization-bin", K1.encode()),), MISSING),
    "x-api-key-bin": ((("x-api-key-bin", K1.encode()),), MISSING),
    "right then wrong": ((*bearer(K1), *bearer(WRONG)), "in one authorization value"),
    "wrong then right": ((*bearer(WRONG), *bearer(K1)), "in one authorization value"),
    "empty then right": ((("authorization", ""), *bearer(K1)), "in one authorization value"),
    "a long value": (bearer("a" * 8000), UNKNOWN),
}


def every(endpoint: Endpoint, metadata: Metadata) -> set[tuple[str, str]]:
    """Return the distinct refusals of all paths."""
    # The message is invalid, but is never read. A handshake without metadata would read it.
    refusals = [endpoint.fails(path, b"" if path == HANDSHAKE else b"\xff", metadata=metadata) for path in METHOD_PATHS]
    assert all(refused.messages == [] for refused in refusals)
    return {(refused.status, refused.message) for refused in refusals}


@each("name", REFUSED)
def test_every_method_needs_a_key(endpoint: Endpoint, name: str) -> None:
    metadata, sentence = REFUSED[name]

    ((status, message),) = every(endpoint, metadata)

    assert status == "UNAUTHENTICATED"
    assert sentence in message
    assert K1 not in message
    assert WRONG not in message


@pytest.mark.parametrize("size", [16_384, 1_000_000])
def test_large_metadata_is_refused(endpoint: Endpoint, size: int) -> None:
    refused = endpoint.fails("ListActions", b"", metadata=bearer("a" * size))

    assert refused.status == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((("authorization", f"bearer {K1}"),), id="lower case"),
        pytest.param(bearer(K2), id="the second key"),
        pytest.param((*bearer(K1), ("x-api-key", K1)), id="the same as x-api-key"),
        pytest.param((("auth-token-bin", K1.encode()),), id="the token of a classic handshake"),
        pytest.param((*bearer(K1), ("auth-token-bin", K1.encode())), id="both"),
    ],
)
def test_a_valid_key_passes(endpoint: Endpoint, metadata: Metadata) -> None:
    assert endpoint.works("ListActions", b"", metadata=metadata).messages


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((("authorization", f"Basic {BASIC}"),), id="Basic, which is for handshakes"),
        pytest.param((("auth-token-bin", b"\xff\xfe"),), id="no text"),
        pytest.param((*bearer(K1), ("auth-token-bin", K2.encode())), id="beside another key"),
    ],
)
def test_another_credential_does_not_pass(endpoint: Endpoint, metadata: Metadata) -> None:
    assert endpoint.fails("ListActions", b"", metadata=metadata).status == "UNAUTHENTICATED"


def test_each_refusal_is_audited(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        refused = endpoint.fails("DoGet", b"", metadata=(*bearer(WRONG), ("x-request-id", "mine")))
        endpoint.fails("//path", b"", metadata=())
        endpoint.fails("Handshake", metadata=())

    lines = [record.fields for record in caplog.records if record.name == "authkeys.audit"]  # type: ignore[attr-defined]
    assert lines[0] == {
        "peer": "127.0.0.1",
        "method": "DoGet",
        "route": "flight",
        "status": "UNAUTHENTICATED",
        "reason": "unknown_key",
        "request_id": "mine",
    }
    assert refused.trailing["x-request-id"] == "mine"
    assert refused.trailing["x-error-code"] == "invalid_key"
    assert (lines[1]["method"], lines[1]["reason"]) == (None, "missing_key")
    assert (lines[2]["method"], lines[2]["reason"]) == ("Handshake", "missing_key")
    assert WRONG not in caplog.text


def test_the_client_behind_a_trusted_proxy_is_audited(
    config: RuntimeConfig, engine: InProcessEngine, caplog: pytest.LogCaptureFixture
) -> None:
    trusting = replace(config, http=HttpConfig(trusted_proxies=("127.0.0.1/32",)))
    metadata = (("x-forwarded-for", "192.0.2.1"), ("x-forwarded-for", "198.51.100.7"))

    with serving(trusting, engine) as endpoint, caplog.at_level(logging.INFO):
        for method in ("DoGet", "Handshake"):
            endpoint.fails(method, b"", metadata=metadata)

    lines = [record.fields for record in caplog.records if record.name == "authkeys.audit"]  # type: ignore[attr-defined]
    assert [line["peer"] for line in lines] == ["198.51.100.7"] * 2


def test_authentication_is_off(config: RuntimeConfig, engine: InProcessEngine) -> None:
    with serving(config, engine, OPEN) as endpoint:
        for metadata, _ in REFUSED.values():
            assert endpoint.sql("SELECT 1 AS a", metadata).to_pylist() == [{"a": 1}]


def test_no_credential_is_in_a_representation() -> None:
    decision = authenticate_call(LOCKED, "/x", bearer(K1))

    assert isinstance(decision, Accepted)
    assert K1 not in repr(decision)


def test_a_key_with_bytes_that_are_not_text_is_not_logged(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    # gRPC clients refuse to send such bytes, so this test writes HTTP/2 frames itself.
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": PATHS["DoGet"].encode(),
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"authorization": b"Bearer " + K1.encode() + b"\xff",
    }
    block = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, block))
        received = b""
        while b"grpc-status" not in received:
            received += connection.recv(65536)

    assert b"The API key is not valid." in received
    assert "authentication failed" in caplog.text
    assert K1 not in caplog.text


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
