import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import authkeys.errors
import datasources.errors
import queryengine.errors
import runtimeconf.errors
import sqlapi.errors
import system.errors
import telemetry.errors
from runtimeconf.errors import ConfigError, ConfigFault
from sqlapi.error_table import HIDDEN_DETAIL, INTERNAL_CODE, STATUSES, code_of, refusal_of

ROOMS = [queryengine, datasources, authkeys, runtimeconf, sqlapi, system, telemetry]
BASES = [
    queryengine.errors.QueryError,
    datasources.errors.DatasetError,
    authkeys.errors.AuthKeysError,
    runtimeconf.errors.RuntimeConfError,
    sqlapi.errors.SqlApiError,
    system.errors.StateDirectoryError,
    telemetry.errors.TelemetryError,
]


def with_subclasses(base: type[Exception]) -> Iterator[type[Exception]]:
    """Yield *base* and its subclasses, but not those of tests, which live until they are collected."""
    yield base
    for subclass in base.__subclasses__():
        if not subclass.__module__.startswith("tests"):
            yield from with_subclasses(subclass)


def all_errors() -> list[type[Exception]]:
    """Return every error class of every room, wherever it is defined."""
    for room in ROOMS:
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    names = {room.__name__ for room in ROOMS}
    found = {kind for base in BASES for kind in with_subclasses(base)}
    return sorted((kind for kind in found if kind.__module__.split(".")[0] in names), key=lambda kind: kind.__name__)


def test_every_error_class_has_a_row_and_a_code_of_its_own_with_one_status() -> None:
    assert set(STATUSES) == set(all_errors())
    assert [kind.__name__ for kind in all_errors() if "code" not in vars(kind)] == ["ConfigError"]
    kinds: dict[str, set[int]] = {}
    for kind, status in STATUSES.items():
        kinds.setdefault(kind.code, set()).add(status)  # type: ignore[attr-defined]
    assert {code: statuses for code, statuses in kinds.items() if len(statuses) > 1} == {}


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (queryengine.errors.SqlSyntaxError("near ("), 400, "sql_syntax_error", {}),
        (queryengine.errors.StatementNotAllowedError("no"), 403, "statement_not_allowed", {}),
        (queryengine.errors.QueryTimeoutError(3), 504, "query_timeout", {}),
        (queryengine.errors.ResourceLimitError("full"), 507, "resource_limit", {}),
        (queryengine.errors.QueryCancelledError(), 503, "query_cancelled", {}),
        (queryengine.errors.EngineBusyError(7), 503, "engine_busy", {"Retry-After": "7"}),
        (queryengine.errors.EngineUnavailableError("not yet"), 503, "engine_unavailable", {"Retry-After": "1"}),
        (datasources.errors.UnknownDatasetError("x"), 404, "dataset_not_found", {}),
        (datasources.errors.AccelerationDisabledError("x"), 400, "acceleration_disabled", {}),
        (datasources.errors.DatasetsUnavailableError(), 503, "datasets_unavailable", {"Retry-After": "1"}),
        (authkeys.errors.AccessNotBuiltError(), 503, "authentication_unavailable", {"Retry-After": "1"}),
        (sqlapi.errors.MethodNotAllowedError(["GET", "HEAD"]), 405, "method_not_allowed", {"Allow": "GET, HEAD"}),
        (sqlapi.errors.ContentEncodingError(), 415, "unsupported_content_encoding", {"Accept-Encoding": "identity"}),
        (sqlapi.errors.ClientGoneError(), 499, "client_closed_request", {}),
    ],
)
def test_what_a_caller_gets(error: Exception, status: int, code: str, headers: dict[str, str]) -> None:
    answer = refusal_of(error)

    assert (answer.status, answer.code, answer.headers) == (status, code, headers)
    assert answer.detail == str(error)
    assert not answer.is_internal


def test_internal_errors_reveal_nothing(tmp_path: Any) -> None:
    fault = ConfigFault(file=tmp_path / "runtime.yaml", line=1, yaml_path="runtime", message="x")
    for error, code in [
        (ConfigError((fault,)), "configuration_error"),
        (authkeys.errors.SaltError(f"{tmp_path}"), "key_salt_error"),
        (datasources.errors.SnapshotError(f"{tmp_path}"), "snapshot_error"),
        (datasources.errors.SchemaChangedError(f"{tmp_path}"), "schema_changed"),
        (datasources.errors.SourceEmptyError(f"{tmp_path}"), "source_empty"),
        (ValueError(f"{tmp_path}"), INTERNAL_CODE),
        (KeyError("code"), INTERNAL_CODE),
    ]:
        answer = refusal_of(error)
        assert (answer.status, answer.code, answer.detail) == (500, code, HIDDEN_DETAIL)
        assert answer.is_internal


def test_a_subclass_of_a_plugin_has_the_status_of_its_base_and_the_code_of_a_foreign_error_is_ignored() -> None:
    class OddError(queryengine.errors.SqlError):
        code = "odd"

    assert (refusal_of(OddError("x")).status, code_of(OddError("x"))) == (400, "odd")
    assert code_of(SystemExit(3)) == INTERNAL_CODE
