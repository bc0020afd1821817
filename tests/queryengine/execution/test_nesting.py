"""Statements and values that are nested deep end no worker, whatever stack the runtime was started with."""

from collections.abc import Iterator

import pytest

from queryengine.errors import EngineWorkerDiedError, StatementError
from queryengine.pool.client import EngineClient
from tests.queryengine.asking import rows
from tests.queryengine.conftest import config_of
from tests.queryengine.publishing import Publisher
from tests.queryengine.worker_engine import running

LEVELS = 200_000
LISTS = f"repeat('[', {LEVELS}) || repeat(']', {LEVELS})"
OBJECTS = f"repeat('{{\"a\":', {LEVELS}) || '1' || repeat('}}', {LEVELS})"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("", id="usual", marks=pytest.mark.exhaustive),
        pytest.param("-s 256", id="small"),
        pytest.param("-S -s 256", id="small at first", marks=pytest.mark.exhaustive),
    ],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    publisher = Publisher(tmp_path_factory.mktemp("nesting") / "state")
    publisher.publish(flights="SELECT 1 AS id")
    with running(config_of(publisher.state_dir, workers=1), stack=request.param) as engine:
        yield engine


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT " + "(" * 199 + "1" + ")" * 199 + " AS n", id="brackets"),
        pytest.param("SELECT " + "(SELECT " * 95 + "1" + ")" * 95 + " AS n", id="subqueries"),
        pytest.param("SELECT " + "abs(" * 190 + "1" + ")" * 190 + " AS n", id="functions"),
        pytest.param("SELECT 1" + "+1" * 900 + " AS n", id="operators"),
        pytest.param("SELECT true" + " OR true" * 20_000, id="OR"),
        pytest.param("SELECT sum(1) FROM (SELECT 1" + " UNION ALL SELECT 1" * 1000 + ")", id="UNION ALL"),
        pytest.param("SELECT " + "CASE WHEN true THEN " * 190 + "1" + " END" * 190 + " AS n", id="CASE"),
        pytest.param("FROM " + "(FROM " * 95 + "range(1)" + ")" * 95, id="tables"),
        pytest.param("SELECT json_contains(repeat('[', 9000) || repeat(']', 9000), '1') AS n", id="a search"),
        pytest.param("SELECT to_variant((repeat('[', 999) || repeat(']', 999))::JSON) IS NULL AS n", id="a VARIANT"),
    ],
)
def test_what_is_admitted_runs(engine: EngineClient, sql: str) -> None:
    assert len(rows(engine, sql)) == 1


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"SELECT to_variant(({LISTS})::JSON)", id="to_variant"),
        pytest.param(f"SELECT to_variant([{{'a': ({OBJECTS})::JSON}}])", id="to_variant of a list"),
        pytest.param(f"SELECT variant_group_array(({LISTS})::JSON)", id="variant_group_array"),
        pytest.param(f"SELECT json_contains({LISTS}, '1')", id="json_contains"),
        pytest.param(f"SELECT json_contains('1', {OBJECTS})", id="json_contains, the other way"),
        pytest.param(f"SELECT from_json('[]', {LISTS})", id="from_json"),
        pytest.param(f"SELECT json_transform('[]', '{'[' * 20_000}\"INTEGER\"{']' * 20_000}')", id="json_transform"),
        pytest.param(f"SELECT json_transform_strict('{{}}', {OBJECTS})", id="json_transform_strict"),
        pytest.param(f"SELECT json_structure(({LISTS})::JSON)", id="json_structure"),
        pytest.param(f"SELECT json_group_structure(({LISTS})::JSON)", id="json_group_structure"),
    ],
)
def test_a_value_that_is_too_deep_is_refused(engine: EngineClient, sql: str) -> None:
    with pytest.raises(StatementError, match=r"arrays and objects|structure|recursion depth of 128"):
        rows(engine, sql)


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(f"SELECT ({LISTS})::JSON::VARIANT", id="cast"),
        pytest.param(f"SELECT TRY_CAST([({OBJECTS})::JSON] AS VARIANT)", id="cast of a list"),
    ],
)
def test_a_cast_of_a_deep_value_to_variant_costs_its_statement_only(engine: EngineClient, sql: str) -> None:
    for _ in range(2):
        with pytest.raises(EngineWorkerDiedError):
            rows(engine, sql)

        assert rows(engine, "SELECT '[1]'::JSON::VARIANT AS v") == [{"v": [1]}]


def test_values_as_they_are_mostly_are_taken(engine: EngineClient) -> None:
    assert rows(
        engine,
        "SELECT json_contains('[1, 2]', '1') AS a, json_contains(NULL, '1') AS b, to_variant('[1]'::JSON) AS c,"
        " to_variant(NULL) AS d, to_variant({'a': DATE '2024-01-31'}) AS e, from_json('[1]', '[\"INTEGER\"]') AS f,"
        " variant_typeof(to_variant(1)) AS g, variant_group_array('[1]'::JSON) AS h",
    ) == [{"a": True, "b": None, "c": [1], "d": None, "e": {"a": "2024-01-31"}, "f": [1], "g": "INT32", "h": [[1]]}]
    assert rows(
        engine,
        "SELECT json_structure('[1]'::JSON) AS a, json_structure('{\"b\": null}') AS b, json_structure({'c': 1}) AS c,"
        " json_structure(NULL) AS d, (SELECT json_group_structure(v) FROM (VALUES ('[1]'::JSON), (NULL)) t (v)) AS e",
    ) == [{"a": '["UBIGINT"]', "b": '{"b":"NULL"}', "c": '{"c":"UBIGINT"}', "d": None, "e": '["UBIGINT"]'}]
    assert rows(
        engine,
        "SELECT 1::VARIANT AS a, [1::VARIANT, 'x'::VARIANT] AS b, {'s': CAST([1] AS VARIANT)} AS c, v.k::INTEGER AS d,"
        " TRY_CAST($1 AS VARIANT) AS e, $2::JSON::VARIANT AS f FROM (SELECT {'k': 5}::VARIANT AS v)",
        parameters=[["1", "x"], '{"b": [1.5, null], "a": "é"}'],
    ) == [{"a": 1, "b": [1, "x"], "c": {"s": [1]}, "d": 5, "e": ["1", "x"], "f": {"b": [1.5, None], "a": "é"}}]
