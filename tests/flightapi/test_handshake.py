"""Handshakes in all forms that clients use."""

import base64
from functools import partial

import grpc
import pytest

from flightapi import calls
from flightapi.handshake import ANONYMOUS_TOKEN, MAX_MESSAGE_BYTES, MAX_READING, MAX_WAITING
from flightapi.protocol import messages
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import RuntimeConfig
from tests.corpus import each
from tests.flightapi.endpoint import OPEN, Answer, Endpoint, Metadata, Refused, Silent, bearer, serving
from tests.queryengine.publishing import wait_until
from tests.system.harness import K1, K2, WRONG


def basic(credential: str) -> Metadata:
    return (("authorization", f"Basic {base64.b64encode(credential.encode()).decode()}"),)


def payload(password: str, user: str = "user") -> bytes:
    """Return the message of a classic handshake."""
    auth = messages.BasicAuth(username=user, password=password).SerializeToString()
    return bytes(messages.HandshakeRequest(payload=auth).SerializeToString())


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(basic(f"user:{K1}"), id="user and password"),
        pytest.param(bearer(K1), id="bearer"),
    ],
)
def test_the_answer_holds_the_key(endpoint: Endpoint, metadata: Metadata) -> None:
    for requests in ((), (b"",)):
        answer = endpoint.works("Handshake", *requests, metadata=metadata)

        assert answer.initial["authorization"] == f"Bearer {K1}"


@each(
    ("metadata", "reason"),
    [
        pytest.param(basic(f"user:{WRONG}"), "not valid", id="a wrong password"),
        pytest.param(basic(f"{K1}:"), "is required", id="an empty password"),
        pytest.param(basic(f"{K1}:x"), "not valid", id="the key as user"),
        pytest.param((("authorization", "Basic !!!"),), "must be user:password", id="no base64"),
        pytest.param((*basic(f"u:{K1}"), *basic(f"u:{K1}")), "one authorization", id="twice"),
        pytest.param((*basic(f"u:{K1}"), ("x-api-key", WRONG)), "Another credential", id="beside another key"),
        pytest.param(bearer(WRONG), "not valid", id="a wrong bearer"),
    ],
)
def test_without_a_valid_key_a_handshake_is_refused(endpoint: Endpoint, metadata: Metadata, reason: str) -> None:
    refused = endpoint.fails("Handshake", payload(K1), metadata=metadata)

    assert refused.status == "UNAUTHENTICATED"
    assert reason in refused.message
    assert "authorization" not in refused.trailing


def test_the_classic_handshake(endpoint: Endpoint) -> None:
    (message,) = endpoint.works("Handshake", payload(K2), metadata=()).messages

    token = messages.parse(messages.HandshakeResponse, message).payload
    assert endpoint.works("ListActions", b"", metadata=(("auth-token-bin", token),)).messages


@each(
    "requests",
    [
        pytest.param((), id="no message"),
        pytest.param((b"",), id="an empty one"),
        pytest.param((b"\xff",), id="nonsense"),
        pytest.param((payload(WRONG),), id="a wrong password"),
        pytest.param((payload(""),), id="an empty password"),
        pytest.param((messages.HandshakeRequest(payload=b"\xff").SerializeToString(),), id="another payload"),
        pytest.param((payload(K1, "u" * MAX_MESSAGE_BYTES),), id="a long one"),
    ],
)
def test_a_classic_handshake_without_a_key(endpoint: Endpoint, requests: tuple[bytes, ...]) -> None:
    assert endpoint.fails("Handshake", *requests, metadata=()).status == "UNAUTHENTICATED"


def classic(endpoint: Endpoint) -> Answer | Refused:
    return endpoint.call("Handshake", payload(K1), metadata=())


@pytest.mark.parametrize("count", [MAX_READING, MAX_WAITING, 3 * MAX_WAITING])
def test_silent_handshakes_do_not_lock_out_a_valid_key(
    endpoint: Endpoint, silent: Silent, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    begun = [silent(endpoint, "Handshake") for _ in range(count)]
    answer = classic(endpoint)

    assert isinstance(answer, Answer), answer
    assert messages.parse(messages.HandshakeResponse, answer.messages[0]).payload == K1.encode()
    assert endpoint.works("Handshake", metadata=bearer(K1)).messages
    wait_until(lambda: all(call.done() for call in begun))
    assert calls.HANDSHAKE_IDLE_S + calls.TICK_S <= 2.0
    assert {call.code() for call in begun} <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert not [record for record in caplog.records if record.name == "authkeys.audit"]


def test_a_handshake_that_waits_too_long_is_refused(
    config: RuntimeConfig,
    engine: InProcessEngine,
    silent: Silent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The clock does not end the silent handshakes here.
    monkeypatch.setattr("flightapi.server.IdleClock", partial(calls.IdleClock, 60.0))
    monkeypatch.setattr("flightapi.handshake.PATIENCE_S", 60.0)
    with serving(config, engine) as endpoint:
        for _ in range(MAX_READING):
            silent(endpoint, "Handshake")
        answers: list[Answer | Refused] = []

        def is_refused() -> bool:
            answers.append(classic(endpoint))
            return isinstance(answers[-1], Refused)

        wait_until(is_refused)
        refused = answers[-1]

        assert isinstance(refused, Refused)
        assert (refused.status, refused.trailing["x-error-code"]) == ("RESOURCE_EXHAUSTED", "handshakes_busy")
        assert not [record for record in caplog.records if record.name == "authkeys.audit"]


def test_with_authentication_off_every_handshake_succeeds(config: RuntimeConfig, engine: InProcessEngine) -> None:
    with serving(config, engine, OPEN) as endpoint:
        assert endpoint.works("Handshake", metadata=basic("u:p")).initial["authorization"] == "Bearer p"
        for metadata in (basic("u:"), basic("u:é"), (("authorization", "x"),)):
            answer = endpoint.works("Handshake", metadata=metadata)
            assert answer.initial["authorization"] == f"Bearer {ANONYMOUS_TOKEN}"
        for password in ("p", ""):
            (message,) = endpoint.works("Handshake", payload(password), metadata=()).messages
            assert messages.parse(messages.HandshakeResponse, message).payload == (password or ANONYMOUS_TOKEN).encode()
        assert endpoint.works("Handshake", metadata=()).messages == []
