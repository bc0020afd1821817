"""Keys with scopes on a cluster: every answer equals that of a runtime which declares nothing but the scope."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.clusters import Sail
from tests.system.scopes import CHANNELS, Channel, Key, Runtimes, Scopes, started
from tests.system.test_key_scopes import TABLES, declared

pytestmark = pytest.mark.exhaustive

SCOPES: Scopes = {"one": ("customers",), "two": ("customers", "Orders")}
DATASETS = {**TABLES, "Hidden": "SELECT 'hidden-' || i AS secret, i AS id FROM range(5) t(i)"}
VIEWS = [
    {"name": "guests", "sql": "SELECT id, amount, note FROM Orders ANTI JOIN customers USING (customer)"},
    {"name": "unfit", "sql": "SELECT altitude FROM Orders"},
]


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtimes]:
    with Sail(tmp_path_factory.mktemp("sail")) as cluster:
        engine = {"from": f"sc://127.0.0.1:{cluster.port}", "max_running": 2}

        def changes(name: Key | None, directory: Path) -> dict[str, Any]:
            names = SCOPES[name] if name else tuple(DATASETS)
            datasets = [declared(directory, one, DATASETS[one]) for one in names]
            for dataset in datasets:
                del dataset["acceleration"]
            return {"runtime": {"engine": engine}, "views": [] if name else VIEWS, "datasets": datasets}

        with started(SCOPES, changes, lambda: tmp_path_factory.mktemp("scope")) as found:
            yield found


NAMES = st.sampled_from(
    [
        "Orders",
        "orders",
        "CUSTOMERS",
        "customers",
        "guests",
        "Guests",
        "hidden",
        "unfit",
        "nowhere",
        "v0_hidden",
        "_cte_1",
    ]
)
QUALIFIERS = st.sampled_from(
    ["", "", "", "", "main.", "runtime.main.", "RUNTIME.`main`.", "runtime.", "spark_catalog.default.", "global_temp."]
)
COLUMNS = st.sampled_from(
    ["id", "customer", "amount", "name", "*", "count(*)", "secret", "orders.id", "hidden.secret", "v0_orders.id", "nme"]
)
LISTS = ["information_schema.tables", "runtime.information_schema.columns", "information_schema.schemata"]


@st.composite
def references(draw: st.DrawFn) -> str:
    """Ways to write a name."""
    name = draw(NAMES)
    return draw(QUALIFIERS) + draw(st.sampled_from([name, name, f"`{name}`", f"/**/{name}"]))


def relations(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What may follow FROM."""
    names = references()
    return st.one_of(
        names,
        names,
        st.builds("{} AS a".format, names),
        st.builds("({}) AS q".format, queries),
        st.builds("{} AS a CROSS JOIN {} AS b".format, names, names),
        st.builds("{} JOIN {} USING (customer)".format, names, names),
        st.builds("{} NATURAL LEFT JOIN {}".format, names, names),
        st.builds("{} AS a LEFT SEMI JOIN {} AS b ON a.amount = b.amount".format, names, names),
        st.builds("{} AS a, LATERAL ({}) AS q".format, names, queries),
        st.builds("{} LATERAL VIEW explode(array(id, amount)) e AS x".format, names),
        st.builds("{} PIVOT (count(*) FOR customer IN ('c1'))".format, names),
        st.builds("{} TABLESAMPLE (100 PERCENT)".format, names),
        st.builds("{} VERSION AS OF 1".format, names),
        st.builds("parquet.`{}.parquet`".format, NAMES),
        st.builds("IDENTIFIER('{}')".format, NAMES),
        st.sampled_from([*LISTS, "VALUES (1, 'c1') AS v(id, customer)", "range(3)"]),
    )


def selects(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Queries over relations."""
    sources, names = relations(queries), references()
    return st.one_of(
        st.builds("SELECT {} FROM {} ORDER BY ALL".format, COLUMNS, sources),
        st.builds("SELECT * FROM {} ORDER BY ALL LIMIT 5".format, sources),
        st.builds("SELECT count(*) AS n FROM {}".format, sources),
        st.builds("SELECT ({}) AS n".format, queries),
        st.builds("SELECT 1 AS a WHERE EXISTS ({})".format, queries),
        st.builds("SELECT id FROM {} WHERE customer IN (SELECT customer FROM {}) ORDER BY id".format, names, names),
        st.builds("WITH {} AS ({}) SELECT count(*) AS n FROM {}".format, NAMES, queries, sources),
        st.builds("(SELECT {} FROM {}) UNION (SELECT {} FROM {}) ORDER BY 1".format, COLUMNS, names, COLUMNS, names),
        st.builds("SELECT CAST(customer AS INT) AS c FROM {} ORDER BY c".format, names),
        st.builds("SELECT raise_error(customer) AS c FROM {} WHERE customer = 'c1'".format, names),
        st.builds("SELECT {} AS n FROM {} GROUP BY {}".format, COLUMNS, names, COLUMNS),
        st.builds("SELECT table_name, column_name FROM information_schema.columns WHERE table_name ILIKE '{}' "
                  "ORDER BY 1, 2".format, NAMES),
    )  # fmt: skip


QUERIES = st.recursive(st.builds("SELECT count(*) AS n FROM {}".format, references()), selects, max_leaves=4)
STATEMENTS = st.one_of(
    QUERIES,
    selects(QUERIES),
    st.builds("{} {}".format, st.sampled_from(["DESCRIBE", "DESCRIBE EXTENDED", "DESC", "TABLE"]), references()),
    st.builds("SHOW {} {}".format, st.sampled_from(["COLUMNS IN", "CREATE TABLE", "TBLPROPERTIES"]), references()),
    st.builds("{} {}".format, st.sampled_from(["EXPLAIN", "EXPLAIN EXTENDED", "EXPLAIN FORMATTED"]), QUERIES),
    st.sampled_from(["SHOW TABLES", "SHOW VIEWS", "SHOW TABLES IN main", "SHOW DATABASES", "SHOW CATALOGS", "SHOW"]),
    st.builds("INSERT INTO {} VALUES (1)".format, references()),
    st.builds("SELECT * FROM {} WHERE id = ?".format, references()),
)


@settings(
    max_examples=int(os.environ.get("CLUSTER_CASES", "100")), suppress_health_check=list(HealthCheck), deadline=None
)
@given(sql=STATEMENTS, channel=st.sampled_from(CHANNELS))
def test_every_answer_is_that_of_a_runtime_with_the_scope_alone(runtimes: Runtimes, sql: str, channel: Channel) -> None:
    runtimes.compare(sql, channel)
