"""What the names in a statement refer to, and what is said about it. Most of it is in `test_instance`."""

from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from queryengine.execution.bounded_functions import MACROS
from queryengine.execution.definitions import IN_KEY_CATALOGS
from queryengine.execution.instance import EngineInstance
from queryengine.execution.views import gate_views
from queryengine.gate.functions import REPLACED
from queryengine.manifest import read_manifest
from runtimeconf.model import Documentation
from tests.queryengine.conftest import FLIGHTS, MakeConfig
from tests.queryengine.execution.instances import gate, run, table
from tests.queryengine.publishing import Publisher

OF_FLIGHTS = Documentation(description="All 'flights'", columns={"ID": "The number", "absent": "no column"})
OF_FEW = Documentation(columns={"carrier": "A view's column"})


def test_descriptions_are_comments_in_the_information_schema(
    make_config: MakeConfig, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(flights=FLIGHTS)
    config = make_config(views={"few": "SELECT id, carrier FROM flights"})
    datasets = tuple(replace(dataset, documentation=OF_FLIGHTS) for dataset in config.datasets)
    views = tuple(replace(view, documentation=OF_FEW) for view in config.views)
    config = replace(config, datasets=datasets, views=views)
    gated = gate_views(config.views, frozenset({"flights"}), gate(), config.file)

    manifest = read_manifest(publisher.state_dir)
    with closing(EngineInstance(config, manifest, gated, tmp_path / "scratch")) as session:
        names = frozenset({"flights", "few"})
        of_tables = "SELECT table_name, TABLE_COMMENT FROM information_schema.tables"
        of_columns = (
            "SELECT table_name, column_name, COLUMN_COMMENT FROM information_schema.columns "
            "WHERE COLUMN_COMMENT IS NOT NULL"
        )
        tables, columns = (
            {tuple(row.values()) for row in table(run(session, sql, relations=names)).to_pylist()}
            for sql in (of_tables, of_columns)
        )

    assert tables == {("flights", "All 'flights'"), ("few", None)}
    assert columns == {("flights", "id", "The number"), ("few", "carrier", "A view's column")}


def test_no_statement_can_call_what_a_macro_replaces() -> None:
    """The gate refuses these names with a schema, which would mean the function of the engine."""
    assert {macro.partition("(")[0] for macro in (*MACROS, *IN_KEY_CATALOGS)} == REPLACED
