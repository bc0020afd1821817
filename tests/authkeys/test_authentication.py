"""The DRF classes on a view of this test."""

import logging
from typing import Any

import pytest
from django.http import HttpResponse
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from authkeys.access import Access
from authkeys.authentication import ApiKeyAuthentication
from authkeys.keys import KeySet
from authkeys.permissions import HasPrincipal
from authkeys.principal import Principal
from authkeys.state import set_access
from runtimeconf.secret import Secret

KEY = "k1-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE"
WRONG = KEY[:-1] + "F"


def handle(error: Exception, context: dict[str, Any]) -> HttpResponse:
    challenge = getattr(error, "auth_header", "")
    return HttpResponse(
        str(error.detail),  # type: ignore[attr-defined]
        status=error.status_code,  # type: ignore[attr-defined]
        headers={"WWW-Authenticate": challenge, "X-Code": error.get_codes()},  # type: ignore[attr-defined]
    )


class WhoView(APIView):
    authentication_classes = [ApiKeyAuthentication]
    permission_classes = [HasPrincipal]

    def get_exception_handler(self) -> Any:
        return handle

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        return None, None

    def get(self, request: Request) -> HttpResponse:
        assert isinstance(request.user, Principal)
        return HttpResponse(request.user.fingerprint)


class AnybodyView(WhoView):
    permission_classes = [AllowAny]

    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(repr(request.user))


def ask(view: type[APIView] = WhoView, /, **headers: str) -> HttpResponse | Response:
    answer = view.as_view()(APIRequestFactory().get("/", headers=headers))
    assert isinstance(answer, HttpResponse)
    return answer


@pytest.fixture(autouse=True)
def key_set() -> KeySet:
    key_set = KeySet([Secret(KEY)], bytes(32))
    set_access(Access(key_set=key_set))
    return key_set


def test_a_right_key_is_a_principal_with_a_fingerprint(key_set: KeySet) -> None:
    for headers in ({"X-API-Key": KEY}, {"x-api-key": KEY}, {"Authorization": f"bearer {KEY}"}):
        answer = ask(**headers)
        assert answer.status_code == 200
        assert answer.content.decode() == key_set.fingerprints()[0]


@pytest.mark.parametrize(
    ("headers", "code", "reason"),
    [
        pytest.param({}, "missing_key", "missing_key", id="A01 none"),
        pytest.param({"X-API-Key": " "}, "missing_key", "missing_key", id="A07 blank"),
        pytest.param({"X-API-Key": WRONG}, "invalid_key", "unknown_key", id="A05 wrong"),
        pytest.param({"X-API-Key": f"{KEY},{KEY}"}, "invalid_key", "repeated_header", id="A13 twice"),
        pytest.param({"Authorization": f"Basic {KEY}"}, "invalid_key", "unknown_scheme", id="A18 Basic"),
    ],
)
def test_a48_a_refusal_is_401_with_a_challenge_and_one_audit_line(
    headers: dict[str, str], code: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(**headers)

    assert answer.status_code == 401
    error = ', error="invalid_token"' if code == "invalid_key" else ""
    assert answer["WWW-Authenticate"] == f'Bearer realm="querykeep"{error}'
    assert answer["X-Code"] == code
    (record,) = [record for record in caplog.records if record.name == "authkeys.audit"]
    assert record.levelno == logging.WARNING
    assert record.fields == {  # type: ignore[attr-defined]
        "peer": "127.0.0.1",
        "method": "GET",
        "route": None,
        "status": 401,
        "reason": reason,
        "request_id": "",
    }
    for text in (answer.content.decode(), caplog.text, str(record.__dict__)):
        assert KEY[:6] not in text


def test_without_the_permission_an_unknown_caller_stays_unknown(caplog: pytest.LogCaptureFixture) -> None:
    assert ask(AnybodyView).content == b"None"
    assert caplog.records == []
