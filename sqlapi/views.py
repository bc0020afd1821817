"""The views of the HTTP API. They leave errors to the one exception handler."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView

import telemetry.state
from authkeys.authentication import ApiKeyAuthentication, caller_of
from authkeys.errors import AccessNotBuiltError
from authkeys.permissions import HasPrincipal
from authkeys.principal import Principal
from authkeys.state import get_access
from datasources.control import DatasetControl, DatasetState, RefreshRun
from datasources.errors import DatasetsUnavailableError, UnknownDatasetError
from datasources.refresh.declarations import check_refresh
from datasources.refresh_sql import admit_refresh_sql
from datasources.state import get_datasets
from queryengine.engine import Allowance, EngineStatus, Query
from queryengine.errors import EngineUnavailableError, RateLimitError
from queryengine.ids import new_id
from queryengine.state import get_engine
from runtimeconf.exposure import check_this_process
from runtimeconf.model import DatasetConfig
from runtimeconf.state import get_config
from sqlapi import negotiation
from sqlapi.answers import Answer
from sqlapi.errors import HistoryDisabledError, MethodNotAllowedError, QueryNotFoundError, RouteNotFoundError
from sqlapi.exception_handler import handle_view_exception
from sqlapi.hosts import check_host, check_same_site
from sqlapi.problems import QUERY_ID, TRACE
from sqlapi.query_parameters import DEFAULT_LIMIT, FORMAT, JSON_FORMAT, LIMIT, SQL_FORMAT
from sqlapi.readiness import flight_status, is_ready
from sqlapi.request_bodies import read_refresh_request, read_sql_request
from system.wallclock import utc_at
from telemetry import history, statistics
from telemetry.trace_context import trace_id

#: DRF requires a negotiator, but negotiates nothing here.
_NEGOTIATOR = DefaultContentNegotiation()

#: The OpenAPI document. Tests compare it with the routes, the parameters and the errors.
OPENAPI = Path(__file__).with_name("openapi.json")

CATALOG = {"from": "runtime", "name": "runtime"}

#: The fields of a dataset, in the order of the CSV.
DATASET_COLUMNS = tuple(field.name.rstrip("_") for field in fields(DatasetState))

#: The fields of a refresh run.
RUN_COLUMNS = tuple(field.name for field in fields(RefreshRun))


class ApiView(APIView):
    """
    The base of every view. It authenticates the caller before it looks at anything else in the request.

    Views require a key, whatever the settings of a project say, unless they declare otherwise. DRF neither negotiates
    nor parses: this package reads bodies and Accept itself, after authentication.
    """

    authentication_classes = [ApiKeyAuthentication]
    permission_classes = [HasPrincipal]
    http_method_names = ["get", "head", "post"]
    renderer_classes = []
    parser_classes = []
    #: What the caller's `requests_per_minute` leaves; None without such a limit.
    allowance: Allowance | None = None

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Return DRF's request, with the most frequently used attributes copied from Django's."""
        wrapped = Request(request, authenticators=self.get_authenticators(), negotiator=_NEGOTIATOR)
        # No parser needs it, and DRF's default refers back to the request: only the garbage collector could free that
        # cycle.
        wrapped.parser_context = {}
        # Attribute lookup falls through to Django's request; cache the two that are used most.
        wrapped.META, wrapped.method = request.META, request.method
        return wrapped

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], HttpResponse]:
        """Return this package's exception handler, whatever the settings of a project say."""
        return handle_view_exception

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate first: DRF would negotiate first and answer 406 instead of 401."""
        if self.authentication_classes:  # An open view accepts any Host and requests from any page.
            self._access = get_access()
            _check_sender(request)
        self.perform_authentication(request)
        self.check_permissions(request)
        self._count(request)
        # Methods are case-sensitive (RFC 9110, 9.1); Django upper-cases them.
        if request.META["REQUEST_METHOD"] != request.method:
            self.http_method_not_allowed(request)

    def _authenticate_again(self, request: Request) -> None:
        """Authenticate again if a reload has changed the keys, for example while the body arrived."""
        if get_access() is not self._access:
            del request._user  # type: ignore[attr-defined]  # noqa: SLF001 (DRF authenticates when its user is asked for)
            self.perform_authentication(request)
            self.check_permissions(request)

    def _count(self, request: Request) -> None:
        """
        Count the request of a key with `requests_per_minute`.

        Raises:
            RateLimitError: It is one too many.
        """
        caller = request.user
        if isinstance(caller, Principal) and caller.limits.requests_per_minute is not None:
            self.allowance = get_engine().count_request(caller.fingerprint, caller.limits.requests_per_minute)
            if not self.allowance.is_allowed:
                raise RateLimitError(self.allowance.limit, self.allowance.reset_s)

    def finalize_response(self, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """Tell a key with a limit how much of it is left, with the fields of the IETF draft on RateLimit headers."""
        response = super().finalize_response(*args, **kwargs)
        if self.allowance is not None:
            response["RateLimit-Limit"] = str(self.allowance.limit)
            response["RateLimit-Remaining"] = str(self.allowance.remaining)
            response["RateLimit-Reset"] = str(self.allowance.reset_s)
        return response

    @property
    def default_response_headers(self) -> dict[str, str]:
        """No headers: `Allow` is sent only with a 405."""
        return {}

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """
        Refuse the method.

        Raises:
            MethodNotAllowedError: Always.
        """
        raise MethodNotAllowedError(sorted(self.allowed_methods))


class UnknownView(ApiView):
    """Every path that is not a route, with any method."""

    def http_method_not_allowed(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        """
        Refuse the path.

        Raises:
            RouteNotFoundError: Always.
        """
        raise RouteNotFoundError


class HealthView(ApiView):
    """`/health`: the process answers. It checks nothing else."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def get(self, request: Request) -> HttpResponse:
        """Answer `ok`."""
        return HttpResponse("ok\n", content_type="text/plain; charset=utf-8")


