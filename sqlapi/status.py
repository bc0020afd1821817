"""The views for the runtime itself: health and status, the caller's permissions, and the API description."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from django.http import HttpResponse
from rest_framework.permissions import AllowAny
from rest_framework.request import Request

from datasources.errors import DatasetsUnavailableError
from datasources.state import get_datasets
from queryengine.engine import EngineStatus
from queryengine.errors import EngineUnavailableError
from queryengine.state import get_engine
from runtimeconf.state import get_config
from sqlapi.api_view import ApiView, caller_of, json_response, table
from sqlapi.negotiation import JSON_FORMAT
from system.lock import FLIGHT_LOCK_NAME, StateLock
from system.wallclock import utc_at

#: The OpenAPI document. Tests compare it with the routes, parameters and errors.
OPENAPI = Path(__file__).with_name("openapi.json")


class HealthView(ApiView):
    """`/health`: shows that the process responds. It checks nothing else."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def get(self, request: Request) -> HttpResponse:
        """Return `ok`."""
        return HttpResponse("ok\n", content_type="text/plain; charset=utf-8")


class ReadyView(ApiView):
    """`/v1/ready`: whether the runtime accepts statements and no dataset delays its readiness."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def get(self, request: Request) -> HttpResponse:
        """Return the readiness without details, because anyone may ask."""
        ready = is_ready()
        return HttpResponse(
            "ready" if ready else "not ready", status=200 if ready else 503, content_type="text/plain; charset=utf-8"
        )


class StatusView(ApiView):
    """`/v1/status`: the components of the runtime."""

    def get(self, request: Request) -> HttpResponse:
        """List the components. Workers and waiting datasets appear only in JSON, because the CSV columns are fixed."""
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
        if (other := get_config().engine) is not None:  # The engine is ready if it can use the cluster.
            parts.append(("cluster", f"{other.name}://{other.address}", status))
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
            caller = caller_of(request)
            rows[3]["waiting_for"] = [name for name in waiting_for if caller.may_name(name)]
        return table(request, rows, ("name", "endpoint", "status"))


class KeyView(ApiView):
    """`/v1/key`: the permissions and limits of the caller's own key."""

    def get(self, request: Request) -> HttpResponse:
        """Describe the key without its filters. Null means no name, no expiry, all datasets or no limit."""
        JSON_FORMAT.read(request.META)
        caller = caller_of(request)
        return json_response(
            {
                "name": caller.name or None,
                "expires": None if caller.expires_at is None else utc_at(caller.expires_at),
                "datasets": None if caller.scope is None else sorted(caller.scope.relations),
                "columns": {rule.dataset: list(rule.columns) for rule in caller.rules if rule.columns is not None},
                "rights": sorted(caller.rights),
                "limits": {
                    "requests_per_minute": caller.limits.requests_per_minute,
                    "concurrent": caller.limits.concurrent,
                    "timeout_seconds": caller.limits.timeout_s,
                },
            }
        )


class OpenApiView(ApiView):
    """`/v1/openapi.json`: the description of this API."""

    def get(self, request: Request) -> HttpResponse:
        """Return the whole document."""
        JSON_FORMAT.read(request.META)
        # A user's own project may mount the routes under a prefix. A brace in the document would begin a variable.
        prefix = request.path.removesuffix("/v1/openapi.json")
        return json_response(_document() | {"servers": [{"url": quote(prefix) or "/"}]})


def is_ready() -> bool:
    """Return True if the engine is alive, no dataset delays readiness, and Flight SQL, if enabled, accepts calls."""
    try:
        return get_engine().is_alive() and get_datasets().is_loaded() and flight_status() in {"Ready", "Disabled"}
    except (EngineUnavailableError, DatasetsUnavailableError):
        return False


def flight_status() -> Literal["Ready", "Disabled", "Error"]:
    """
    Return the status of the Flight SQL process, which holds a lock while it accepts calls.

    A runtime in one process has no Flight SQL. A runtime whose engine is not connected yet counts as one process.
    """
    config = get_config()
    try:
        is_single = get_engine().status() is None
    except EngineUnavailableError:
        is_single = True
    if is_single or not config.flight.enabled:
        return "Disabled"
    return "Ready" if StateLock(config.state_dir, FLIGHT_LOCK_NAME).is_taken() else "Error"


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
    """Return the refresh status and the datasets that delay readiness."""
    try:
        control = get_datasets()
        waiting_for = control.waiting_for()
        # During a reload, these are datasets of the new configuration.
        if not waiting_for or control.is_loaded():
            return "Ready", ()
    except DatasetsUnavailableError:
        return "Error", ()
    return "Initializing", waiting_for


def _sharing_status() -> list[dict[str, Any]]:
    """Return the `snapshots` component if the runtime is one of several nodes."""
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


@cache
def _document() -> dict[str, Any]:
    return dict(json.loads(OPENAPI.read_bytes()))
