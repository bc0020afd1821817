from pathlib import Path

import pytest

from queryengine.execution.views import gate_views
from runtimeconf.errors import ConfigError
from tests.queryengine.execution.instances import declared, gate

FILE = Path("/etc/runtime.yaml")
DATASETS = frozenset({"flights", "planes"})


def faults(**views: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        gate_views(declared(**views), DATASETS, gate(), FILE)
    assert all(fault.file == FILE and fault.line >= 10 for fault in caught.value.faults)
    return {fault.yaml_path: fault.message for fault in caught.value.faults}


def test_views_come_after_the_views_that_they_read() -> None:
    views = declared(
        last="SELECT * FROM middle JOIN planes USING (id)",
        middle="WITH x AS (SELECT * FROM first) SELECT * FROM x",
        first="SELECT * FROM flights",
        free="SELECT 1 AS a",
    )

    ordered = gate_views(views, DATASETS, gate(), FILE)

    assert [view.config.name for view in ordered] == ["first", "middle", "last", "free"]


def test_views_in_a_valid_order_keep_it() -> None:
    views = declared(b="SELECT * FROM flights", a="SELECT * FROM B", c="SELECT * FROM Planes")

    ordered = gate_views(views, DATASETS, gate(), FILE)

    assert [view.config for view in ordered] == views
    assert [view.statement.relations for view in ordered] == [{"flights"}, {"b"}, {"planes"}]
    assert gate_views([], DATASETS, gate(), FILE) == ()


def test_a_circle_is_named_at_each_of_its_views() -> None:
    found = faults(
        a="SELECT * FROM b",
        b="SELECT * FROM c",
        c="SELECT * FROM a",
        outside="SELECT * FROM a",
        itself="SELECT * FROM Itself",
        good="SELECT * FROM flights",
        refused="DROP TABLE flights",
    )

    assert found.pop("views[6].sql").startswith("DROP statements"), "all faults are named at once"
    circle = "The views read each other in a circle: a -> b -> c -> a."
    itself = "The views read each other in a circle: itself -> itself."
    assert found == {**{f"views[{number}].sql": circle for number in range(3)}, "views[4].sql": itself}
    found = faults(a="SELECT * FROM b, c", b="SELECT * FROM a", c="SELECT * FROM b, a")
    assert len(found) == 3, "a view in two circles is named once"
    assert all(message.startswith("The views read each other in a circle: ") for message in found.values())


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("SELECT * FROM nowhere", id="unknown name"),
        pytest.param("SELECT * FROM '/etc/passwd'", id="file"),
        pytest.param("DELETE FROM flights", id="write"),
        pytest.param("SELECT 1; SELECT 2", id="two statements"),
        pytest.param("SELEC 1", id="syntax"),
        pytest.param("", id="empty"),
        pytest.param("SELECT * FROM read_csv('x')", id="function"),
        pytest.param("SELECT ? AS a", id="parameter"),
        pytest.param("EXPLAIN SELECT 1", id="explain"),
        pytest.param("PIVOT flights ON name USING count(*)", id="pivot without IN"),
    ],
)
def test_a_view_that_is_refused_is_named(sql: str) -> None:
    found = faults(good="SELECT * FROM flights", bad=sql, reader="SELECT * FROM bad")

    assert list(found) == ["views[1].sql"]
    assert found["views[1].sql"]
