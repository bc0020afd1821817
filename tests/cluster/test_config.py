"""`runtime.engine`, and the datasets that its cluster reads."""

from pathlib import Path

import pytest

from cluster.config import ClusterConfig
from runtimeconf import handover
from runtimeconf.connector import Package
from runtimeconf.errors import ConfigError
from runtimeconf.model import RuntimeConfig, Scope
from system.addresses import Address
from tests.runtimeconf.configurations import Faults, Load

TOKEN = "token-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"


def of(text: str, *datasets: str, more: str = "") -> str:
    listed = "".join(f"\n  - {dataset}" for dataset in datasets)
    return f"runtime: {{engine: {text}{more}}}\ndatasets: {listed or '[]'}"


def test_all_fields(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    text = of(
        '{from: "sc://spark.internal:15003/", params: {token: "${ env:T }", tls_ca: ca.pem}, max_running: 3, '
        "statement_timeout: 10m}"
    )

    config = load_text(text, {"T": TOKEN})

    assert config.engine is not None
    assert (config.engine.max_running, config.engine.statement_timeout_s) == (3, 600.0)
    assert ClusterConfig.of(config.engine) == ClusterConfig(
        address=Address("spark.internal", 15003), token=TOKEN, uses_tls=True, tls_ca=tmp_path / "ca.pem"
    )
    assert (config.query.workers, config.query.timeout_s) == (3, 600.0)
    assert TOKEN not in repr(config)
    assert config.warnings == ()


def test_the_defaults(load_text: Load) -> None:
    config = load_text(of('{from: "sc://localhost"}'))

    assert config.engine is not None
    assert config.engine.name == "sc"
    assert ClusterConfig.of(config.engine) == ClusterConfig(address=Address("localhost", 15002))
    assert (config.query.workers, config.query.timeout_s) == (8, 30.0)
    assert load_text("{}").engine is None


def test_only_the_engine_gets_the_token(load_text: Load) -> None:
    config = load_text(of('{from: "sc://spark.internal", params: {token: "${ env:T }"}}'), {"T": TOKEN})

    handed = handover.without_engine_params(config)

    assert TOKEN not in str(handover.plain(handed))
    assert handover.rebuilt(RuntimeConfig, handover.plain(config)) == config
    assert handover.without_engine_params(load_text("{}")).engine is None


def test_the_datasets_are_read_in_place(load_text: Load, tmp_path: Path) -> None:
    text = of(
        '{from: "sc://localhost"}',
        "{from: 's3://lake/orders/', name: orders, params: {file_format: parquet}}",
        "{from: 'file:flights.csv', name: flights, params: {csv_has_header: 'false'}}",
        "{from: 'delta:tables/days', name: days}",
    )

    config = load_text(text)

    assert [dataset.is_in_place for dataset in config.datasets] == [True] * 3
    assert config.loaded_datasets == ()
    kept = handover.without_sources(config).datasets
    assert [dataset.location for dataset in kept] == [
        "s3://lake/orders/",
        f"{tmp_path}/flights.csv",
        f"{tmp_path}/tables/days",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "runtime.engine: is empty"),
        ("{max_running: 1}", "lacks the field from"),
        ("{from: spark.internal}", "runtime.engine.from: must be the address of a cluster"),
        ('{from: "sc://a:0"}', "ports range from 1 to 65535"),
        ('{from: "sc://a b"}', "runtime.engine.from: must be"),
        ('{from: "sc://a/b"}', "runtime.engine.from: must be"),
        (f'{{from: "sc://a:15002/;token={TOKEN}"}}', "use params for the token"),
        (f'{{from: "sc://u:{TOKEN}@a"}}', "use params for the token"),
        ('{from: "sc://spark.internal"}', "runtime.engine.params: lacks the field token"),
        ('{from: "sc://a", params: {token: []}}', "runtime.engine.params.token: must be a string"),
        ('{from: "sc://a", params: {token: "${ env:NONE }"}}', "runtime.engine.params.token"),
        ('{from: "sc://a", params: {token: "a b\\tc"}}', "is not a token"),
        ('{from: "sc://localhost", params: {tls_ca: none.pem}}', "runtime.engine.params.tls_ca: cannot be read"),
        ('{from: "sc://localhost", params: {tls: true}}', "runtime.engine.params.tls: unknown field"),
        ('{from: "sc://localhost", max_running: 0}', "runtime.engine.max_running: must be"),
        ('{from: "sc://localhost", statement_timeout: 2d}', "runtime.engine.statement_timeout: must be"),
    ],
)
def test_a_fault_names_the_field_and_shows_no_token(load_text: Load, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(of(text))

    assert expected in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ("{from: 'postgres:public.t', name: t, params: {pg_host: a}}", "from: cannot be read by the runtime.engine"),
        ("{from: 'file:data', name: t}", "datasets[0].from: must name parquet or csv files"),
        ("{from: 'file:a.json', name: t}", "datasets[0].from: must name parquet or csv files"),
        ("{from: 'file:a%2e#1.parquet', name: t}", "datasets[0].from: has a % in it"),
        ("{from: 'file:a.parquet', name: t, acceleration: {enabled: true}}", "acceleration: is not supported"),
        ("{from: 's3://lake/a.parquet', name: t, params: {s3_region: eu}}", "params.s3_region: has no effect"),
        ("{from: 'file:a.csv', name: t, params: {skip_rows: 1}}", "datasets[0].params.skip_rows: has no effect"),
    ],
)  # fmt: skip
def test_a_dataset_that_the_cluster_cannot_read_is_a_fault(load_text: Load, dataset: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(of('{from: "sc://localhost"}', dataset))

    assert expected in str(caught.value)


SNAPSHOTS = ", snapshots: {location: 's3://lake/nodes', role: follower, params: {s3_auth: iam_role}}"


@pytest.mark.plugin
@pytest.mark.parametrize(
    ("dataset", "in_place"),
    [
        ("{from: 'file:a.parquet', name: t}", True),
        ("{from: 'file:a.parquet', name: t, acceleration: {enabled: false}}", True),
        ("{from: 'file:a%2e#1.parquet', name: t}", False),
        ("{from: 'file:a.parquet', name: t, acceleration: {enabled: true}}", False),
        ("{from: 'file:a.json', name: t}", False),
        ("{from: 'file:a.csv', name: t, params: {skip_rows: 1}}", False),
        ("{from: 'postgres:public.t', name: t, params: {pg_host: a, pg_db: d, pg_user: '${ env:NO }'}}", False),
        ("{from: 's3://lake/a.parquet', name: t, params: {s3_key: '${ env:NO }', s3_secret: '${ env:NO }'}}", False),
    ],
)  # fmt: skip
def test_with_snapshots_the_runtime_loads_what_the_cluster_cannot_read(
    load_text: Load, dataset: str, in_place: bool
) -> None:
    config = load_text(of('{from: "sc://localhost"}', dataset, more=SNAPSHOTS))

    assert [one.is_in_place for one in config.datasets] == [in_place]
    assert len(config.loaded_datasets) == (0 if in_place else 1)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("views: [{name: v, sql: SELECT 1, materialized: true}]", "views[0].materialized: is not supported with"),
        ("views: [{name: v, sql: SELECT 1, acceleration: {}}]", "views[0].acceleration: is not supported with"),
        (
            "datasets: [{from: 'localpod:a', name: b}]",
            "datasets[0].from: localpod is not supported with runtime.engine",
        ),
    ],
)
def test_what_a_materialized_view_would_make_is_a_fault(load_text: Load, declared: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("runtime: {engine: {from: 'sc://localhost'}}\n" + declared)

    assert expected in str(caught.value)


def test_a_dataset_in_place_may_be_described_and_have_a_schema(load_text: Load) -> None:
    dataset = "{from: 'file:a.parquet', name: air.days, description: Flights, columns: [{name: id, description: Key}]}"

    (read,) = load_text(of('{from: "sc://localhost"}', dataset)).datasets

    assert (read.is_in_place, read.name, read.documentation.columns) == (True, "air.days", {"id": "Key"})


@pytest.mark.parametrize("view", ["materialized: false", "materialized: true", "acceleration: {}"])
def test_a_key_on_a_cluster_cannot_name_a_view(load_text: Load, faults: Faults, view: str) -> None:
    auth = f"auth: {{api-key: {{enabled: true, named_keys: [{{name: a, key: {TOKEN}, datasets: [late]}}]}}}}"
    rest = f"{auth}}}\nviews: [{{name: late, sql: SELECT 1, {view}}}]"
    text, in_cluster = f"runtime: {{{rest}", f"runtime: {{engine: {{from: 'sc://127.0.0.1:15002'}}, {rest}"

    assert load_text(text).auth.named_keys[0].scope == Scope(relations=frozenset({"late"}))
    assert any(fault.message.startswith("names a view: with runtime.engine") for fault in faults(in_cluster))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("{workers: 2}", "runtime.query.workers: has no effect with runtime.engine: set max_running there"),
        ("{timeout: 2s}", "runtime.query.timeout: has no effect with runtime.engine: set statement_timeout there"),
    ],
)
def test_a_limit_is_given_once(load_text: Load, query: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_text(of('{from: "sc://localhost", statement_timeout: 1m}', more=f", query: {query}"))

    timeout_s = load_text(of('{from: "sc://localhost"}', more=", query: {timeout: 2s}")).query.timeout_s
    assert timeout_s == 2.0


def test_a_cluster_without_protection_is_a_warning(load_text: Load) -> None:
    config = load_text(of('{from: "sc://sail.internal", params: {insecure: true}}'))

    assert config.engine is not None
    assert not ClusterConfig.of(config.engine).uses_tls
    (warning,) = config.warnings
    assert "connects without TLS and a token: anyone who can reach it can read all data" in warning


@pytest.mark.parametrize(("is_on", "warnings"), [("true", 1), ("false", 0)])
def test_a_results_cache_that_has_no_effect_is_a_warning(load_text: Load, is_on: str, warnings: int) -> None:
    config = load_text(of('{from: "sc://localhost"}', more=f", results_cache: {{enabled: {is_on}}}"))

    assert len(config.warnings) == warnings
    assert all("runtime.results_cache: has no effect with runtime.engine" in warning for warning in config.warnings)


def test_a_token_that_is_written_out_is_a_warning(load_text: Load) -> None:
    config = load_text(of(f'{{from: "sc://localhost", params: {{token: {TOKEN}}}}}'))

    (warning,) = config.warnings
    assert "is in plain text: use a secret reference to keep it out of this file" in warning
    assert TOKEN not in warning


def test_the_gate_needs_its_library(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "is_installed", property(lambda _: False))

    with pytest.raises(ConfigError, match=r"runtime\.engine: needs a library: python -m pip install 'sqlglot"):
        load_text(of('{from: "sc://localhost"}'))
