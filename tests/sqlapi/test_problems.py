import json

from sqlapi.problems import problem, title


def test_a_problem_document() -> None:
    made = problem(404, "not_found", 'There is no "é".', "abc", {"Allow": "GET"})

    assert json.loads(made.body) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": 'There is no "é".',
        "code": "not_found",
        "request_id": "abc",
    }
    assert made.headers == {
        "Content-Type": "application/problem+json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Request-Id": "abc",
        "Allow": "GET",
    }


def test_a_missing_request_id_is_generated() -> None:
    first, second = problem(400, "x", "y"), problem(400, "x", "y", "")

    assert first.headers["X-Request-Id"] != second.headers["X-Request-Id"]
    assert json.loads(first.body)["request_id"] == first.headers["X-Request-Id"]


def test_as_http11_gives_a_complete_response() -> None:
    made = problem(431, "headers_too_large", "The request headers are too large.")

    head, _, body = made.as_http11().partition(b"\r\n\r\n")

    status_line, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert status_line == "HTTP/1.1 431 Request Header Fields Too Large"
    assert (title(400), title(499)) == ("Bad Request", "Client Closed Request")
    assert headers.items() >= {**made.headers, "Connection": "close", "Content-Length": str(len(body))}.items()
    assert headers["Date"].endswith("GMT")
    assert body == made.body
