"""docs/http.md, and docs/logs.md document everything that exists; `openapi` has the error codes."""

import logging
import re
from pathlib import Path

import pytest
from rest_framework.permissions import AllowAny

from runtime_site import logs
from sqlapi.negotiation import OFFERS
from sqlapi.problems import COMMON_HEADERS
from sqlapi.urls import ROUTES
from tests.sqlapi.harness import methods_of, sql
from tests.system.harness import WRONG

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "http.md").read_text()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
LOGS = (DOCS / "logs.md").read_text()


def test_every_route_with_its_methods() -> None:
    documented = {
        match[1]: (tuple(row[1].split(", ")), row[2])
        for row in ROWS
        if len(row) == 4 and (match := re.match(r"\[`(/.*?)`\]", row[0]))
    }

    assert documented == {
        route.template: (methods_of(route), "no" if AllowAny in route.view.permission_classes else "yes")
        for route in ROUTES
    }


def test_every_format_of_an_answer() -> None:
    for offer in OFFERS:
        content_type = offer.content_type
        assert any(f"`{offer.media_type}`" in row[0] and row[1] in {f"`{content_type}`", "the same"} for row in ROWS)


def test_every_header_of_every_answer() -> None:
    assert "| `X-Request-Id` | every response |" in PAGE
    for name, value in COMMON_HEADERS.items():
        assert f"| `{name}` | every response | `{value}` |" in PAGE


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("logger", "message"),
    [("sqlapi.access", "request"), ("sqlapi.queries", "query"), ("authkeys.audit", "authentication failed")],
)
def test_every_field_of_a_log_line(logger: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sql("SELECT 1")
        sql("SELECT 1", key=WRONG)

    table = LOGS.partition(f"| Field of `{logger}` | Contents |\n")[2].partition("\n\n")[0]
    documented = re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines()[1:]))
    record = next(record for record in caplog.records if record.name == logger)
    assert sorted(documented) == sorted(record.fields)  # type: ignore[attr-defined]
    assert record.getMessage() == message
    assert f"message `{message}`" in LOGS


def test_every_limit_of_a_log_line() -> None:
    for limit in (logs.MAX_VALUE_CHARACTERS, logs.MAX_MESSAGE_CHARACTERS, logs.MAX_TRACEBACK_CHARACTERS):
        assert f" {limit:,}" in LOGS
    assert all(f"`{name}`" in LOGS for name in logs.LOG_FORMATS)
