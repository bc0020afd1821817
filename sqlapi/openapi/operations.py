"""What each route takes and gives, by the name of the route and the method. HEAD is GET without a body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from authkeys.errors import AuthKeysError, NotPermittedError
from datasources.errors import DatasetError, DatasetsUnavailableError, UnknownDatasetError
from queryengine.errors import EngineUnavailableError, QueryError, RateLimitError
from runtimeconf.errors import RuntimeConfError
from sqlapi import negotiation
from sqlapi.error_table import INTERNAL_CODE
from sqlapi.errors import (
    BodyError,
    CharsetError,
    CrossSiteRequestError,
    HistoryDisabledError,
    InvalidHostError,
    InvalidParameterError,
    MethodNotAllowedError,
    NotAcceptableError,
    QueryNotFoundError,
    RequestTimeoutError,
    RouteNotFoundError,
    SqlApiError,
)
from sqlapi.openapi.error_codes import codes_of
from sqlapi.openapi.schemas import Schema, array_of, reference
from sqlapi.query_parameters import FORMAT, JSON_FORMAT, LIMIT, SQL_FORMAT, QueryParameter
from system.errors import StateDirectoryError
from telemetry.errors import TelemetryError

#: Content by media type: the members of a response or request body.
Content = Mapping[str, Mapping[str, Any]]

_TEXT: Schema = {"type": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """A response without an error. *headers* are always sent, *optional_headers* sometimes."""

    status: int = 200
    description: str
    content: Content
    headers: tuple[str, ...] = ()
    optional_headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    A method of a route.

    Args:
        id: The `operationId`: the name of the call in generated clients.
        tag: The group it is listed in, one of `TAGS`.
        summary: A line that says what it does.
        description: More about it: CommonMark.
        query: The parameters that it reads from the query string.
        headers: The names of request headers, of `REQUEST_HEADERS`, that it reads beside those that every route reads.
        body: The content of its request body; None if it reads none.
        body_required: Whether an empty body is an error.
        successes: The responses that are no errors.
        error_headers: The names of headers, of `RESPONSE_HEADERS`, that its own errors may have.
        codes: The error codes beside those that every route sends (`OPEN_CODES`, `KEYED_CODES`).
    """

    id: str
    tag: str
    summary: str
    description: str = ""
    query: Sequence[QueryParameter[Any]] = ()
    headers: tuple[str, ...] = ()
    body: Content | None = None
    body_required: bool = False
    successes: tuple[Success, ...]
    error_headers: tuple[str, ...] = ()
    codes: tuple[str, ...] = field(default=())


TAGS: Mapping[str, str] = {
    "Statements": "Run SQL statements, list and cancel them.",
    "Datasets": "The data that statements see, and how fresh it is.",
    "Runtime": "Check whether the runtime works, and what a key may do.",
}

#: The parameters in the paths of routes.
PATH_PARAMETERS: Mapping[str, str] = {
    "query_id": "The id of the statement: the `X-Query-Id` of its response, or `id` in the list of active statements.",
    "name": "The name of the dataset. Case is ignored.",
}

#: Of the HTTP server, before it knows the route, and of a bug.
OPEN_CODES = (
    "malformed_request",
    "uri_too_long",
    "expectation_failed",
    "headers_too_large",
    "unsupported_transfer_coding",
    INTERNAL_CODE,
    *codes_of(RequestTimeoutError, MethodNotAllowedError, RuntimeConfError, StateDirectoryError),
)

#: Of every route that needs a key.
KEYED_CODES = (
    *OPEN_CODES,
    "missing_key",
    "invalid_key",
    SqlApiError.code,
    *codes_of(InvalidHostError, CrossSiteRequestError, InvalidParameterError, RateLimitError),
    *(code for code in codes_of(AuthKeysError) if code != NotPermittedError.code),
)

