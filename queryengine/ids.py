"""Request and query ids: the caller's id if it is well-formed, otherwise a new one."""

import os
import re

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return os.urandom(16).hex()


def accepted_id(inbound: str | None) -> str | None:
    """Return the caller's request id if it is safe to repeat in headers and logs, otherwise None."""
    return inbound if inbound is not None and _WELL_FORMED.fullmatch(inbound) else None
