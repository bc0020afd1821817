"""A typed client of a runtime's HTTP API."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from runtimeclient.answers import JSON, SqlAnswer
from runtimeclient.credentials import check_api_key, masked
from runtimeclient.endpoint import Endpoint, parse_endpoint
from runtimeclient.errors import (
    ClientError,
    ConnectionFailedError,
    NotARuntimeError,
    NotAuthorisedError,
    RefreshFailedError,
    RequestRefusedError,
    UsageError,
)
from runtimeclient.json_stream import JsonValue, as_json
from runtimeclient.resources import ActiveQuery, ComponentStatus, DatasetStatus, RefreshRun, RequestedRefresh
from runtimeclient.waits import allow_streaming, limit_waits

# What the specification calls the rows, and what the runtime sends unless it is asked for another type.
_PLAIN_TEXT = "text/plain"
_ACTIVE_QUERIES = "/v1/sql/active"
_PROBLEM = "application/problem+json"
# Of every answer but rows. Parsed, JSON can take fifty times its length.
_MAX_METADATA_BYTES = 4 << 20
# Members of an answer that are sentences.
_SAID = ("error", "message")
_FIRST_POLL_S = 0.1
_SLOWEST_POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """
    How long to wait.

    Attributes:
        connect_s: Seconds until a connection stands, and until the whole answer to anything but a query is there.
        silence_s: Seconds until the answer to a query begins, and that may pass, while it arrives, with less than
            `waits.SLOWEST_BYTES_PER_S`.
    """

    connect_s: float = 10.0
    silence_s: float = 300.0


DEFAULT_TIMEOUTS = Timeouts()


class RuntimeClient:
    """
    Talks to one runtime. Use it as a context manager. Threads may share it.

    Redirects are not followed and nothing is sent twice. Certificates are always verified. The proxies that the
    environment names are used, except for a loopback address.

    Args:
        base_url: Where the HTTP API is, such as `http://127.0.0.1:8090`; a path prefix is kept.
        api_key: Sent as `X-API-Key`; None calls without a key.
        tls_root_certificate_file: PEM file of the only roots to trust; None trusts the usual ones.
        transport: Replaces the network, for example `httpx.WSGITransport`.
        timeouts: How long to wait.

    Raises:
        UsageError: The URL, the key, the certificate file or a proxy of the environment cannot be used.
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
        self._api_key = None if api_key is None else check_api_key(api_key, "of the client")
        self._key_header = {} if api_key is None else {"X-API-Key": api_key}
        tls_context = _tls_context(self.endpoint, tls_root_certificate_file)
        try:
            self._http = httpx.Client(
                base_url=self.endpoint.url,
                headers={"User-Agent": "runtimeclient", "Accept-Encoding": "identity"},
                verify=tls_context,
                follow_redirects=False,
                transport=transport,
                trust_env=not self.endpoint.is_loopback,
                # Servers close idle connections, gunicorn after 2 s; no request should meet one that is just closing.
                limits=httpx.Limits(keepalive_expiry=1.0),
            )
        except (ImportError, ValueError, httpx.InvalidURL) as exc:
            raise UsageError(
                "The proxy that the environment names cannot be used: give an http:// or https:// URL."
            ) from exc
        limit_waits(self._http)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._http.close()

    def finds_key_in(self, text: str) -> bool:
        """Tell whether the API key stands in *text*."""
        return self._api_key is not None and self._api_key in text

    def ping(self) -> None:
        """
        Make sure, within `connect_s`, that something answers at the endpoint. The key is not sent.

        A query may be silent for long; this tells a server that never speaks from one that is busy with a query.

        Raises:
            ConnectionFailedError: Nothing answers.
        """
        self._send("GET", "/health", read_s=self._timeouts.connect_s).close()

    def is_ready(self) -> bool:
        """
        Ask whether the runtime takes statements and all its data is loaded. The key is not sent.

        Raises:
            ConnectionFailedError: Nothing answers, or not as a runtime does.
        """
        response = self._send("GET", "/v1/ready", read_s=self._timeouts.connect_s)
        with closing(response):
            if response.status_code not in {200, 503}:
                raise self._not_a_runtime(response)
            return response.status_code == 200

    def sql(
        self,
        statement: str,
        media_type: str = JSON,
        parameters: Mapping[str, JsonValue] | Sequence[JsonValue] = (),
    ) -> SqlAnswer:
        """
        Run one statement. The answer is open when this returns, and streams; the caller closes it.

        Args:
            statement: SQL text, sent as it is.
            media_type: `answers.JSON`, `answers.CSV`, `answers.JSON_WITH_SCHEMA` or `answers.ARROW`.
            parameters: Values for `$name` by name, or for `?` and `$1` in order.

        Raises:
            UsageError: The statement is not text that can be sent.
            NotAuthorisedError: The runtime wants a key, or another one.
            RequestRefusedError: The statement was refused or failed.
            ConnectionFailedError: No answer came, or none as a runtime gives.
        """
        content, content_type = _encode(statement), "text/plain; charset=utf-8"
        if parameters:
            values = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            content, content_type = _encode(as_json({"sql": content.decode(), "parameters": values})), JSON
        response = self._send(
            "POST",
            "/v1/sql",
            read_s=self._timeouts.silence_s,
            headers=self._key_header | {"Accept": media_type, "Content-Type": content_type},
            content=content,
        )
        try:
            self._expect(response, 200)
            if _media_type(response) not in ({JSON, _PLAIN_TEXT} if media_type == JSON else {media_type}):
                raise self._not_a_runtime(response)
        except ClientError:
            response.close()
            raise
        allow_streaming(response)
        return SqlAnswer(response, self._timeouts.silence_s)

    def status(self) -> tuple[ComponentStatus, ...]:
        """Ask how each component is. Raises what `sql` raises."""
        return tuple(map(ComponentStatus.from_json, self._items("/v1/status")))

    def datasets(self) -> tuple[DatasetStatus, ...]:
        """Ask for all datasets, in the order of the configuration. Raises what `sql` raises."""
        # Spice.ai leaves the status out unless it is asked for.
        return tuple(map(DatasetStatus.from_json, self._items("/v1/datasets?status=true")))

    def active_queries(self) -> tuple[ActiveQuery, ...]:
        """Ask for the statements of this key that wait or run now, oldest first. Raises what `sql` raises."""
        return tuple(map(ActiveQuery.from_json, self._items(_ACTIVE_QUERIES)))

    def cancel_query(self, query_id: str) -> str:
        """
        Cancel a statement of this key; give back what the runtime says to that.

        Raises:
            UsageError: *query_id* is empty or cannot be sent.
            NotAuthorisedError, RequestRefusedError, ConnectionFailedError: As `sql` raises them.
        """
        if not query_id:
            raise UsageError("Name the query to cancel: `queries` lists them.")
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
    ) -> RequestedRefresh:
        """
        Ask for a refresh of a dataset; one that waits already is joined. Does not wait for its end.

        Args:
            name: The dataset.
            refresh_sql: What to load this time, instead of what the configuration says.
            refresh_mode: `full` or `append`, instead of what the configuration says.
            refresh_jitter_max: A duration such as `30s`: the refresh begins up to so much later, by chance.

        Raises:
            UsageError: *name* is empty, or *refresh_sql* is not text that can be sent.
            NotAuthorisedError, RequestRefusedError, ConnectionFailedError: As `sql` raises them.
        """
        asked = {
            "refresh_sql": refresh_sql,
            "refresh_mode": refresh_mode,
            "refresh_jitter_max": refresh_jitter_max,
        }
        said = {field: value for field, value in asked.items() if value is not None}
        content = _encode(json.dumps(said, ensure_ascii=False)) if said else None
        answer = self._json("POST", _refresh_path(name), 201, content)
        if not isinstance(answer, dict):
            raise NotARuntimeError(f"The answer of {self.endpoint.url} is not one of a runtime.")
        return RequestedRefresh.from_json(answer)

    def refreshes(self, name: str) -> tuple[RefreshRun, ...]:
        """List the last runs of a dataset, newest first. Raises what `request_refresh` raises."""
        return tuple(map(RefreshRun.from_json, self._items(_refresh_path(name))))

    def wait_for_refresh(
        self, name: str, refresh_id: str, progress: Callable[[RefreshRun], None] | None = None
    ) -> RefreshRun:
        """
        Wait until a run is finished, as long as that takes.

        Args:
            name: The dataset.
            refresh_id: Which of its runs.
            progress: Called with the run after every look at it.

        Raises:
            RefreshFailedError: The run failed, or the runtime does not list it any more.
            NotAuthorisedError, RequestRefusedError, ConnectionFailedError: As `sql` raises them; the run goes on.
        """
        pause_s = _FIRST_POLL_S
        while True:
            run = next((run for run in self.refreshes(name) if run.id == refresh_id), None)
            if run is None:
                raise RefreshFailedError(f"The runtime does not list refresh {refresh_id} of {name} any more.")
            if progress is not None:
                progress(run)
            if run.is_finished:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _SLOWEST_POLL_S)
        if run.status != "succeeded":
            raise RefreshFailedError(
                f"The refresh of {name} {run.status}: {run.error or 'the runtime gave no reason.'}"
            )
        return run

    def _items(self, path: str) -> Iterator[Mapping[str, Any]]:
        answer = self._json("GET", path, 200)
        if path == _ACTIVE_QUERIES and isinstance(answer, dict):
            answer = answer.get("queries")  # Spice.ai
        if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
            raise NotARuntimeError(f"The answer of {self.endpoint.url} is not one of a runtime.")
        return iter(answer)

    def _json(self, method: str, path: str, status: int, content: bytes | None = None) -> Any:
        headers = self._key_header | {"Accept": JSON} | ({} if content is None else {"Content-Type": JSON})
        response = self._send(method, path, read_s=self._timeouts.connect_s, headers=headers, content=content)
        with closing(response):
            self._expect(response, status)
            try:
                return json.loads(self._body(response), object_hook=self._without_key)
            except (ValueError, RecursionError) as exc:
                raise self._not_a_runtime(response) from exc

    def _send(
        self,
        method: str,
        path: str,
        *,
        read_s: float,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        timeout = httpx.Timeout(self._timeouts.connect_s, read=read_s, write=self._timeouts.silence_s)
        request = self._http.build_request(method, path, headers=headers, content=content, timeout=timeout)
        try:
            return self._http.send(request, stream=True)
        except httpx.TransportError as exc:
            raise self._no_connection(exc, read_s) from exc

    def _body(self, response: httpx.Response) -> bytes:
        """Read the body of an answer that is known to be short."""
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
        """Raise what the runtime says when it does not answer with *status*."""
        if response.status_code == status and response.headers.get("Content-Encoding", "identity") == "identity":
            return
        if response.status_code == 401:
            raise NotAuthorisedError(
                f"The runtime at {self.endpoint.url} refused the API key."
                if self._key_header
                else f"The runtime at {self.endpoint.url} asks for an API key: use --api-key-file or RUNTIME_API_KEY."
            )
        raise self._problem(response) or self._not_a_runtime(response)

    def _problem(self, response: httpx.Response) -> RequestRefusedError | None:
        """Read a problem body; None when the body is not one."""
        if _media_type(response) == _PLAIN_TEXT and response.status_code in {400, 403}:
            # So Spice.ai refuses a statement.
            text = masked(self._body(response).decode(errors="replace").strip(), self._api_key)
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
        code, detail, request_id = (masked(text, self._api_key) for text in (code, detail, str(request_id or "")))
        return RequestRefusedError(response.status_code, code, detail, request_id)

    def _without_key(self, item: dict[str, Any]) -> dict[str, Any]:
        """Mask the key in what a runtime says to people."""
        said = {name: item[name] for name in _SAID if isinstance(item.get(name), str)}
        return item | {name: masked(text, self._api_key) for name, text in said.items()}

    def _not_a_runtime(self, response: httpx.Response) -> NotARuntimeError:
        status = masked(f"{response.status_code} {response.reason_phrase}".strip(), self._api_key)
        if response.is_redirect:
            return NotARuntimeError(
                f"{self.endpoint.url} answers with a redirect ({status}), which is not followed:"
                " name the runtime's own URL."
            )
        return NotARuntimeError(
            f"{self.endpoint.url} answers ({status}), but not as a runtime does: is this the right endpoint?"
        )

    def _no_connection(self, exc: httpx.TransportError, read_s: float) -> ConnectionFailedError:
        url = self.endpoint.url
        causes = list(_causes(exc))
        if isinstance(exc, httpx.ProxyError):
            reason = f"The proxy on the way to {url} does not let the request through."
        elif isinstance(exc, httpx.ConnectTimeout):
            reason = f"No connection to {url} within {self._timeouts.connect_s:g} s."
        elif isinstance(exc, httpx.TimeoutException):
            reason = f"{url} accepts the connection, but did not answer within {read_s:g} s."
        elif untrusted := next((cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)), None):
            reason = (
                f"The certificate of {url} cannot be trusted: {untrusted.verify_message}."
                " Name its root with --tls-root-certificate-file."
            )
        elif any(isinstance(cause, ssl.SSLError) for cause in causes):
            reason = f"No TLS connection to {url}: does it speak plain http?"
        elif any(isinstance(cause, socket.gaierror) for cause in causes):
            reason = f"The host of {url} is not known."
        elif any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            reason = f"Nothing listens at {url}: is the runtime started?"
        elif isinstance(exc, httpx.ConnectError):
            reason = f"No connection to {url}: {exc}."
        else:
            hint = "." if self.endpoint.is_tls else ": does it speak https?"
            reason = f"{url} ended the connection without a whole answer{hint}"
        return ConnectionFailedError(reason)


def _refresh_path(name: str) -> str:
    if not name:
        raise UsageError("Name the dataset to refresh.")
    return f"/v1/datasets/{_path_part(name)}/acceleration/refresh"


def _path_part(name: str) -> str:
    # A name of dots would climb in the path.
    return quote(_encode(name), safe="").replace(".", "%2E")


def _encode(text: str) -> bytes:
    try:
        # In an ASCII locale, Python puts the bytes of an argument that it cannot decode into surrogates.
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


def _tls_context(endpoint: Endpoint, root_certificate_file: Path | None) -> ssl.SSLContext:
    if not endpoint.is_tls:
        # Loading the usual roots takes longer than the rest of a start; without TLS nobody asks for them.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if root_certificate_file is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=root_certificate_file)
    except OSError as exc:
        reason = exc.strerror if exc.errno and not isinstance(exc, ssl.SSLError) else "it is not a PEM certificate"
        raise UsageError(f"The root certificate file {root_certificate_file} cannot be used: {reason}.") from exc
