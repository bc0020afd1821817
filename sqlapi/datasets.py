"""The views for datasets, refreshes and the catalog."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.http import HttpResponse
from msgspec.structs import asdict, replace
from rest_framework.request import Request

from authkeys.principal import Principal
from datasources.control import DatasetControl, DatasetState, RefreshRun, is_own
from datasources.errors import UnknownDatasetError
from datasources.refresh.declarations import check_refresh
from datasources.refresh_sql import admit_refresh_sql
from datasources.state import get_datasets
from queryengine.errors import StatementNotAllowedError
from queryengine.state import get_engine
from runtimeconf.model import LOCALPOD, DatasetConfig
from runtimeconf.plugins import VIEW
from runtimeconf.state import get_config
from sqlapi.api_view import ApiView, caller_of, json_response, table
from sqlapi.negotiation import JSON_FORMAT
from sqlapi.request_bodies import read_refresh_request

CATALOG = {"from": "runtime", "name": "runtime"}

#: The fields of a dataset in CSV order.
DATASET_COLUMNS = tuple(name.rstrip("_") for name in DatasetState.__struct_fields__)

#: Replaces an error message that might quote a value.
_NOT_SHOWN = "The refresh failed."

_Figures = TypeVar("_Figures", DatasetState, RefreshRun)
_Answer = TypeVar("_Answer")

#: The fields of a refresh run.
RUN_COLUMNS = RefreshRun.__struct_fields__


def datasets_of(caller: Principal) -> list[dict[str, Any]]:
    """Return the datasets that *caller* may name, in configuration order."""
    control = get_datasets()
    states, are_own = _asked(control, control.datasets)
    states = tuple(state for state in states if caller.may_name(state.name))
    if not are_own:
        declared = {one.name: one for one in get_config().datasets}
        states = tuple(_as_declared(one, declared[one.name], caller) for one in states if one.name in declared)
    if caller.scope is not None:
        states = tuple(map(_without_parent, states))
    shown = [_without_figures(state) if caller.rule_of(state.name) else state for state in states]
    return [{name.rstrip("_"): value for name, value in asdict(state).items()} for state in shown]


class DatasetsView(ApiView):
    """`/v1/datasets`: the datasets, with their sources and freshness."""

    def get(self, request: Request) -> HttpResponse:
        """List the datasets in configuration order."""
        return table(request, datasets_of(caller_of(request)), DATASET_COLUMNS)


class RefreshView(ApiView):
    """`/v1/datasets/{name}/acceleration/refresh`: start a refresh, or list recent ones."""

    def get(self, request: Request, name: str) -> HttpResponse:
        """List recent refresh runs, newest first."""
        caller = caller_of(request)
        if not caller.may_name(name):
            raise UnknownDatasetError(name)
        control = get_datasets()
        runs, are_own = _asked(control, lambda: control.history(name))
        if not are_own and name.lower() not in {one.name.lower() for one in get_config().datasets}:
            raise UnknownDatasetError(name)
        hides = caller.rule_of(name) is not None or (caller.scope is not None and not are_own)
        shown = [_without_figures(run) for run in runs] if hides else runs
        return table(request, [asdict(run) for run in shown], RUN_COLUMNS)

    def post(self, request: Request, name: str) -> HttpResponse:
        """Start a refresh. A `refresh_sql` in the request is checked before the response 201 is sent."""
        caller = caller_of(request)
        caller.require("refresh")
        JSON_FORMAT.read(request.META)
        asked = read_refresh_request(request.META, get_config().http.max_body_bytes, caller.fingerprint)
        caller = self.authenticate_again(request)
        caller.require("refresh")
        control = get_datasets()
        if not caller.may_name(name):
            raise UnknownDatasetError(name)
        dataset = _declared(control, name)
        sql = None
        if asked.refresh_mode not in {None, dataset.acceleration.refresh_mode}:
            _refuse_choice(caller, "another refresh_mode")
        if asked.refresh_sql is not None:
            _refuse_choice(caller, "refresh_sql")
            check_refresh(dataset, asked.refresh_mode)
            sql = admit_refresh_sql(get_engine(), dataset, asked.refresh_sql)
        run = control.request_refresh(
            dataset.name,
            sql,
            mode=asked.refresh_mode,
            jitter_max_s=asked.refresh_jitter_max_s,
            caller=caller.name or caller.fingerprint,  # A key's fingerprint differs between nodes.
        )
        message = f"Dataset refresh triggered for {dataset.name}."
        return json_response({"message": message, "refresh": {"id": run.id, "status": run.status}}, status=201)


class CatalogsView(ApiView):
    """`/v1/catalogs`: the only catalog that statements can see."""

    def get(self, request: Request) -> HttpResponse:
        """List the catalog."""
        return table(request, [CATALOG], tuple(CATALOG))


def _refuse_choice(caller: Principal, what: str) -> None:
    """
    Raise StatementNotAllowedError if *caller* may not set *what*, which decides about the rows of all keys.

    The rules of one dataset may read another one, and a view may leave out rows according to another dataset.
    """
    if caller.rules:
        raise StatementNotAllowedError(f"A key with row, column or mask rules cannot set {what}.")
    if caller.scope is not None and not caller.scope.relations.isdisjoint(_views()):
        raise StatementNotAllowedError(f"A key whose datasets include a view cannot set {what}.")


def _without_figures(one: _Figures) -> _Figures:
    """Return *one* without the values that depend on rows that the caller must not see, and on the time of new ones."""
    shown = replace(one, rows=None, bytes=None, error=None if one.error is None else _NOT_SHOWN)
    if isinstance(shown, DatasetState):
        return replace(shown, snapshot=None, refreshed_at=None)
    return replace(shown, unchanged=None, phase=None)


def _asked(control: DatasetControl, ask: Callable[[], _Answer]) -> tuple[_Answer, bool]:
    """Return the answer of *control*, and whether it is about our configuration, which may change while we ask."""
    was_own = is_own(control)
    return ask(), was_own and is_own(control)


def _as_declared(state: DatasetState, own: DatasetConfig, caller: Principal) -> DatasetState:
    """Return *state*, which is that of another configuration, as ours declares it. A scope is for our figures only."""
    shown = state
    if caller.scope is not None:
        shown = replace(_without_figures(state), checked_at=None, next_refresh_at=None, age_s=None)
    return replace(
        shown,
        from_=own.from_,
        acceleration_enabled=own.acceleration.enabled,
        description=own.documentation.description,
        metadata=dict(own.documentation.metadata),
    )


def _without_parent(state: DatasetState) -> DatasetState:
    """Return *state* as that of a view if it is a copy of another dataset, which the caller may not know of."""
    is_copy = state.from_.startswith(f"{LOCALPOD}:")
    return replace(state, from_=f"{VIEW}:{state.name}") if is_copy else state


def _views() -> Iterator[str]:
    """Yield the lower-case names of the views, materialized or not."""
    config = get_config()
    yield from (view.name.lower() for view in config.views)
    yield from (dataset.name.lower() for dataset in config.datasets if dataset.view is not None)


def _declared(control: DatasetControl, name: str) -> DatasetConfig:
    served = {state.name for state in control.datasets()}
    for dataset in get_config().datasets:
        if dataset.name.lower() == name.lower() and dataset.name in served:
            return dataset
    raise UnknownDatasetError(name)
