import json

import pytest

from cluster.gate.binding import Relation, bound
from cluster.gate.gate import SparkGate
from tests.cluster.clusters import ClusterEngine
from tests.cluster.gate.statements import DECLARED, ungated

RELATIONS = {
    "flights": Relation(
        name="Flights", view="v7_flights", is_view=False, columns=(("id", "bigint"), ("it's", "string"))
    ),
    "few": Relation(name="few", view="v7_few", is_view=True, columns=(("id", "bigint"),)),
    "hidden": Relation(name="hidden", view="v7_hidden", is_view=False, columns=(("secret", "string"),)),
}


def test_names_become_those_of_the_session(gate: SparkGate) -> None:
    statement = gate.admit("SELECT flights.id FROM flights, few AS f", DECLARED)

    assert bound(statement, RELATIONS) == "SELECT `flights`.`id` FROM `v7_flights` AS `flights`, `v7_few` AS `f`"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT table_name, table_type FROM information_schema.tables", [["few", "VIEW"], ["Flights", "BASE TABLE"]]),
        (
            "SELECT table_name, column_name, ordinal_position, data_type FROM information_schema.columns",
            [["few", "id", 1, "bigint"], ["Flights", "id", 1, "bigint"], ["Flights", "it's", 2, "string"]],
        ),
        ("SELECT * FROM information_schema.schemata", [["runtime", "main"]]),
        ("SHOW TABLES", [["main", "few", False], ["main", "Flights", False]]),
        ("SHOW COLUMNS IN flights", [["id"], ["it's"]]),
        ("DESCRIBE flights", [["id", "bigint", None], ["it's", "string", None]]),
        ("SHOW CATALOGS", [["runtime"]]),
    ],
)
def test_lists_have_what_is_visible_and_nothing_else(
    gate: SparkGate, engine: ClusterEngine, sql: str, rows: list[list[object]]
) -> None:
    found = ungated(engine, bound(gate.admit(sql, DECLARED), RELATIONS))

    assert [list(row.values()) for row in found] == rows


def test_a_name_with_a_dot_is_listed_in_its_schema(gate: SparkGate, engine: ClusterEngine) -> None:
    columns = (("id", "bigint"),)
    relations = {"taxi.trips": Relation(name="Taxi.trips", view="v7_taxi_trips", is_view=False, columns=columns)}
    answers = {
        "SELECT * FROM information_schema.tables": [["runtime", "Taxi", "trips", "BASE TABLE"]],
        "SELECT table_schema, table_name, column_name FROM information_schema.columns": [["Taxi", "trips", "id"]],
        "SELECT schema_name FROM information_schema.schemata": [["Taxi"], ["main"]],
        "SHOW TABLES": [["Taxi", "trips", False]],
        "SHOW COLUMNS IN taxi.trips": [["id"]],
        "DESCRIBE runtime.taxi.trips": [["id", "bigint", None]],
    }

    for sql, rows in answers.items():
        found = ungated(engine, bound(gate.admit(sql, frozenset(relations)), relations))
        assert [list(row.values()) for row in found] == rows, sql


def test_a_key_that_sees_nothing_gets_empty_lists_with_their_columns(gate: SparkGate, engine: ClusterEngine) -> None:
    answer = engine.run("SELECT * FROM information_schema.tables", relations=(), encoding="vnd")

    assert json.loads(answer)["row_count"] == 0
    assert [field["name"] for field in json.loads(answer)["schema"]["fields"]][2:] == ["table_name", "table_type"]
