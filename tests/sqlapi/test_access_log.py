from __future__ import annotations

import logging

import pytest

from sqlapi.access_log import log_refused_request


def test_server_refusals_are_in_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_refused_request(peer="192.0.2.1", status=431, code="headers_too_large", request_id="the-id")

    (record,) = caplog.records
    assert record.name == "sqlapi.access"
    assert record.fields == {  # type: ignore[attr-defined]
        "peer": "192.0.2.1",
        "method": None,
        "route": None,
        "status": 431,
        "code": "headers_too_large",
        "request_id": "the-id",
    }
