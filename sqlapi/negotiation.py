"""
What a request asks for: the response format, the number of rows, and the use of the results cache.

These come from `Accept` (RFC 9110, 12.5.1), `Cache-Control` and the query string. Routes read only the query parameters
that are declared here.

Django's `HttpRequest.get_preferred_type` drops ranges with `q=0`, so `text/csv;q=0, */*` would still select CSV. It
also compares parameters, so `application/json; charset=utf-8` would be refused. DRF ignores q-values.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

from queryengine.engine import CacheUse, Encoding
from sqlapi.errors import InvalidParameterError, NotAcceptableError

_T = TypeVar("_T")

# Media types (RFC 9110, 8.3.1). Malformed input is ignored and is not an error.
_TCHARS = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*(?:({_TCHARS})=({_TCHARS}|{_QUOTED}))?", re.DOTALL)
_ITEM = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_MEDIA_TYPE = re.compile(rf"[ \t]*({_TCHARS}/{_TCHARS})")

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
#: Any number of zeros, as a token or in quotes (RFC 9111, 1.2.2 and 5.2).
_NO_AGE = re.compile(r'max-age=("?)0+\1')

_MAX_PARAMETERS = 100
_NUMBER = re.compile("[0-9]{1,4}", re.ASCII)

#: The default number of history or statistics rows in a response.
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000


def parse_media_type(text: str) -> tuple[str, dict[str, str]] | None:
    """
    Return the type and its parameters, with type and names in lower case; None if *text* is not a media type.

    If a parameter is repeated, the first one counts.
    """
    found = _MEDIA_TYPE.match(text)
    if found is None:
        return None
    parameters: dict[str, str] = {}
    position = found.end()
    while parameter := _PARAMETER.match(text, position):
        position = parameter.end()
        name, value = parameter.groups()
        if name:
            if value.startswith('"'):
                value = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
            parameters.setdefault(name.lower(), value)
    if text[position:].strip(" \t"):
        return None
    return found[1].lower(), parameters


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated header; commas within quotes do not separate."""
    return [item[0] for item in _ITEM.finditer(text)]


class Offer(Struct, frozen=True):
    """A response format. `media_type` is matched with `Accept`; `content_type` is sent."""

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
    # None of these names is registered, but all are in common use.
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


@lru_cache(maxsize=64)
def choose(accept: str | None, format_: str | None = None) -> Offer:
    """
    Return the best offer for an `Accept` header, or the first offer if there is no well-formed range.

    *format_*, the value of `?format=`, overrides the header. An offer has the quality of the most specific range that
    covers it. Parameters other than `q` are ignored. Among offers of equal quality the one with the more specific range
    wins, then the one named first, then our order.

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
    Return how a request with this `Cache-Control` (RFC 9111, 5.2.1) uses the results cache.

    By default, the cache is read and written. `no-store` does neither. `no-cache` and `max-age=0` run the statement and
    store its result. Other directives concern stale entries, which this cache does not have.
    """
    if not header:
        return "use"
    directives = {item.strip().lower() for item in split_list(header)}
    if "no-store" in directives:
        return "none"
    return "renew" if "no-cache" in directives or any(map(_NO_AGE.fullmatch, directives)) else "use"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter(Generic[_T]):
    """
    A query parameter, which `openapi.json` describes for each operation that reads it.

    Args:
        name: The name of the parameter.
        parse: Converts the text to a value, or raises ValueError.
        refusal: The error message for a parameter that is repeated or has an invalid value.
    """

    name: str
    parse: Callable[[str], _T]
    refusal: str

    def read(self, environ: Mapping[str, Any]) -> _T | None:
        """
        Return the parameter's value in the query string of a request; None if it is absent.

        Raises:
            InvalidParameterError: The parameter is repeated, its value is invalid, or the query string has too many
                parameters.
        """
        query_string = environ.get("QUERY_STRING")
        if not query_string:
            return None
        try:
            parameters = parse_qsl(query_string, True, max_num_fields=_MAX_PARAMETERS)
        except ValueError as error:
            raise InvalidParameterError("The query string has too many parameters.") from error
        sent = [value for name, value in parameters if name == self.name]
        if len(sent) > 1:
            raise InvalidParameterError(self.refusal)
        try:
            return self.parse(sent[0]) if sent else None
        except ValueError as error:
            raise InvalidParameterError(self.refusal) from error


def _choice(*names: str) -> Callable[[str], str]:
    return lambda text: names[names.index(text)]


#: For the route that runs a statement.
SQL_FORMAT = QueryParameter(
    name="format",
    parse=_choice(*NAMED),
    refusal=f"The parameter format must be one of {', '.join(NAMED)}.",
)

#: For routes that return a list.
FORMAT = QueryParameter(
    name="format",
    parse=_choice("json", "csv"),
    refusal="The parameter format must be json or csv.",
)

#: For routes that return a single object.
JSON_FORMAT = QueryParameter(
    name="format",
    parse=_choice("json"),
    refusal="This route returns JSON: set the parameter format to json, or omit it.",
)


def _limit(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_LIMIT:
        raise ValueError
    return int(text)


#: For the history and statistics routes.
LIMIT = QueryParameter(
    name="limit",
    parse=_limit,
    refusal=f"The parameter limit must be a whole number from 1 to {MAX_LIMIT}.",
)
