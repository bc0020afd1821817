"""Statements that others wrote: the suites in the wheel of Sail, and TPC-H on both sides of the gate."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from cluster.gate.binding import bound
from cluster.gate.gate import SparkGate
from tests.clients import tpch
from tests.cluster.clusters import ClusterEngine, Sail, config_of, in_place
from tests.cluster.gate.statements import ungated

TPCDS = frozenset(
    {
        *("call_center", "catalog_page", "catalog_returns", "catalog_sales", "customer", "customer_address"),
        *("customer_demographics", "date_dim", "household_demographics", "income_band", "inventory", "item"),
        *("promotion", "reason", "ship_mode", "store", "store_returns", "store_sales", "time_dim", "warehouse"),
        *("web_page", "web_returns", "web_sales", "web_site"),
    }
)
TPCH = frozenset(tpch.TABLES)


def _suite(pattern: str) -> list[str]:
    data = Path(str(files("pysail"))) / "data"
    texts = [path.read_text(encoding="utf-8") for path in sorted(data.glob(pattern))]
    return [sql for text in texts for sql in re.sub(r"--.*", "", text).split(";") if sql.strip()]


@pytest.mark.parametrize(
    ("pattern", "tables", "size"),
    [
        ("tpcds/queries/*.sql", TPCDS, 99),
        ("tpch/queries/*.sql", TPCH | {"revenue0"}, 22),
        ("clickbench/*.sql", frozenset({"hits"}), 43),
    ],
    ids=["TPC-DS", "TPC-H", "ClickBench"],
)
def test_the_statements_of_a_suite_are_admitted_and_read_the_tables_that_they_name(
    gate: SparkGate, pattern: str, tables: frozenset[str], size: int
) -> None:
    texts = _suite(pattern)
    queries = [sql for sql in texts if not re.match(r"\s*(?:create|drop)\b", sql, re.IGNORECASE)]

    others = set[str]()
    assert len(queries) >= size
    for sql in queries:
        named = tables.intersection(re.findall(r"(?:\bfrom|\bjoin|,)\s*\(*\s*([a-z_0-9]+)", sql.lower()))
        relations = gate.admit(sql, tables).relations
        assert relations <= named, sql
        others |= named - relations
    assert others <= {"item", "store"}  # Two statements have columns and a common table expression of these names.


@pytest.mark.exhaustive
def test_sail_plans_what_it_is_sent_like_what_the_caller_wrote(sail: Sail, tmp_path: Path) -> None:
    tpch.generate(tmp_path, 0.01)
    datasets = [in_place(name, path) for name, path in ((one.stem, one) for one in sorted(tmp_path.glob("*.parquet")))]
    engine = ClusterEngine(config_of(tmp_path / "state", sail.address, datasets))
    relations = engine.session._required().relations
    for name in TPCH:
        ungated(engine, f"CREATE TEMPORARY VIEW {name} AS SELECT * FROM {relations[name].view}")

    queries = [sql for sql in _suite("tpch/queries/*.sql") if "revenue0" not in sql]  # a view of one of them
    assert len(queries) == 21
    for sql in queries:
        sent = bound(engine.runner.admit(sql, TPCH), relations)
        assert _plan(engine, sent) == _plan(engine, sql), sql


def _plan(engine: ClusterEngine, sql: str) -> str:
    ((plan,),) = [row.values() for row in ungated(engine, f"EXPLAIN {sql}")]
    return re.sub(r"#\d+", "#", str(plan)).lower()
