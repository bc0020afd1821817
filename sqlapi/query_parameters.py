"""The parameters of query strings. Routes read only what is declared here; other parameters are ignored."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

from sqlapi.errors import InvalidParameterError
from sqlapi.negotiation import NAMED

_T = TypeVar("_T")

_MAX_PARAMETERS = 100
_NUMBER = re.compile("[0-9]{1,4}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter(Generic[_T]):
    """
    A parameter, which `openapi.json` describes for each operation that reads it.

    Args:
        name: Its name.
        parse: Turns its text into a value, or raises ValueError.
        refusal: The sentence for a caller that sends it twice or with a bad value.
    """

    name: str
    parse: Callable[[str], _T]
    refusal: str

    def read(self, environ: Mapping[str, Any]) -> _T | None:
        """
        Return its value in the query string of a request, or None if it is absent.

        Raises:
            InvalidParameterError: It occurs twice, its value is bad, or there are too many parameters of any name.
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


#: Of the route that runs a statement.
SQL_FORMAT = QueryParameter(
    name="format",
    parse=_choice(*NAMED),
    refusal=f"The parameter format is one of {', '.join(NAMED)}.",
)

#: Of routes that answer with a list.
FORMAT = QueryParameter(
    name="format",
    parse=_choice("json", "csv"),
    refusal="The parameter format is json or csv.",
)

#: Of routes that answer with a single object.
JSON_FORMAT = QueryParameter(
    name="format",
    parse=_choice("json"),
    refusal="This route answers in JSON: the parameter format is json, or left out.",
)

#: How many rows of history or statistics a request gets.
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000


def _limit(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_LIMIT:
        raise ValueError
    return int(text)


#: Of routes that answer with what the runtime remembers.
LIMIT = QueryParameter(
    name="limit",
    parse=_limit,
    refusal=f"The parameter limit is a whole number from 1 to {MAX_LIMIT}.",
)
