"""No statement joins arrays of a fixed length so that the engine returns memory that it has not written."""

from pathlib import Path

import pytest

from queryengine.errors import StatementNotAllowedError
from queryengine.execution.rule_gate import gate_rule
from queryengine.execution.views import gate_views
from queryengine.gate.gate import Gate
from runtimeconf.errors import ConfigError
from runtimeconf.model import DatasetRule, Scope, ViewConfig
from tests.queryengine.conftest import MakeEngine
from tests.queryengine.publishing import Publisher
from tests.queryengine.statements import DECLARED
from tests.queryengine.test_row_rules import answer

JOINED = "FROM flights o {} JOIN (SELECT id AS i, {} AS x FROM flights) b ON o.id = b.i + 500"
TABLES_JOINED = "SELECT [o.id]::BIGINT[1] AS x FROM flights o {} airlines b"


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "SELECT b.x " + JOINED.format("LEFT", array)
            for array in (
                "[id, id]::BIGINT[2]",
                "TRY_CAST([id] AS INT[1])",
                "[id]::INT ARRAY[1]",
                "[{'a': [id]}]::STRUCT(a INT[1])[]",
                "array_value(id, id)",
                'main."ARRAY_VALUE"(id)',
                "from_json('{}', '{\"q\": \"INTEGER[2]\"}')",
                'from_json(\'{}\', \'{"q": [{"a": "INTEGER\\u005b2\\u005d"}]}\')',
                'json_transform_strict(\'{}\', \'{"q": "INTEGER[/**/2]", "q": "INTEGER"}\')',
                "from_json(structure := '\"INTEGER[2]\"', json := '[1, 2]')",
                "'{}'.from_json('\"INTEGER[ 2 ][]\"')",
                "from_json('{}', '{\"q\": \"BIGINT\\u005b2\\u005d\",}')",
            )
        ),
        *(TABLES_JOINED.format(kind) for kind in ("NATURAL LEFT JOIN", "POSITIONAL JOIN")),
        *(TABLES_JOINED.format(kind) + " USING (id)" for kind in ("LEFT JOIN", "FULL JOIN", "SEMI JOIN")),
        TABLES_JOINED.format("ASOF JOIN") + " ON o.id >= b.id",
        "SELECT x FROM flights, LATERAL (SELECT max([id]::BIGINT[1]) AS x FROM airlines a WHERE a.id = flights.id)",
        "SELECT x FROM flights, (SELECT [flights.id]::BIGINT[1] AS x)",
        "SELECT (SELECT [id]::BIGINT[1] FROM airlines a WHERE a.id = f.id) AS x FROM flights f",
        "SELECT id FROM flights WHERE [id]::BIGINT[1] IN (SELECT [id]::BIGINT[1] FROM airlines)",
        "SELECT EXISTS (SELECT 1 FROM airlines a WHERE [a.id]::BIGINT[1] = [f.id]::BIGINT[1]) AS x FROM flights f",
        "WITH b AS (SELECT id, [id]::BIGINT[1] AS x FROM flights) SELECT x FROM airlines LEFT JOIN b USING (id)",
        "PIVOT (SELECT id, [id]::BIGINT[1] AS x FROM flights) ON id IN (1, 2) USING any_value(x)",
        "PIVOT (SELECT id, [id]::BIGINT[1] AS x FROM flights) ON id USING any_value(x)",
        "PIVOT flights ON id IN (SELECT [id]::BIGINT[1]::VARCHAR FROM airlines)",
        "EXPLAIN ANALYZE SELECT b.x " + JOINED.format("LEFT", "[id]::BIGINT[1]"),
        "SUMMARIZE SELECT b.x " + JOINED.format("LEFT", "[id]::BIGINT[1]"),
        "DESCRIBE SELECT b.x " + JOINED.format("LEFT", "[id]::BIGINT[1]"),
    ],
)
def test_arrays_meet_inner_joins_of_tables_only(gate: Gate, sql: str) -> None:
    with pytest.raises(StatementNotAllowedError, match="makes arrays of a fixed length"):
        gate.admit(sql, DECLARED)