class ReadyView(ApiView):
    """`/v1/ready`: the runtime accepts statements, and no dataset holds it up."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def get(self, request: Request) -> HttpResponse:
        """Answer yes or no, without details: anyone may ask."""
        ready = is_ready()
        return HttpResponse(
            "ready" if ready else "not ready", status=200 if ready else 503, content_type="text/plain; charset=utf-8"
        )


class SqlView(ApiView):
    """`/v1/sql`: run one statement."""

    def post(self, request: Request) -> HttpResponseBase:
        """Run the statement in the body and answer in the requested format."""
        environ = request.META
        caller = _caller(request)
        caller.require("query")
        offer = negotiation.choose(environ.get("HTTP_ACCEPT"), SQL_FORMAT.read(environ))
        sql, parameters = read_sql_request(environ, get_config().http.max_body_bytes, caller.fingerprint)
        self._authenticate_again(request)
        caller = _caller(request)
        caller.require("query")
        environ[QUERY_ID] = new_id()
        query = Query(
            sql=sql,
            encoding=offer.encoding,
            parameters=parameters,
            query_id=environ[QUERY_ID],
            fingerprint=caller.fingerprint,
            key_name=caller.name,
            scope=caller.datasets,
            limit_s=caller.limits.timeout_s,
            concurrent=caller.limits.concurrent,
            cache=negotiation.cache_use(environ.get("HTTP_CACHE_CONTROL")),
            trace_id=trace_id(environ.get(TRACE)),
        )
        answer = Answer(get_engine(), query, environ)
        whole = answer.whole()
        headers = {"X-Cache": answer.cache} if answer.cache else None
        if whole is None:
            return StreamingHttpResponse(answer, content_type=offer.content_type, headers=headers)
        return HttpResponse(whole, content_type=offer.content_type, headers=headers)


class ActiveView(ApiView):
    """`/v1/sql/active`: the caller's queued and running statements."""

    def get(self, request: Request) -> HttpResponse:
        """List them, oldest first."""
        rows = [
            {"id": active.query_id, "started": active.started, "state": active.state, "sql": active.sql}
            for active in get_engine().active(_caller(request).fingerprint)
        ]
        return _table(request, rows, ("id", "started", "state", "sql"))


class HistoryView(ApiView):
    """`/v1/sql/history`: the caller's last statements."""

    def get(self, request: Request) -> HttpResponse:
        """List those that have ended, newest first."""
        return _table(request, _remembered(request, history.HISTORY), history.COLUMNS)


class StatisticsView(ApiView):
    """`/v1/sql/statistics`: statistics of the caller's statements."""

    def get(self, request: Request) -> HttpResponse:
        """List those that took longest in all. The CSV has the list only."""
        found = _remembered(request, statistics.STATISTICS)
        if FORMAT.read(request.META) == "csv":
            return _table(request, found["statements"], statistics.COLUMNS)
        return _json(found)


