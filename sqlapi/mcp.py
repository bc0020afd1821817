"""
The view of the Model Context Protocol: streamable HTTP without sessions, each response as JSON.

`mcpapi` knows the protocol and the tools. Here are the rules of its HTTP transport, and the runtime behind the tools:
each statement takes the way of `/v1/sql`.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from itertools import count, islice
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

import mcpapi.messages as rpc
from authkeys.principal import Principal
from mcpapi.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    RpcError,
    ToolError,
)
from mcpapi.messages import Message, RequestId
from mcpapi.server import HANDSHAKE_VERSIONS, STATELESS_VERSIONS, Server, unsupported, version_of
from queryengine.engine import QueryEngine
from queryengine.ids import accepted_id, new_id
from queryengine.state import get_engine
from runtimeconf.state import get_config
from sqlapi.api_view import ApiView, caller_of
from sqlapi.datasets import datasets_of
from sqlapi.error_table import refusal_of
from sqlapi.errors import AnswerCutError, ClientGoneError, RouteNotFoundError
from sqlapi.hosts import check_same_site
from sqlapi.problems import QUERY_ID
from sqlapi.request_bodies import read_body
from sqlapi.statements import ResultStream, query_of

_VERSION = "HTTP_MCP_PROTOCOL_VERSION"

#: How many statements one message runs at most: the catalog, and the first rows of a dataset.
_STATEMENTS = 2

#: The statuses of errors. Before 2026-07-28 the response to a well-formed request had the status 200.
_STATUSES = {PARSE_ERROR: 400, INVALID_REQUEST: 400, UNSUPPORTED_VERSION: 400, HEADER_MISMATCH: 400}
_STATELESS_STATUSES = _STATUSES | {INVALID_PARAMS: 400, METHOD_NOT_FOUND: 404}

#: Where requests have what the header `Mcp-Name` repeats.
_NAMES = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}


class McpView(ApiView):
    """`/v1/mcp`: answer the messages of an MCP client."""

    http_method_names = ["post"]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate. Without `runtime.mcp` the route does not exist; other sites are refused with a key as well."""
        super().initial(request, *args, **kwargs)
        if not get_config().mcp.enabled:
            raise RouteNotFoundError
        check_same_site(self.host, request.META.get("HTTP_ORIGIN"), request.META.get("HTTP_SEC_FETCH_SITE"))

    def post(self, request: Request) -> HttpResponse:
        """Answer the message in the body."""
        environ = request.META
        body = read_body(environ, get_config().http.max_body_bytes, caller_of(request).fingerprint)
        caller = self.authenticate_again(request)
        value = None
        try:
            value = rpc.parse(body)
            message = rpc.message_of(value)
            _check_headers(environ, message)
            answer = _answer(caller, environ, message)
        except RpcError as error:
            return _response(rpc.failure(rpc.id_of(value), error), _status(error, environ))
        response = HttpResponse(status=202) if answer is None else _response(answer)
        if message is not None and message.method == "initialize":
            # Nothing is kept under this id: it makes the ids of requests unique, so that they can be cancelled.
            response["Mcp-Session-Id"] = new_id()
        return response


def _answer(caller: Principal, environ: MutableMapping[str, Any], message: Message | None) -> dict[str, Any] | None:
    """Return the response to a message; None for a notification or a response."""
    if message is None:
        return None
    session = accepted_id(environ.get("HTTP_MCP_SESSION_ID"))
    if not message.is_notification:
        runtime = _Runtime(caller, environ, _query_ids(caller, session, message.id))
        return rpc.result(message.id, Server(runtime).answer(message))
    cancelled = rpc.cancelled_by(message)
    if session is not None and cancelled is not None:
        for query_id in islice(_query_ids(caller, session, cancelled), _STATEMENTS):
            get_engine().cancel(query_id, caller.fingerprint)
    return None


class _Runtime:
    """
    The runtime as one caller sees it: `mcpapi.tools.Runtime`.

    All statements of a message run on the engine of the caller's configuration, even if a reload comes between them.
    """

    def __init__(self, caller: Principal, environ: MutableMapping[str, Any], query_ids: Iterator[str]) -> None:
        self._caller, self._environ, self._query_ids = caller, environ, query_ids

    @cached_property
    def _engine(self) -> QueryEngine:
        return get_engine()

    @contextmanager
    def run(self, sql: str) -> Iterator[Iterable[bytes]]:
        try:
            self._caller.require("query")
            self._environ[QUERY_ID] = next(self._query_ids)
            query = query_of(self._caller, self._environ, sql, "vnd")
            result = ResultStream(self._engine, query, self._environ, "mcp")
            try:
                yield result
            finally:
                result.close("ok")  # A caller that has seen enough rows got what it asked for.
        except (ClientGoneError, ToolError):
            raise
        except AnswerCutError as error:
            raise _tool_error(error.__cause__ if isinstance(error.__cause__, Exception) else error) from error
        except Exception as error:
            raise _tool_error(error) from error

    def datasets(self) -> list[dict[str, Any]]:
        try:
            _ = self._engine  # before the list is asked for, which takes time
            return datasets_of(self._caller)
        except Exception as error:
            raise _tool_error(error) from error


def _tool_error(error: Exception) -> Exception:
    """Return the error for the model; an internal error unchanged, which becomes the response to the request."""
    refusal = refusal_of(error)
    return error if refusal.is_internal else ToolError(refusal.code, refusal.detail)


def _query_ids(caller: Principal, session: str | None, request_id: RequestId) -> Iterator[str]:
    """Yield the ids of the statements of a request, which only its caller can compute."""
    for number in count():
        if session is None:
            yield new_id()
        else:
            named = json.dumps([caller.fingerprint, session, request_id, number])
            yield sha256(named.encode()).hexdigest()[:32]


def _check_headers(environ: MutableMapping[str, Any], message: Message | None) -> None:
    """
    Check that the headers agree with the message.

    Raises:
        RpcError: They do not, or the version is unknown.
    """
    header = environ.get(_VERSION)
    if message is not None and message.is_notification:
        message = None
    version = None if message is None else version_of(message)
    if message is None or (version is None and header not in STATELESS_VERSIONS):
        if header is not None and header not in {*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS}:
            raise unsupported(header)
        return
    if version is None:
        raise RpcError(INVALID_PARAMS, "The _meta of a request must contain the protocol version.")
    if header != version:
        raise RpcError(HEADER_MISMATCH, "The header MCP-Protocol-Version does not match the version in the message.")
    if environ.get("HTTP_MCP_METHOD") != message.method:
        raise RpcError(HEADER_MISMATCH, "The header Mcp-Method does not match the method of the message.")
    name = message.params.get(_NAMES.get(message.method, ""))
    if name is not None and _decoded(environ.get("HTTP_MCP_NAME")) != name:
        raise RpcError(
            HEADER_MISMATCH, f"The header Mcp-Name does not match the {_NAMES[message.method]} in the message."
        )


def _decoded(header: str | None) -> str | None:
    """Return the text of a header; None if its base64 is malformed."""
    if header is None or not (header.startswith("=?base64?") and header.endswith("?=")):
        return header
    try:
        return base64.b64decode(header.removeprefix("=?base64?").removesuffix("?="), validate=True).decode()
    except ValueError:
        return None


def _status(error: RpcError, environ: Mapping[str, Any]) -> int:
    is_stateless = environ.get(_VERSION) in STATELESS_VERSIONS
    return (_STATELESS_STATUSES if is_stateless else _STATUSES).get(error.code, 200)


def _response(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(rpc.encode(value), status=status, content_type="application/json")
