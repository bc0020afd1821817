"""
Chooses the format of an answer by `Accept` (RFC 9110, 12.5.1).

Django's `HttpRequest.get_preferred_type` drops ranges with `q=0`, so `text/csv;q=0, */*` would still give CSV, and it
compares parameters, so `application/json; charset=utf-8` would be refused. DRF ignores q-values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from queryengine.engine import Encoding
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
)

#: The values of `?format=`.
_NAMED: dict[str, Offer] = {
    offer.encoding: offer for offer in OFFERS if offer.media_type in {"application/json", "text/csv"}
}

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


@dataclass(frozen=True, slots=True)
class _Range:
    media_type: str
    specificity: int
    quality: float
    position: int

    def covers(self, offer: Offer) -> bool:
        if self.specificity == 0:
            return True
        if self.specificity == 1:
            return offer.media_type.startswith(self.media_type.removesuffix("*"))
        return offer.media_type == self.media_type


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
        return _NAMED[format_]
    ranges = [found for position, item in enumerate(split_list(accept or "")) if (found := _range(item, position))]
    if not ranges:
        return OFFERS[0]
    best: tuple[tuple[float, int, int], Offer] | None = None
    for offer in OFFERS:
        covering = [entry for entry in ranges if entry.covers(offer)]
        if not covering:
            continue
        deciding = max(covering, key=lambda entry: (entry.specificity, -entry.position))
        rank = (deciding.quality, deciding.specificity, -deciding.position)
        if deciding.quality > 0 and (best is None or rank > best[0]):
            best = (rank, offer)
    if best is None:
        raise NotAcceptableError([offer.media_type for offer in OFFERS])
    return best[1]


def _range(item: str, position: int) -> _Range | None:
    parsed = parse_media_type(item)
    if parsed is None:
        return None
    media_type, parameters = parsed
    quality = parameters.get("q", "1")
    kind, _, subtype = media_type.partition("/")
    if not _QUALITY.fullmatch(quality) or (kind == "*" and subtype != "*"):
        return None
    specificity = 0 if kind == "*" else 1 if subtype == "*" else 2
    return _Range(media_type, specificity, float(quality), position)
