"""A typed client of a runtime's HTTP API."""

# ruff: noqa: PLC0415 (the resources, which `sql` does not need, are slow to import)

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx

from runtimeclient.errors import (
    ClientError,
    ConnectionFailedError,
    NotARuntimeError,
    NotAuthorisedError,
    RefreshFailedError,
    RequestRefusedError,
    UsageError,
)
from runtimeclient.http.api_keys import check_api_key, masked
from runtimeclient.http.endpoint import allow_streaming, limit_response_time, parse_endpoint, tls_context
from runtimeclient.http.results import JSON, JsonValue, SqlResult, as_json
from runtimeclient.http.timeouts import DEFAULT_TIMEOUTS, Timeouts

if TYPE_CHECKING:
    from runtimeclient.http.resources import (
        ActiveQuery,
        ComponentStatus,
        DatasetStatus,
        FinishedQuery,
        RefreshRun,
        RequestedRefresh,
        Statistics,
    )

# The media type for rows in the specification, which a runtime sends unless another type is requested.
_PLAIN_TEXT = "text/plain"
_ACTIVE_QUERIES = "/v1/sql/active"
_PROBLEM = "application/problem+json"
# The limit for every response except rows. Parsed JSON can take fifty times the memory of its text.
_MAX_METADATA_BYTES = 4 << 20
_FIRST_POLL_S = 0.1
_MAX_POLL_S = 2.0
# What a proxy sends while the runtime behind it does not respond. The runtime's own errors are problem bodies.
_NO_RUNTIME = {502, 503, 504}


USER_AGENT = "runtimeclient"