class CancelView(ApiView):
    """`/v1/sql/{query_id}/cancel`: cancel one of the caller's statements."""

    def post(self, request: Request, query_id: str) -> HttpResponse:
        """Cancel it. Statements of other keys are not found. A body is not read."""
        JSON_FORMAT.read(request.META)
        if not get_engine().cancel(query_id, _caller(request).fingerprint):
            raise QueryNotFoundError
        request.META[QUERY_ID] = query_id
        return _json({"message": f"Query {query_id} is being cancelled."})


class StatusView(ApiView):
    """`/v1/status`: the components of the runtime."""

    def get(self, request: Request) -> HttpResponse:
        """List them. Only the JSON tells workers and waiting datasets: the columns of the CSV are fixed."""
        flight = flight_status()
        status, workers = _engine_status()
        refresh, waiting_for = _refresh_status()
        parts = [
            ("http", str(get_config().http.bind), "Ready"),
            ("flight", "N/A" if flight == "Disabled" else str(get_config().flight.bind), flight),
            # The engine has its own processes if and only if the refresher does.
            ("engine", "unix:engine.sock" if workers else "in-process", status),
            ("refresh", "unix:control.sock" if workers else "in-process", refresh),
        ]
        if (cluster := get_config().engine) is not None:  # The engine is ready if it can use the cluster.
            parts.append(("cluster", f"sc://{cluster.address}", status))
        rows: list[dict[str, Any]] = [dict(zip(("name", "endpoint", "status"), part, strict=True)) for part in parts]
        if workers is not None:
            rows[2] |= {
                "workers_alive": workers.workers_alive,
                "workers_killed": workers.workers_killed,
                "workers_busy": workers.workers_busy,
                "statements_running": workers.running,
                "statements_queued": workers.queued,
            }
        rows += _sharing_status()
        if waiting_for:
            caller = _caller(request)
            rows[3]["waiting_for"] = [name for name in waiting_for if caller.may_name(name)]
        return _table(request, rows, ("name", "endpoint", "status"))


class DatasetsView(ApiView):
    """`/v1/datasets`: the datasets, their sources and their freshness."""

    def get(self, request: Request) -> HttpResponse:
        """List the datasets in the order of the YAML."""
        caller = _caller(request)
        states = [state for state in get_datasets().datasets() if caller.may_name(state.name)]
        rows = [{name.rstrip("_"): value for name, value in asdict(state).items()} for state in states]
        return _table(request, rows, DATASET_COLUMNS)


class RefreshView(ApiView):
    """`/v1/datasets/{name}/acceleration/refresh`: start a refresh, or list recent ones."""

    def get(self, request: Request, name: str) -> HttpResponse:
        """List recent runs, newest first."""
        if not _caller(request).may_name(name):
            raise UnknownDatasetError(name)
        return _table(request, [asdict(run) for run in get_datasets().history(name)], RUN_COLUMNS)

    def post(self, request: Request, name: str) -> HttpResponse:
        """Start a refresh. Its `refresh_sql`, if any, is checked before the 201 is sent."""
        caller = _caller(request)
        caller.require("refresh")
        JSON_FORMAT.read(request.META)
        asked = read_refresh_request(request.META, get_config().http.max_body_bytes, caller.fingerprint)
        self._authenticate_again(request)
        caller = _caller(request)
        caller.require("refresh")
        control = get_datasets()
        if not caller.may_name(name):
            raise UnknownDatasetError(name)
        dataset = _declared(control, name)
        sql = None
        if asked.refresh_sql is not None:
            check_refresh(dataset, asked.refresh_mode)
            sql = admit_refresh_sql(get_engine(), dataset, asked.refresh_sql)
        run = control.request_refresh(
            dataset.name,
            sql,
            mode=asked.refresh_mode,
            jitter_max_s=asked.refresh_jitter_max_s,
            caller=caller.name or caller.fingerprint,  # The fingerprint of a key differs from node to node.
        )
        message = f"Dataset refresh triggered for {dataset.name}."
        return _json({"message": message, "refresh": {"id": run.id, "status": run.status}}, status=201)


class KeyView(ApiView):
    """`/v1/key`: what the caller's own key may do."""

    def get(self, request: Request) -> HttpResponse:
        """Describe it; null stands for no name, no expiry, all datasets and no limit."""
        JSON_FORMAT.read(request.META)
        caller = _caller(request)
        return _json(
            {
                "name": caller.name or None,
                "expires": None if caller.expires_at is None else utc_at(caller.expires_at),
                "datasets": None if caller.datasets is None else sorted(caller.datasets),
                "rights": sorted(caller.rights),
                "limits": {
                    "requests_per_minute": caller.limits.requests_per_minute,
                    "concurrent": caller.limits.concurrent,
                    "timeout_seconds": caller.limits.timeout_s,
                },
            }
        )


