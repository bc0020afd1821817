"""Run a command of `querykeep` in this process, on streams of the test."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from runtimeclient.main import run_on
from runtimeclient.output.terminal import Streams


class Screen(io.StringIO):
    """A stream that claims to be a terminal; it has 80 columns, the default."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Called:
    status: int
    out: str
    err: str


def call(
    *arguments: str,
    stdin: TextIO | None = None,
    out: io.StringIO | None = None,
    err: io.StringIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> Called:
    """Run `querykeep` with these arguments and only this environment."""
    out, err = out or io.StringIO(), err or io.StringIO()
    settings = {"XDG_CONFIG_HOME": "/nonexistent", **(environ or {})}
    status = run_on(Streams(stdin, out, err), settings, "querykeep", arguments)
    return Called(status, out.getvalue(), err.getvalue())
