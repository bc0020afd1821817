"""No statement returns memory of the engine through arrays to which an outer join adds nulls."""

from pathlib import Path

import pytest

from runtimeconf.model import DatasetRule, Scope
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.test_row_rules import answer

TABLES = {
    "arrays": "SELECT i AS id, [i, i]::BIGINT[2] AS a FROM range(600) r(i)",
    "plain": "SELECT i AS id FROM range(600) r(i)",
}
JOINED = "FROM range(2000) o(i) {} JOIN (SELECT i, {} AS x FROM range(700) r(i)) b ON o.i = b.i + 500"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT b.x " + JOINED.format("LEFT", "[i, i, i]::BIGINT[3]"),
        "SELECT b.x.q[1] AS n " + JOINED.format("FULL", "{'q': range(i, i + 64)::BIGINT[64]}"),
        "SELECT b.x " + JOINED.format("LEFT", "TRY_CAST([i] AS INT[1])"),
        "SELECT b.x " + JOINED.format("ASOF LEFT", "array_value(i, i)").replace(" = ", " >= "),
        "SELECT b.x " + JOINED.format("LEFT", "array_cross_product(array_value(1.0, 2, 3), array_value(1.0, 2, 3))"),
        "SELECT b.x " + JOINED.format("LEFT", """from_json('{"q": [1, 2]}', '{"q": "INTEGER[2]"}')"""),
        "EXPLAIN ANALYZE SELECT b.x " + JOINED.format("LEFT", "[i]::BIGINT[1]"),
        "SUMMARIZE SELECT b.x " + JOINED.format("LEFT", "[i]::BIGINT[1]"),
        "SELECT a FROM plain LEFT JOIN arrays ON plain.id = arrays.id + 5",
        "SELECT a FROM arrays RIGHT JOIN plain ON plain.id = arrays.id + 5",
        "SELECT (SELECT a FROM arrays WHERE arrays.id = plain.id + 5) AS x FROM plain",
        "SELECT x FROM plain, LATERAL (SELECT max(a) AS x FROM arrays WHERE arrays.id = plain.id + 5) b",
        "WITH x AS MATERIALIZED (FROM plain LEFT JOIN arrays USING (id)) FROM x",
        (
            "PIVOT (SELECT plain.id % 3 AS g, plain.id AS k, a FROM plain LEFT JOIN arrays USING (id)) ON g"
            " USING any_value(a) GROUP BY k"
        ),
    ],
)
def test_an_outer_join_with_arrays_is_refused(tmp_path: Path, sql: str) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(**TABLES)
    with KINDS["in process"](config_of(publisher.state_dir, tuple(TABLES))) as engine:
        assert answer(engine, sql, None).startswith(b"StatementNotAllowedError: A ")


def test_other_statements_are_not_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "state")
    publisher.publish(**TABLES)
    rule = DatasetRule(dataset="arrays", columns=("id",))
    scope = Scope(relations=frozenset(TABLES), rules=(rule,))
    with KINDS["in process"](config_of(publisher.state_dir, tuple(TABLES))) as engine:
        for sql, within in (
            ("SELECT a[1] AS n FROM arrays JOIN plain USING (id) ORDER BY n LIMIT 1", None),
            ("SELECT array_distance(a::DOUBLE[2], [0, 0]::DOUBLE[2])::INT AS n FROM arrays ORDER BY n LIMIT 1", None),
            ("SELECT [0, 1][1] AS n FROM plain LEFT JOIN plain AS other USING (id) LIMIT 1", None),
            ("SELECT json_extract('[0]', '$[0]')::INT AS n FROM plain LEFT JOIN plain AS p USING (id) LIMIT 1", None),
            (
                """SELECT from_json('[0]', '["INTEGER"]')[1] AS n FROM plain LEFT JOIN plain AS p USING (id) LIMIT 1""",
                None,
            ),
            # Such a key must not learn of the column.
            ("SELECT arrays.id AS n FROM plain LEFT JOIN arrays USING (id) ORDER BY n LIMIT 1", scope),
        ):
            assert answer(engine, sql, within) == b'[{"n":0}]'
        assert answer(engine, "EXPLAIN FROM plain LEFT JOIN arrays USING (id)", None).startswith(b'[{"explain_key"')
        assert answer(engine, "SELECT nothing FROM arrays", None).startswith(b"SqlError: Referenced column")
