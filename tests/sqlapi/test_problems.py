"""Problem documents, and the handlers that send them."""

import json
import logging

import pytest
from django.core.exceptions import SuspiciousOperation
from django.test import RequestFactory

from sqlapi.error_table import Refusal
from sqlapi.problems import REQUEST_ID, as_http11, bad_request, handle_view_exception, problem, server_error, title

request = RequestFactory().get("/")
request.META[REQUEST_ID] = "the-id"


def test_a_problem_document() -> None:
    refusal = Refusal(status=404, code="not_found", detail='There is no "é".', headers={"Allow": "GET"})

    made = problem(refusal, "abc")

    assert json.loads(made.content) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": 'There is no "é".',
        "code": "not_found",
        "request_id": "abc",
    }
    assert dict(made.headers) == {
        "Content-Type": "application/problem+json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Request-Id": "abc",
        "Allow": "GET",
    }
    ids = {problem(refusal).headers["X-Request-Id"] for _ in range(2)}
    assert len(ids) == 2
    assert {len(one) for one in ids} == {32}


def test_a_complete_response_of_the_server_itself() -> None:
    made = problem(Refusal(status=431, code="headers_too_large", detail="The request headers are too large."))

    head, _, body = as_http11(made).partition(b"\r\n\r\n")

    status_line, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert status_line == "HTTP/1.1 431 Request Header Fields Too Large"
    assert (title(400), title(499)) == ("Bad Request", "Client Closed Request")
    assert (headers["Connection"], headers["Content-Length"]) == ("close", str(len(body)))
    assert headers["X-Request-Id"] == json.loads(body)["request_id"]
    assert headers["Date"].endswith("GMT")


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
        assert (record.levelno, record.fields) == (logging.ERROR, {"request_id": "the-id"})  # type: ignore[attr-defined]
        assert "the cause" in str(record.exc_info and record.exc_info[1])
    assert len(caplog.records) == 2
