"""Named keys over HTTP: what they may name, do and how often."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from msgspec.structs import replace

import datasources.state
import queryengine.state
from authkeys.last_use import read
from authkeys.state import get_access
from datasources.refresh.service import DatasetService
from queryengine.pool.inprocess import InProcessEngine
from runtimeconf.model import (
    DatasetConfig,
    DatasetRule,
    Documentation,
    KeyLimits,
    MaterializedView,
    NamedKey,
    RuntimeConfig,
    Scope,
    ViewConfig,
)
from tests.sqlapi.conftest import running_on
from tests.sqlapi.harness import Answer, call, sql
from tests.system.harness import K1, WRONG

FIXED, REFRESHER, LIMITED, SHORT, OLD, SOME = (f"named-key-{number}-Zq8vT3mN6bX9cL2pR5sW7y" for number in range(6))
EXPIRES = datetime(2999, 1, 1, tzinfo=UTC)
ORDERS = "/v1/datasets/Orders/acceleration/refresh"


SOME_ROWS = Scope(
    relations=frozenset({"orders"}),
    rules=(DatasetRule(dataset="orders", row_filter="id < 3", columns=("id",)),),
)


def named(name: str, key: str, **fields: object) -> NamedKey:
    return NamedKey(name=name, sha256=sha256(key.encode()).digest(), **fields)  # type: ignore[arg-type]


@pytest.fixture
def runtime(config: RuntimeConfig, service: DatasetService, engine: InProcessEngine) -> Iterator[RuntimeConfig]:
    keys = (
        named(
            "fixed-only",
            FIXED,
            scope=Scope(relations=frozenset({"fixed"})),
            rights=frozenset({"query", "refresh"}),
            expires_at=EXPIRES,
        ),
        named("some", SOME, scope=SOME_ROWS, rights=frozenset({"query", "refresh"})),
        named("ops", REFRESHER, rights=frozenset({"refresh"})),
        named("limited", LIMITED, limits=KeyLimits(requests_per_minute=5)),
        named("short", SHORT, limits=KeyLimits(timeout_s=0.2)),
        named("old", OLD, expires_at=datetime.now(UTC) - timedelta(seconds=1)),
    )
    with running_on(replace(config, auth=replace(config.auth, named_keys=keys))) as changed:
        datasources.state.set_datasets(service)
        queryengine.state.set_engine(engine)
        yield changed


def get(path: str, key: str) -> Answer:
    return call("GET", path, ("X-API-Key", key))


def names(answer: Answer) -> list[str]:
    return [item["name"] for item in answer.json()]


@pytest.mark.usefixtures("runtime")
def test_what_is_outside_the_scope_does_not_exist() -> None:
    outside, absent = sql("FROM Orders", key=FIXED), sql("FROM Orderz", key=FIXED)

    assert outside.code == absent.code == "sql_error"
    assert outside.json()["detail"] == absent.json()["detail"].replace("Orderz", "Orders")
    assert sql("SELECT count(*) AS n FROM FIXED", key=FIXED).json() == [{"n": 100}]
    assert names(sql("SHOW TABLES", key=FIXED)) == ["fixed"]
    assert names(get("/v1/datasets", FIXED)) == ["fixed"]
    assert names(get("/v1/datasets", K1)) == ["Orders", "fixed"]
    for method in ("GET", "POST"):
        answers = [call(method, ORDERS.replace("Orders", name), ("X-API-Key", FIXED)) for name in ("Orders", "Orderz")]
        assert [answer.code for answer in answers] == ["dataset_not_found"] * 2
        assert answers[0].json()["detail"] == answers[1].json()["detail"].replace("Orderz", "Orders")


@pytest.mark.usefixtures("runtime")
def test_a_key_without_a_right_is_told_so() -> None:
    assert [sql("SELECT 1", key=REFRESHER).status, sql("SELECT 1", key=REFRESHER).code] == [403, "not_permitted"]
    assert call("POST", ORDERS, ("X-API-Key", REFRESHER)).status == 201
    assert call("POST", ORDERS, ("X-API-Key", SHORT)).code == "not_permitted"
    assert get("/v1/datasets", REFRESHER).status == 200


@pytest.mark.usefixtures("runtime")
def test_requests_beyond_the_limit_are_refused_until_some_are_a_minute_old() -> None:
    answers = [sql("SELECT 1", key=LIMITED) for _ in range(7)]

    assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["4", "3", "2", "1", "0", "0", "0"]
    assert {answer.headers["RateLimit-Limit"] for answer in answers} == {"5"}
    assert answers[-1].code == "rate_limited"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 61
    assert "RateLimit-Limit" not in sql("SELECT 1").headers
    assert get("/health", LIMITED).status == 200


@pytest.mark.usefixtures("runtime")
def test_a_key_has_a_time_limit_of_its_own() -> None:
    slow = "SELECT count(*) FROM range(100_000_000) a, range(1000) b WHERE a.range + b.range = 7"

    answer = sql(slow, key=SHORT)

    assert (answer.status, answer.code) == (504, "query_timeout")
    assert "after 0.2 s" in answer.json()["detail"]


@pytest.mark.usefixtures("runtime")
def test_an_expired_key_is_answered_like_an_unknown_one() -> None:
    expired, unknown = sql("SELECT 1", key=OLD), sql("SELECT 1", key=WRONG)

    assert expired.status == 401
    assert expired.without_request_id() == unknown.without_request_id()
    assert {**expired.headers, "X-Request-Id": ""} == {**unknown.headers, "X-Request-Id": ""}


@pytest.mark.usefixtures("runtime")
def test_a_caller_is_told_what_its_key_may_do() -> None:
    assert get("/v1/key", FIXED).json() == {
        "name": "fixed-only",
        "expires": "2999-01-01T00:00:00.000Z",
        "datasets": ["fixed"],
        "columns": {},
        "rights": ["query", "refresh"],
        "limits": {"requests_per_minute": None, "concurrent": None, "timeout_seconds": None},
    }
    of_string_key = get("/v1/key", K1).json()
    assert (of_string_key["name"], of_string_key["expires"], of_string_key["datasets"]) == (None, None, None)
    assert of_string_key["rights"] == ["query", "refresh"]


def test_the_last_use_of_a_key_is_kept(runtime: RuntimeConfig) -> None:
    sql("SELECT 1", key=FIXED)
    sql("SELECT 1", key=WRONG)
    access = get_access()
    assert access.last_use is not None
    assert access.key_set is not None

    access.last_use.write()

    caller = access.key_set.find(FIXED)
    assert caller is not None
    assert datetime.now(UTC).timestamp() - read(runtime.state_dir)[caller.fingerprint] < 60


@pytest.mark.parametrize("is_materialized", [True, False])
def test_a_key_with_a_view_chooses_no_sql(
    config: RuntimeConfig, service: DatasetService, engine: InProcessEngine, is_materialized: bool
) -> None:
    datasets_of, views = config.datasets, config.views
    if is_materialized:
        datasets_of += (DatasetConfig(name="Seen", from_="view:Seen", view=MaterializedView(sql="FROM Orders")),)
    else:
        views += (ViewConfig(name="Seen", sql="FROM Orders"),)
    body = b'{"refresh_sql": "SELECT * FROM Orders"}'
    for relations, status in (({"orders"}, 201), ({"orders", "fixed"}, 201), ({"orders", "seen"}, 403)):
        key = named("one", FIXED, scope=Scope(relations=frozenset(relations)), rights=frozenset({"refresh"}))
        auth = replace(config.auth, named_keys=(key,))
        with running_on(replace(config, datasets=datasets_of, views=views, auth=auth)):
            datasources.state.set_datasets(service)
            queryengine.state.set_engine(engine)
            assert call("POST", ORDERS, ("X-API-Key", FIXED), body=body).status == status


@pytest.mark.usefixtures("runtime")
def test_a_key_with_rules_sees_no_figures_and_chooses_no_sql() -> None:
    whole, (shown,) = get("/v1/datasets", K1).json()[0], get("/v1/datasets", SOME).json()
    assert sql("SELECT count(*) AS n, max(id) AS id FROM Orders", key=SOME).json() == [{"n": 3, "id": 2}]
    assert whole["rows"] > 3
    assert {name: value for name, value in shown.items() if value != whole[name]} == {
        "rows": None,
        "refreshed_at": None,
        "bytes": None,
        "snapshot": None,
    }

    refused = call("POST", ORDERS, ("X-API-Key", SOME), body=b'{"refresh_sql": "SELECT * FROM Orders"}')
    assert (refused.status, refused.code) == (403, "statement_not_allowed")
    refused = call("POST", ORDERS, ("X-API-Key", SOME), body=b'{"refresh_mode": "append"}')
    assert (refused.status, refused.code) == (403, "statement_not_allowed")
    assert call("POST", ORDERS, ("X-API-Key", SOME), body=b'{"refresh_mode": "full"}').status == 201
    assert call("POST", ORDERS, ("X-API-Key", SOME)).status == 201
    runs = {tuple(run[name] for name in ("rows", "bytes", "unchanged", "phase")) for run in get(ORDERS, SOME).json()}
    assert runs == {(None,) * 4}

    told = get("/v1/key", SOME)
    assert (told.json()["datasets"], told.json()["columns"]) == (["orders"], {"orders": ["id"]})
    assert b"id < 3" not in told.body


def test_a_scope_does_not_see_figures_of_the_next_configuration(
    runtime: RuntimeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Documentation(description="ours")
    added = next(one.name for one in runtime.datasets if one.name != "fixed")
    declared = [one for one in runtime.datasets if one.name != added]
    own = replace(runtime, datasets=tuple(replace(one, documentation=ours, from_="file:ours.csv") for one in declared))
    path = "/v1/datasets/fixed/acceleration/refresh"
    monkeypatch.setattr("sqlapi.datasets.get_config", lambda: own)
    monkeypatch.setattr("sqlapi.datasets.is_own", lambda _: False)  # as during a reload
    (shown,), (whole, *_) = get("/v1/datasets", FIXED).json(), get("/v1/datasets", K1).json()
    runs, whole_runs = get(path, FIXED).json(), get(path, K1).json()

    hidden = ("rows", "bytes", "snapshot", "refreshed_at", "checked_at", "age_s")
    assert {name: shown[name] for name in ("name", "from", "description", *hidden)} == {
        "name": "fixed",
        "from": "file:ours.csv",
        "description": "ours",
        **dict.fromkeys(hidden),
    }
    assert None not in {whole[name] for name in hidden}
    assert {(run["rows"], run["bytes"]) for run in runs} == {(None, None)}
    assert whole_runs[0]["rows"]
    assert added not in [one["name"] for one in get("/v1/datasets", K1).json()]
    assert get(f"/v1/datasets/{added}/acceleration/refresh", K1).status == 404


@pytest.mark.usefixtures("runtime")
def test_a_scope_does_not_see_which_dataset_is_copied(service: DatasetService, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [replace(one, from_="localpod:orders") for one in service.datasets() if one.name == "fixed"]
    monkeypatch.setattr(service, "datasets", lambda: states)

    assert [one["from"] for one in get("/v1/datasets", FIXED).json()] == ["view:fixed"]
    assert [one["from"] for one in get("/v1/datasets", K1).json()] == ["localpod:orders"]
