"""How a request's `Cache-Control` header (RFC 9111, 5.2.1) affects the results cache."""

from __future__ import annotations

import re
from typing import Final

from queryengine.engine import CacheUse
from sqlapi.media_types import split_list

#: Any number of zeros, as a token or in quotes (RFC 9111, 1.2.2 and 5.2).
_NO_AGE: Final = re.compile(r'max-age=("?)0+\1')


def cache_use(header: str | None) -> CacheUse:
    """
    Return how the request uses the results cache. By default it reads and writes it.

    `no-store` does neither. `no-cache` and `max-age=0` run the statement and store its result. Other directives are
    about stale copies, which this cache does not have.
    """
    if not header:
        return "use"
    directives = {item.strip().lower() for item in split_list(header)}
    if "no-store" in directives:
        return "none"
    return "renew" if "no-cache" in directives or any(map(_NO_AGE.fullmatch, directives)) else "use"
