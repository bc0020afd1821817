"""
A record of a test run that survives its end, whatever ends it.

`python -m tests.journal FILE` prints what failed, with its output, and what was running when the record ends.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest


class Journal:
    """A plugin for pytest that appends JSON lines to *path*: `{"event", "test", "text"}`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("start", nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write("finish", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write("failed", report.nodeid, _text(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("failed", report.nodeid, _text(report))

    def pytest_internalerror(self, excrepr: object) -> None:
        self._write("failed", "pytest itself", str(excrepr))

    def _write(self, event: str, test: str, text: str = "") -> None:
        self._file.write(json.dumps({"event": event, "test": test, "text": text}) + "\n")


def summary(path: Path) -> str:
    """Return what failed and what was running; a last line that was cut off is ignored."""
    running: dict[str, None] = {}
    failed: dict[str, str] = {}
    for line in path.read_text().splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        test = entry["test"]
        if entry["event"] == "start":
            running[test] = None
        elif entry["event"] == "finish":
            running.pop(test, None)
        else:
            failed[test] = failed.get(test, "") + entry["text"]
    parts = [f"==== {test}\n{text}" for test, text in failed.items()]
    parts += [f"RUNNING {test}" for test in running]
    parts += [f"FAILED {test}" for test in failed]
    return "\n".join(parts)


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    return "\n".join([report.longreprtext, *(f"---- {name}\n{text[-20_000:]}" for name, text in report.sections)])


if __name__ == "__main__":
    print(summary(Path(sys.argv[1])))  # noqa: T201
