import json
import logging

import pytest
from django.core.exceptions import SuspiciousOperation
from django.test import RequestFactory

from sqlapi.problems import REQUEST_ID, bad_request, handle_view_exception, server_error

request = RequestFactory().get("/")
request.META[REQUEST_ID] = "the-id"


def test_djangos_refusals_are_problem_documents() -> None:
    answer = bad_request(request, SuspiciousOperation("/some/path"))

    assert answer.status_code == 400
    assert json.loads(answer.content)["code"] == "malformed_request"
    assert json.loads(answer.content)["request_id"] == "the-id"
    assert b"/some/path" not in answer.content


def test_an_unexpected_failure_is_logged_with_its_traceback_and_reveals_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        int("the cause")
    except ValueError as error:
        answers = [handle_view_exception(error, {"request": request}), server_error(request)]

    for answer in answers:
        assert answer.status_code == 500
        assert json.loads(answer.content)["code"] == "internal_error"
        assert b"the cause" not in answer.content
    for record in caplog.records:
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None
        assert "the cause" in str(record.exc_info[1])
        assert record.fields == {"request_id": "the-id"}  # type: ignore[attr-defined]
    assert len(caplog.records) == 2