class CatalogsView(ApiView):
    """`/v1/catalogs`: the one catalog that statements can see."""

    def get(self, request: Request) -> HttpResponse:
        """List it."""
        return _table(request, [CATALOG], tuple(CATALOG))


class OpenApiView(ApiView):
    """`/v1/openapi.json`: the description of this API."""

    def get(self, request: Request) -> HttpResponse:
        """Answer with the whole of it."""
        JSON_FORMAT.read(request.META)
        # A user's own project may mount the routes under a prefix. In the document a brace would begin a variable.
        prefix = request.path.removesuffix("/v1/openapi.json")
        return _json(_described() | {"servers": [{"url": quote(prefix) or "/"}]})


@cache
def _described() -> dict[str, Any]:
    return dict(json.loads(OPENAPI.read_bytes()))


def _check_sender(request: Request) -> None:
    """
    Refuse a wrong Host and, while authentication is off, requests from other sites.

    Raises:
        InvalidHostError, CrossSiteRequestError: See `sqlapi.hosts`.
        AccessNotBuiltError: The key set was never built in this process.
        ConfigError: Other machines reach this process, authentication is off, and the YAML does not say so.
    """
    auth_on = get_access().key_set is not None
    environ = request.META
    # Django's test client sends no Host: fall back to the server's name, as `HttpRequest.get_host` does.
    sent = environ.get("HTTP_HOST", environ["SERVER_NAME"])
    config = get_config()
    host = check_host(sent, config.http.allowed_hosts, auth_on=auth_on)
    if not auth_on:
        check_this_process(config.auth, config.file)
        check_same_site(host, environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE"))


def _caller(request: Request) -> Principal:
    caller = caller_of(request)
    if caller is None:
        raise AccessNotBuiltError
    return caller


def _engine_status() -> tuple[str, EngineStatus | None]:
    try:
        engine = get_engine()
    except EngineUnavailableError:
        return "Initializing", None
    workers = engine.status()
    if engine.is_alive():
        return "Ready", workers
    return "Initializing" if workers is not None and workers.is_starting else "Error", workers


def _refresh_status() -> tuple[str, tuple[str, ...]]:
    """Return the status, and the datasets that hold up readiness."""
    try:
        control = get_datasets()
        waiting_for = control.waiting_for()
        # During a reload, these are datasets of the configuration to come.
        if not waiting_for or control.is_loaded():
            return "Ready", ()
    except DatasetsUnavailableError:
        return "Error", ()
    return "Initializing", waiting_for


def _sharing_status() -> list[dict[str, Any]]:
    """Return the component `snapshots`, if the runtime is one of several nodes."""
    shared = get_config().snapshots
    if shared is None:
        return []
    row: dict[str, Any] = {"name": "snapshots", "endpoint": shared.location, "status": "Error"}
    with suppress(DatasetsUnavailableError):
        sharing = get_datasets().sharing()
        if sharing is not None:
            row["status"] = "Error" if sharing.error else "Initializing" if sharing.answered_s is None else "Ready"
            row |= {"node": sharing.node, "publisher": sharing.publisher, "answered_s": sharing.answered_s}
    return [row]


def _remembered(request: Request, what: str) -> Any:
    """
    Return what the runtime remembers of the caller's own statements.

    Raises:
        NotPermittedError: The key may not query.
        HistoryDisabledError: The runtime remembers nothing.
        TelemetryUnavailableError: The process that remembers does not answer.
    """
    caller = _caller(request)
    caller.require("query")
    FORMAT.read(request.META)  # A bad value is reported even if there is nothing to show.
    limit = LIMIT.read(request.META) or DEFAULT_LIMIT
    if not get_config().history.enabled:
        raise HistoryDisabledError
    return telemetry.state.ask(what, key=caller.fingerprint, limit=limit)


def _declared(control: DatasetControl, name: str) -> DatasetConfig:
    served = {state.name for state in control.datasets()}
    for dataset in get_config().datasets:
        if dataset.name.lower() == name.lower() and dataset.name in served:
            return dataset
    raise UnknownDatasetError(name)


def _table(request: Request, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> HttpResponse:
    if FORMAT.read(request.META) != "csv":
        return _json(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    cells = ([row[name] for name in columns] for row in rows)
    writer.writerows(map(_cell, line) for line in cells)
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _json(value: object, status: int = 200) -> HttpResponse:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(text, status=status, content_type="application/json")