@pytest.mark.parametrize(
    "sql",
    [
        TABLES_JOINED.format("JOIN") + " USING (id)",
        TABLES_JOINED.format("CROSS JOIN"),
        TABLES_JOINED.format("NATURAL JOIN"),
        "SELECT array_distance([id, 1]::FLOAT[2], [1, 2]::FLOAT[2]) AS d FROM flights, airlines ORDER BY d",
        "WITH x AS (SELECT [id]::BIGINT[1] AS x FROM flights) SELECT x FROM x UNION ALL SELECT [1]::BIGINT[1]",
        "SELECT x FROM (SELECT array_value(id, id) AS x FROM flights WHERE id > 1) GROUP BY x HAVING x[1] > 0",
        # Lists, paths and indexes are no arrays.
        "SELECT b.x[1] " + JOINED.format("LEFT", "[id]::BIGINT[]"),
        "SELECT b.x " + JOINED.format("LEFT", "json_extract('[0]', '$[0]')"),
        "SELECT b.x " + JOINED.format("LEFT", "from_json('[0]', '[\"INTEGER\"]')"),
        "SELECT b.x " + JOINED.format("LEFT", "from_json('[0]', '\"INTEGER[ ]\"')"),
        "SELECT b.x " + JOINED.format("LEFT", "from_json(name->>'$.a[0]', '{\"b[0]\": \"INTEGER\"}')"),
        "SELECT b.x " + JOINED.format("LEFT", "name.from_json('\"INTEGER\"')"),
    ],
)
def test_other_statements_are_not_refused(gate: Gate, sql: str) -> None:
    assert gate.admit(sql, DECLARED)


def test_the_configuration_makes_no_arrays(gate: Gate, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Arrays of a fixed length"):
        gate_views([ViewConfig(name="v", sql="SELECT [id]::BIGINT[1] AS x FROM flights")], DECLARED, gate, tmp_path)
    for rule in (
        DatasetRule(dataset="flights", row_filter="[id]::BIGINT[1] = [1]"),
        DatasetRule(dataset="flights", masks=(("id", "[id]::BIGINT[1]"),)),
    ):
        with pytest.raises(StatementNotAllowedError, match="Arrays of a fixed length"):
            gate_rule(rule, DECLARED, gate)


def test_arrays_meet_no_view_but_its_copy(publisher: Publisher, make_engine: MakeEngine) -> None:
    """The engine moves the cast below the join of the view, whose other rows would then have memory as values."""
    publisher.publish(
        t="SELECT i AS id FROM range(2000) r(i)", u="SELECT i AS id, {'q': range(i, i + 64)} AS st FROM range(700) r(i)"
    )
    engine = make_engine(("t", "u"), views={"v": "SELECT t.id, st FROM t LEFT JOIN u ON t.id = u.id + 500"})
    sql = "SELECT count(*) AS n, count(st.q::BIGINT[64]) AS m FROM {}"

    for written in (sql, f"EXPLAIN ANALYZE {sql}", f"WITH x AS (FROM {{0}}) {sql.format('x')}"):
        assert answer(engine, written.format("v"), None).startswith(b"StatementNotAllowedError: A statement that makes")
    assert answer(engine, sql.format("u"), None) == b'[{"n":700,"m":700}]'
    # The view of this key is a copy.
    assert answer(engine, sql.format("v"), Scope(relations=frozenset({"v"}))) == b'[{"n":2000,"m":700}]'


def test_arrays_of_a_former_version_are_not_read(publisher: Publisher, make_engine: MakeEngine) -> None:
    publisher.publish(t="SELECT 1 AS id", u="SELECT {'a': [1]::BIGINT[1]} AS x", w='SELECT 1 AS "INTEGER[3]"')
    engine = make_engine(("t", "u", "w"))

    assert answer(engine, "SELECT id FROM t", None) == b'[{"id":1}]'
    assert answer(engine, "FROM w", None) == b'[{"INTEGER[3]":1}]'
    assert answer(engine, "SELECT 1 AS n FROM u", None).startswith(b"DatasetNotLoadedError")
