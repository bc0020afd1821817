"""
What `Accept` (RFC 9110, 12.5.1) and `Cache-Control` ask for: the format of an answer, and the use of the results cache.

Django's `HttpRequest.get_preferred_type` drops ranges with `q=0`, so `text/csv;q=0, */*` would still give CSV, and it
compares parameters, so `application/json; charset=utf-8` would be refused. DRF ignores q-values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from queryengine.engine import CacheUse, Encoding
from sqlapi.errors import NotAcceptableError
from sqlapi.media_types import parse_media_type, split_list


@dataclass(frozen=True, slots=True)
class Offer:
    """A format of an answer: `media_type` is matched with Accept, `content_type` is sent."""

    media_type: str
    encoding: Encoding
    content_type: str


#: In order of preference. The first is the default.
OFFERS = (
    Offer("text/plain", "json", "text/plain; charset=utf-8"),
    Offer("application/json", "json", "application/json"),
    Offer("text/csv", "csv", "text/csv; charset=utf-8"),
    Offer("application/vnd.apache.arrow.stream", "arrow", "application/vnd.apache.arrow.stream"),
    Offer("application/vnd.spiceai.sql.v1+json", "vnd", "application/vnd.spiceai.sql.v1+json"),
    # None of the names is registered; each is common.
    Offer("application/x-ndjson", "ndjson", "application/x-ndjson"),
    Offer("application/jsonl", "ndjson", "application/jsonl"),
    Offer("application/ndjson", "ndjson", "application/ndjson"),
)

#: The values of `?format=`.
NAMED: Mapping[str, Offer] = {
    "json": OFFERS[1],
    "csv": OFFERS[2],
    "ndjson": OFFERS[5],
    "jsonl": OFFERS[6],
    "arrow": OFFERS[3],
}

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


#: Any number of zeros, as a token or in quotes (RFC 9111, 1.2.2 and 5.2).
_NO_AGE = re.compile(r'max-age=("?)0+\1')


@lru_cache(maxsize=64)
def choose(accept: str | None, format_: str | None = None) -> Offer:
    """
    Return the best offer for an Accept header; the first one without a header or without a well-formed range in it.

    *format_*, the value of `?format=`, overrides the header.
    The quality of an offer is that of the most specific range that covers it; parameters other than `q` are ignored.
    Among offers of equal quality the one with the more specific range wins, then the one named first, then our order.

    Raises:
        NotAcceptableError: No range covers an offer with a quality above 0.
    """
    if format_ is not None:
        return NAMED[format_]
    ranges = list(_ranges(accept or ""))
    if not ranges:
        return OFFERS[0]

    def rank(offer: Offer) -> tuple[float, int, int]:
        covering = {offer.media_type: 2, offer.media_type.partition("/")[0] + "/*": 1, "*/*": 0}
        found = [(covering[name], -at, quality) for at, (name, quality) in enumerate(ranges) if name in covering]
        specificity, position, quality = max(found, default=(0, 0, 0.0))
        return quality, specificity, position

    best = max(OFFERS, key=rank)
    if rank(best)[0] == 0:
        raise NotAcceptableError([offer.media_type for offer in OFFERS])
    return best


def _ranges(accept: str) -> Iterator[tuple[str, float]]:
    """Yield the well-formed media ranges with their qualities."""
    for media_type, parameters in filter(None, map(parse_media_type, split_list(accept))):
        quality = parameters.get("q", "1")
        if _QUALITY.fullmatch(quality) and (media_type == "*/*" or not media_type.startswith("*/")):
            yield media_type, float(quality)


def cache_use(header: str | None) -> CacheUse:
    """
    Return how a request with this `Cache-Control` (RFC 9111, 5.2.1) uses the results cache: by default in full.

    `no-store` neither reads nor writes it. `no-cache` and `max-age=0` run the statement and store its result. Other
    directives are about stale copies, which this cache does not have.
    """
    if not header:
        return "use"
    directives = {item.strip().lower() for item in split_list(header)}
    if "no-store" in directives:
        return "none"
    return "renew" if "no-cache" in directives or any(map(_NO_AGE.fullmatch, directives)) else "use"
