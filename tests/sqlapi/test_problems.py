import http.client
import io
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


class Connection:
    """A connection from which `http.client` reads an answer."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def test_as_http11_gives_a_complete_response() -> None:
    made = problem(431, "headers_too_large", "The request headers are too large.")

    answer = http.client.HTTPResponse(Connection(made.as_http11()))  # type: ignore[arg-type]
    answer.begin()

    assert (answer.status, answer.reason) == (431, "Request Header Fields Too Large")
    assert (title(400), title(499)) == ("Bad Request", "Client Closed Request")
    assert answer.headers["Connection"] == "close"
    assert answer.headers["X-Request-Id"] == made.headers["X-Request-Id"]
    assert answer.headers["Date"].endswith("GMT")
    assert answer.read() == made.body
