"""The lines that the endpoint logs for its statements."""

from __future__ import annotations

import pytest


def outcomes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.fields["outcome"] for record in caplog.records if record.name == "flightapi.queries"]  # type: ignore[attr-defined]
