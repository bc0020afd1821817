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
    found = caught.value.faults
    assert all(fault.file == FILE and fault.yaml_path == f"views[{fault.line - 1}].sql" for fault in found)
    return {fault.yaml_path: fault.message for fault in found}


def test_views_come_after_the_views_that_they_read() -> None:
    views = declared(
        last="SELECT * FROM middle JOIN planes USING (id)",
        middle="WITH x AS (SELECT * FROM first) SELECT * FROM x",
        first="SELECT * FROM flights",
        free="SELECT 1 AS a",
    )

    ordered = gate_views(views, DATASETS, gate(), FILE)
    assert [view.config.name for view in ordered] == ["first", "middle", "last", "free"]

    views = declared(b="SELECT * FROM flights", a="SELECT * FROM B", c="SELECT * FROM Planes")

    ordered = gate_views(views, DATASETS, gate(), FILE)
    assert [view.config for view in ordered] == views, "a valid order stays"
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
    circle = "Circular view references: a -> b -> c -> a."
    itself = "Circular view references: itself -> itself."
    assert found == {**{f"views[{number}].sql": circle for number in range(3)}, "views[4].sql": itself}
    found = faults(a="SELECT * FROM b, c", b="SELECT * FROM a", c="SELECT * FROM b, a")
    assert len(found) == 3, "a view in two circles is named once"
    assert all(message.startswith("Circular view references: ") for message in found.values())


def test_each_view_that_is_refused_is_named() -> None:
    refused = [
        "SELECT * FROM nowhere",
        "SELECT * FROM '/etc/passwd'",
        "DELETE FROM flights",
        "SELECT 1; SELECT 2",
        "SELEC 1",
        "",
        "SELECT * FROM read_csv('x')",
        "SELECT ? AS a",
        "EXPLAIN SELECT 1",
        "PIVOT flights ON name USING count(*)",
    ]
    bad = {f"bad{number}": sql for number, sql in enumerate(refused)}

    found = faults(**bad, good="SELECT * FROM flights", reader="SELECT * FROM bad0")

    assert list(found) == [f"views[{number}].sql" for number in range(len(refused))]
    assert all(found.values())
