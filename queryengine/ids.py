"""Ids of requests and queries: taken from the caller when well-formed, made here otherwise."""

from __future__ import annotations

import os
import re

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return os.urandom(16).hex()


def accepted_id(inbound: str | None) -> str | None:
    """Return the caller's request id if it may be repeated in headers and logs, else None."""
    return inbound if inbound is not None and _WELL_FORMED.fullmatch(inbound) else None
