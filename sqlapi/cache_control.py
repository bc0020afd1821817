"""What a request's `Cache-Control` wants of remembered answers (RFC 9111, 5.2.1)."""

from __future__ import annotations

import re
from typing import Final

from queryengine.engine import CacheUse
from sqlapi.media_types import split_list

#: Any number of zeros, as a token or in quotes (RFC 9111, 1.2.2 and 5.2).
_NO_AGE: Final = re.compile(r'max-age=("?)0+\1')


def cache_use(header: str | None) -> CacheUse:
    """
    Return what to do about remembered answers: without the header, or with none of what follows, use them.

    `no-store` keeps the answer from being remembered, and none is given. `no-cache` has the statement run, as has
    `max-age=0`, and the new answer is remembered. Other directives speak of copies that may be out of date, which there
    are none of here.
    """
    if not header:
        return "use"
    directives = {item.strip().lower() for item in split_list(header)}
    if "no-store" in directives:
        return "none"
    return "renew" if "no-cache" in directives or any(map(_NO_AGE.fullmatch, directives)) else "use"