_STATEMENT_CODES = tuple(code for code in codes_of(QueryError) if code != RateLimitError.code)
_BODY_CODES = codes_of(BodyError)
_ENGINE_UNAVAILABLE = EngineUnavailableError.code
_REMEMBERED_CODES = (NotPermittedError.code, *codes_of(HistoryDisabledError, TelemetryError))
_PATH_CODES = codes_of(RouteNotFoundError)  # of a parameter that is empty or holds a slash


def _json(schema: Schema) -> Content:
    return {"application/json": {"schema": schema}}


def _rows(schema: Schema) -> Content:
    return {**_json(schema), "text/csv": {"schema": _TEXT | {"description": "A header line, then a line per item."}}}


_JSON_ROWS: Schema = {
    "type": "string",
    "contentMediaType": "application/json",
    "contentSchema": reference("Rows"),
    "description": "A JSON array with one object per row.",
}

_JSON_LINES: Schema = _TEXT | {"description": "One JSON object per row, each on a line of its own."}

#: The schema of each format of an answer; Arrow's is none of JSON.
_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "text/plain": {"schema": _JSON_ROWS},
    "application/json": {"schema": reference("Rows")},
    "text/csv": {"schema": _TEXT | {"description": "A header line, then one line per row."}},
    "application/vnd.apache.arrow.stream": {},
    "application/vnd.spiceai.sql.v1+json": {"schema": reference("RowsWithSchema")},
    "application/x-ndjson": {"schema": _JSON_LINES},
    "application/jsonl": {"schema": _JSON_LINES},
    "application/ndjson": {"schema": _JSON_LINES},
}

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("health", "GET"): Operation(
        id="getHealth",
        tag="Runtime",
        summary="Check whether the process answers",
        description="Uses neither the engine nor the data.",
        successes=(Success(description="The process answers.", content={"text/plain": {"schema": {"const": "ok\n"}}}),),
    ),
    ("ready", "GET"): Operation(
        id="getReadiness",
        tag="Runtime",
        summary="Check whether it can run statements",
        description="`/v1/status` shows which component or dataset is not ready.",
        successes=(
            Success(description="It can.", content={"text/plain": {"schema": {"const": "ready"}}}),
            Success(status=503, description="It cannot.", content={"text/plain": {"schema": {"const": "not ready"}}}),
        ),
    ),
    ("sql", "POST"): Operation(
        id="runStatement",
        tag="Statements",
        summary="Run a statement",
        description="`Accept` selects the format of the response. A long response is streamed. If the statement fails "
        "after the first byte was sent, the connection breaks off without the last chunk.",
        query=(SQL_FORMAT,),
        headers=("Cache-Control",),
        body={
            "text/plain": {
                "schema": _TEXT | {"description": "The statement. Any type but `application/json` means this."},
                "examples": {"statement": {"value": "SELECT 42 AS answer"}},
            },
            "application/json": {
                "schema": reference("Statement"),
                "examples": {
                    "statement": {"value": {"sql": "SELECT 42 AS answer"}},
                    "list": {"value": {"sql": "SELECT ? AS a, ? AS b", "parameters": [1, "x"]}},
                    "object": {"value": {"sql": "SELECT $a AS a", "parameters": {"a": 1}}},
                },
            },
        },
        body_required=True,
        successes=(
            Success(
                description="The rows.",
                content={offer.media_type: _ANSWERS[offer.media_type] for offer in negotiation.OFFERS},
                headers=("X-Query-Id",),
                optional_headers=("X-Cache",),
            ),
        ),
        error_headers=("X-Query-Id",),
        codes=(NotPermittedError.code, *codes_of(NotAcceptableError), *_BODY_CODES, *_STATEMENT_CODES),
    ),
    ("active", "GET"): Operation(
        id="listActiveStatements",
        tag="Statements",
        summary="List your queued and running statements",
        description="Those that were sent with the same key, oldest first.",
        query=(FORMAT,),
        successes=(Success(description="The statements.", content=_rows(array_of("ActiveStatement"))),),
        codes=(_ENGINE_UNAVAILABLE,),
    ),
    ("history", "GET"): Operation(
        id="listHistory",
        tag="Statements",
        summary="List your last statements that have ended",
        description="Those that were sent with the same key, over HTTP and Flight SQL, newest first.",
        query=(LIMIT, FORMAT),
        successes=(Success(description="The statements.", content=_rows(array_of("EndedStatement"))),),
        codes=_REMEMBERED_CODES,
    ),
    ("statistics", "GET"): Operation(
        id="getStatistics",
        tag="Statements",
        summary="Show statistics of your statements",
        description="Statements that differ only in values are counted together. The CSV has only their list.",
        query=(LIMIT, FORMAT),
        successes=(Success(description="The statistics.", content=_rows(reference("Statistics"))),),
        codes=_REMEMBERED_CODES,
    ),
    ("cancel", "POST"): Operation(
        id="cancelStatement",
        tag="Statements",
        summary="Cancel a statement",
        description="One that was sent with the same key. A body is not read.",
        query=(JSON_FORMAT,),
        successes=(
            Success(
                description="It is being cancelled.", content=_json(reference("Cancelled")), headers=("X-Query-Id",)
            ),
        ),
        codes=(_ENGINE_UNAVAILABLE, *codes_of(QueryNotFoundError), *_PATH_CODES),
    ),
    ("status", "GET"): Operation(
        id="getStatus",
        tag="Runtime",
        summary="List the components and their states",
        query=(FORMAT,),
        successes=(Success(description="The components.", content=_rows(array_of("Component"))),),
    ),
    ("datasets", "GET"): Operation(
        id="listDatasets",
        tag="Datasets",
        summary="List the datasets",
        description="In the order of the YAML: those that the key may read.",
        query=(FORMAT,),
        successes=(Success(description="The datasets.", content=_rows(array_of("Dataset"))),),
        codes=codes_of(DatasetsUnavailableError),
    ),
    ("refresh", "GET"): Operation(
        id="listRefreshes",
        tag="Datasets",
        summary="List the refreshes of a dataset",
        description="The last 100, newest first.",
        query=(FORMAT,),
        successes=(Success(description="The refreshes.", content=_rows(array_of("Refresh"))),),
        codes=(*codes_of(DatasetsUnavailableError, UnknownDatasetError), *_PATH_CODES),
    ),
    ("refresh", "POST"): Operation(
        id="requestRefresh",
        tag="Datasets",
        summary="Request a refresh of a dataset",
        description="While one refresh of a dataset runs, one more can be queued; further requests join that one.",
        query=(JSON_FORMAT,),
        body={
            "application/json": {
                "schema": reference("RefreshRequest"),
                "examples": {"as_configured": {"value": {}}, "delayed": {"value": {"refresh_jitter_max": "1s"}}},
            }
        },
        successes=(Success(status=201, description="It is queued.", content=_json(reference("RefreshRequested"))),),
        codes=(
            NotPermittedError.code,
            *(code for code in _BODY_CODES if code != CharsetError.code),
            *_PATH_CODES,
            *codes_of(DatasetError),
            *(code for code in _STATEMENT_CODES if code != "invalid_parameters"),
        ),
    ),
    ("key", "GET"): Operation(
        id="getKey",
        tag="Runtime",
        summary="Show what your key may do",
        query=(JSON_FORMAT,),
        successes=(Success(description="The key.", content=_json(reference("Key"))),),
    ),
    ("catalogs", "GET"): Operation(
        id="listCatalogs",
        tag="Datasets",
        summary="List the catalogs that statements see",
        query=(FORMAT,),
        successes=(Success(description="The catalogs.", content=_rows(array_of("Catalog"))),),
    ),
    ("openapi", "GET"): Operation(
        id="getOpenApi",
        tag="Runtime",
        summary="Get this document",
        query=(JSON_FORMAT,),
        successes=(Success(description="The document.", content=_json(reference("OpenApi"))),),
    ),
}