class RuntimeClient:
    """
    A client of one runtime. Use it as a context manager. Threads may share it.

    Redirects are not followed and requests are not retried. Certificates are always verified. Proxies from the
    environment are used, except for a loopback address.

    Args:
        base_url: URL of the HTTP API, such as `http://127.0.0.1:8090`; a path prefix is kept.
        api_key: Sent as `X-API-Key`; None sends no key.
        tls_root_certificate_file: PEM file of the only roots to trust; None trusts the default ones.
        transport: Replaces the network, for example `httpx.WSGITransport`.

    Raises:
        UsageError: The URL, the key, the certificate file, or a proxy or certificates from the environment cannot be
            used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        tls_root_certificate_file: Path | None = None,
        transport: httpx.BaseTransport | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.endpoint = parse_endpoint(base_url)
        self._timeouts = timeouts
        self._has_responded = False  # so the scheme is right
        self.api_key = None if api_key is None else check_api_key(api_key, "of the client")
        self._key_header = {} if api_key is None else {"X-API-Key": api_key}
        # Loading the roots takes longer than the rest of startup, so skip it without TLS.
        verify = (
            tls_context(tls_root_certificate_file) if self.endpoint.is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        try:
            self._http = httpx.Client(
                base_url=self.endpoint.url,
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
                verify=verify,
                follow_redirects=False,
                transport=transport,
                trust_env=not self.endpoint.is_loopback,
                # Servers close idle connections (gunicorn after 2 s). Do not send a request on a connection that is
                # closing.
                limits=httpx.Limits(keepalive_expiry=1.0),
            )
        except (ImportError, ValueError, httpx.InvalidURL) as exc:
            raise UsageError("The proxy from the environment cannot be used: set an http:// or https:// URL.") from exc
        self._connections = limit_response_time(self._http)
        # httpx has no public method that tells which requests use a proxy.
        is_direct = self._http._transport_for_url(httpx.URL(self.endpoint.url)) is self._http._transport  # noqa: SLF001
        #: What messages about the connection call the server.
        self._route = self.endpoint.url + ("" if is_direct else " (through the proxy from the environment)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def break_off(self) -> None:
        """Break every connection, from any thread. Calls in progress and later ones raise ConnectionFailedError."""
        self._connections.break_off()

    def ping(self) -> None:
        """
        Check that the endpoint responds within `connect_s`. The key is not sent.

        A query may take a long time to respond, so this check detects servers that never respond.

        Raises:
            ConnectionFailedError: There is no response.
        """
        self._send("GET", "/health", self._timeouts.connect_s).close()

    def is_ready(self) -> bool:
        """
        Return whether the runtime accepts statements and all its data is loaded. The key is not sent.

        Raises:
            ConnectionFailedError: There is no response, or the server is not a runtime.
        """
        with closing(self._send("GET", "/v1/ready", self._timeouts.connect_s)) as response:
            if response.status_code not in {200, 503}:
                raise self._not_a_runtime(response)
            return response.status_code == 200

    def sql(
        self,
        statement: str,
        media_type: str = JSON,
        parameters: Mapping[str, JsonValue] | Sequence[JsonValue] = (),
        user_agent: str = USER_AGENT,
    ) -> SqlResult:
        """
        Run one statement and return its result as an open stream. The caller must close it.

        Args:
            statement: SQL text, sent unchanged.
            media_type: `answers.JSON`, `answers.CSV`, `answers.JSON_WITH_SCHEMA` or `answers.ARROW`.
            parameters: Values for `$name` by name, or for `?` and `$1` in order.
            user_agent: The program that sends the statement.

        Raises:
            UsageError: The statement cannot be encoded.
            NotAuthorisedError: The runtime requires a key, or a different one.
            RequestRefusedError: The statement was rejected or failed.
            ConnectionFailedError: There is no response, or the server is not a runtime.
        """
        content, content_type = _encode(statement), "text/plain; charset=utf-8"
        if parameters:
            values = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            content, content_type = _encode(as_json({"sql": content.decode(), "parameters": values})), JSON
        headers = self._key_header | {"Accept": media_type, "Content-Type": content_type, "User-Agent": user_agent}
        response = self._send("POST", "/v1/sql", self._timeouts.silence_s, headers=headers, content=content)
        try:
            self._expect(response, 200)
            if _media_type(response) not in ({JSON, _PLAIN_TEXT} if media_type == JSON else {media_type}):
                raise self._not_a_runtime(response)
        except ClientError:
            response.close()
            raise
        allow_streaming(response)
        return SqlResult(response, self._timeouts.silence_s)

    def status(self) -> "tuple[ComponentStatus, ...]":
        """Return the status of each component. Raises the same errors as `sql`."""
        from runtimeclient.http.resources import ComponentStatus

        return tuple(map(ComponentStatus.from_json, self._items("/v1/status")))

    def datasets(self) -> "tuple[DatasetStatus, ...]":
        """Return all datasets, in the order of the configuration. Raises the same errors as `sql`."""
        from runtimeclient.http.resources import DatasetStatus

        return tuple(map(DatasetStatus.from_json, self.dataset_items()))

    def dataset_items(self) -> Iterator[Mapping[str, Any]]:
        """Return the response that `datasets` parses, as the runtime sent it. Raises the same errors as `sql`."""
        # Spice.ai omits the status unless it is requested.
        return self._items("/v1/datasets?status=true")

    def active_queries(self) -> "tuple[ActiveQuery, ...]":
        """Return the queued and running statements of this key, oldest first. Raises the same errors as `sql`."""
        from runtimeclient.http.resources import ActiveQuery

        return tuple(map(ActiveQuery.from_json, self._items(_ACTIVE_QUERIES)))

    def history(self, limit: int = 100) -> "tuple[FinishedQuery, ...]":
        """Return the most recently finished statements of this key, newest first. Raises the same errors as `sql`."""
        from runtimeclient.http.resources import FinishedQuery

        return tuple(map(FinishedQuery.from_json, self._items(f"/v1/sql/history?limit={limit}")))

    def statistics(self, limit: int = 100) -> "Statistics":
        """Return the statistics of the statements of this key. Raises the same errors as `sql`."""
        from runtimeclient.http.resources import Statistics

        return Statistics.from_json(self._object("GET", f"/v1/sql/statistics?limit={limit}", 200))

    def key_name(self) -> str | None:
        """Return the name of this key, or None if the key has no name. Raises the same errors as `sql`."""
        name = self._object("GET", "/v1/key", 200).get("name")
        return name if isinstance(name, str) else None

    def cancel_query(self, query_id: str) -> str:
        """
        Cancel a statement of this key and return the runtime's message.

        Raises:
            UsageError: *query_id* is empty or cannot be encoded.
            NotAuthorisedError, RequestRefusedError, ConnectionFailedError: See `sql`.
        """
        if not query_id:
            raise UsageError("Specify the id of the query to cancel: `queries` lists the ids.")
        answer = self._json("POST", f"/v1/sql/{_path_part(query_id)}/cancel", 200)
        message = answer.get("message") if isinstance(answer, dict) else None
        return message if isinstance(message, str) else f"Query {query_id} is being cancelled."

    def request_refresh(
        self,
        name: str,
        refresh_sql: str | None = None,
        *,
        refresh_mode: str | None = None,
        refresh_jitter_max: str | None = None,
    ) -> "RequestedRefresh":
        """
        Request a refresh of a dataset, without waiting for it. A queued refresh is joined.

        Args:
            refresh_sql: The query to load this time, instead of the configured one.
            refresh_mode: `full` or `append`, instead of the configured mode.
            refresh_jitter_max: A duration such as `30s`: the refresh starts after a random delay of up to this time.

        Raises:
            UsageError: *name* is empty, or *refresh_sql* cannot be encoded.
            NotAuthorisedError, RequestRefusedError, ConnectionFailedError: See `sql`.
        """
        from runtimeclient.http.resources import RequestedRefresh

        fields = {"refresh_sql": refresh_sql, "refresh_mode": refresh_mode, "refresh_jitter_max": refresh_jitter_max}
        given = {name: value for name, value in fields.items() if value is not None}
        content = _encode(json.dumps(given, ensure_ascii=False)) if given else None
        return RequestedRefresh.from_json(self._object("POST", _refresh_path(name), 201, content))

    def refreshes(self, name: str) -> "tuple[RefreshRun, ...]":
        """Return the last runs of a dataset, newest first. Raises the same errors as `request_refresh`."""
        from runtimeclient.http.resources import RefreshRun

        return tuple(map(RefreshRun.from_json, self._items(_refresh_path(name))))

    def wait_for_refresh(
        self, name: str, refresh_id: str, progress: "Callable[[RefreshRun], None] | None" = None
    ) -> "RefreshRun":
        """
        Wait until a run of a dataset is finished, without a time limit. Call *progress* with the run after every poll.

        Raises:
            RefreshFailedError: The run failed, or the runtime no longer lists it.
            NotAuthorisedError, RequestRefusedError, ConnectionFailedError: See `sql`. The run continues.
        """
        pause_s = _FIRST_POLL_S
        while True:
            run = next((run for run in self.refreshes(name) if run.id == refresh_id), None)
            if run is None:
                raise RefreshFailedError(f"The runtime no longer lists refresh {refresh_id} of {name}.")
            if progress is not None:
                progress(run)
            if run.status not in {"queued", "running"}:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _MAX_POLL_S)
        if run.status != "succeeded":
            reason = run.error or "the runtime gave no reason."
            raise RefreshFailedError(f"The refresh of {name} {run.status}: {reason}")
        return run

    def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | None,
        trace: Callable[[str, Mapping[str, Any]], None],
    ) -> httpx.Response:
        """
        Forward a request from another program with the key, and return the open response with any status.

        Args:
            trace: Called with the events of httpcore. The request has its own connection, so that it can be cut off.

        Raises:
            ConnectionFailedError: There is no response.
        """
        is_query = path.partition("?")[0] == "/v1/sql"
        sent = {**headers, **self._key_header, "Connection": "close"}
        read_s = self._timeouts.silence_s if is_query else self._timeouts.connect_s
        response = self._send(method, path, read_s, headers=sent, content=content, extensions={"trace": trace})
        if is_query:
            allow_streaming(response)
        return response

    def _items(self, path: str) -> Iterator[Mapping[str, Any]]:
        answer = self._json("GET", path, 200)
        if path == _ACTIVE_QUERIES and isinstance(answer, dict):
            answer = answer.get("queries")  # Spice.ai
        if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
            raise self._unexpected()
        return iter(answer)

    def _object(self, method: str, path: str, status: int, content: bytes | None = None) -> Mapping[str, Any]:
        answer = self._json(method, path, status, content)
        if not isinstance(answer, dict):
            raise self._unexpected()
        return answer

    def _json(self, method: str, path: str, status: int, content: bytes | None = None) -> Any:
        headers = self._key_header | {"Accept": JSON} | ({} if content is None else {"Content-Type": JSON})
        with closing(self._send(method, path, self._timeouts.connect_s, headers=headers, content=content)) as response:
            self._expect(response, status)
            try:
                return json.loads(self._body(response), object_hook=self._without_key)
            except (ValueError, RecursionError) as exc:
                raise self._not_a_runtime(response) from exc

    def _send(self, method: str, path: str, read_s: float, **fields: Any) -> httpx.Response:
        timeout = httpx.Timeout(self._timeouts.connect_s, read=read_s, write=self._timeouts.silence_s)
        request = self._http.build_request(method, path, timeout=timeout, **fields)
        try:
            response = self._http.send(request, stream=True)
        except httpx.TransportError as exc:
            raise self._no_connection(exc, read_s) from exc
        self._has_responded = True
        return response

    def _body(self, response: httpx.Response) -> bytes:
        """Read the body of a response without rows."""
        body = bytearray()
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _MAX_METADATA_BYTES:
                    raise self._not_a_runtime(response)
        except httpx.TransportError as exc:
            raise self._no_connection(exc, self._timeouts.connect_s) from exc
        return bytes(body)

    def _expect(self, response: httpx.Response, status: int) -> None:
        """Raise the runtime's error unless the status is *status*."""
        if response.status_code == status and response.headers.get("Content-Encoding", "identity") == "identity":
            return
        if response.status_code == 401:
            raise NotAuthorisedError(
                f"The runtime at {self.endpoint.url} refused the API key."
                if self._key_header
                else f"The runtime at {self.endpoint.url} requires an API key: use --api-key-file, RUNTIME_API_KEY or"
                " the command login."
            )
        raise self._problem(response) or self._not_a_runtime(response)

    def _problem(self, response: httpx.Response) -> RequestRefusedError | None:
        """Parse a problem body; None if the body is not one."""
        if _media_type(response) == _PLAIN_TEXT and response.status_code in {400, 403}:
            # Spice.ai rejects a statement in plain text.
            text = masked(self._body(response).decode(errors="replace").strip(), self.api_key)
            return RequestRefusedError(response.status_code, f"http_{response.status_code}", text, "")
        if _media_type(response) != _PROBLEM:
            return None
        try:
            problem = json.loads(self._body(response))
            code, detail, request_id = (problem.get(name) for name in ("code", "detail", "request_id"))
        except (ValueError, RecursionError, AttributeError):
            return None
        if not isinstance(code, str) or not isinstance(detail, str):
            return None
        code, detail, request_id = (masked(text, self.api_key) for text in (code, detail, str(request_id or "")))
        return RequestRefusedError(response.status_code, code, detail, request_id)

    def _without_key(self, item: dict[str, Any]) -> dict[str, Any]:
        """Mask the key in a runtime's messages for people."""
        messages = {name: item[name] for name in ("error", "message") if isinstance(item.get(name), str)}
        return item | {name: masked(text, self.api_key) for name, text in messages.items()}

    def _unexpected(self) -> NotARuntimeError:
        return NotARuntimeError(f"The response of {self.endpoint.url} is not that of a runtime.")

    def _not_a_runtime(self, response: httpx.Response) -> ConnectionFailedError:
        status = masked(f"{response.status_code} {response.reason_phrase}".strip(), self.api_key)
        if response.is_redirect:
            return NotARuntimeError(
                f"{self._route} responds with a redirect ({status}), which is not followed: use the runtime's own URL."
            )
        if response.status_code in _NO_RUNTIME:
            return ConnectionFailedError(
                f"{self._route} responds ({status}): a proxy gets no response from the runtime."
            )
        return NotARuntimeError(f"{self._route} responds ({status}), but is not a runtime: is this the right endpoint?")

    def _no_connection(self, exc: httpx.TransportError, read_s: float) -> ConnectionFailedError:
        url = self._route
        causes = list(_causes(exc))
        if isinstance(exc, httpx.ProxyError):
            reason = f"The proxy for {self.endpoint.url} rejected the request."
        elif isinstance(exc, httpx.ConnectTimeout):
            reason = f"No connection to {url} within {self._timeouts.connect_s:g} s."
        elif isinstance(exc, httpx.TimeoutException):
            reason = f"{url} accepted the connection, but did not respond within {read_s:g} s."
        elif untrusted := next((cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)), None):
            reason = (
                f"The certificate of {url} cannot be trusted: {untrusted.verify_message}."
                " Give its root with --tls-root-certificate-file."
            )
        elif any(isinstance(cause, ssl.SSLError) for cause in causes):
            reason = f"No TLS connection to {url}: does it speak plain http?"
        elif any(isinstance(cause, socket.gaierror) for cause in causes):
            reason = f"The host of {url} cannot be resolved."
        elif any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            reason = f"The connection to {url} was refused: is the runtime running?"
        elif isinstance(exc, httpx.ConnectError):
            reason = f"No connection to {url}: {exc}."
        else:
            hint = (
                ": did the runtime stop?" if self._has_responded or self.endpoint.is_tls else ": does it speak https?"
            )
            reason = f"{url} closed the connection before a complete response{hint}"
        return ConnectionFailedError(reason)


def _refresh_path(name: str) -> str:
    if not name:
        raise UsageError("Name the dataset to refresh.")
    return f"/v1/datasets/{_path_part(name)}/acceleration/refresh"


def _path_part(name: str) -> str:
    # Escape dots too, because ".." would change the path.
    return quote(_encode(name), safe="").replace(".", "%2E")


def _encode(text: str) -> bytes:
    try:
        # In an ASCII locale, Python turns undecodable bytes of an argument into surrogates.
        content = text.encode(errors="surrogateescape")
        content.decode()
    except UnicodeError as exc:
        raise UsageError("The text to send is not UTF-8.") from exc
    return content


def _media_type(response: httpx.Response) -> str:
    content_type: str = response.headers.get("Content-Type", "")
    return content_type.partition(";")[0].strip().lower()


def _causes(exc: BaseException | None) -> Iterable[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__
