"""Two engines over one state directory during a reload: what the first one still runs."""

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from queryengine.engine import Query
from queryengine.errors import EngineUnavailableError
from queryengine.manifest import REPLACED_NAME
from queryengine.pool.client import EngineClient
from queryengine.pool.inprocess import InProcessEngine
from tests.queryengine.conftest import MakeConfig
from tests.queryengine.publishing import Publisher
from tests.queryengine.worker_engine import running


def ids(client: EngineClient, fingerprint: str) -> bytes:
    return b"".join(client.run(Query(sql="SELECT id FROM flights", fingerprint=fingerprint)))


def test_a_statement_in_a_replaced_engine_reads_new_data_on_the_next_one_or_not_at_all(
    publisher: Publisher, make_config: MakeConfig
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    config = make_config(workers=1)
    mark = Path(config.state_dir) / REPLACED_NAME
    mark.touch()  # of a runtime that was killed

    with running(config) as first, running(replace(config, generation=2)) as second:

        def look() -> None:
            """Let the next configuration take effect once the worker of the first engine has a statement."""
            looks.append(None)
            if len(looks) == 2:
                second.succeed(first, lambda query: query.fingerprint == "kept")

        looks: list[None] = []
        first.look = look
        assert ids(first, "kept") == b'[{"id":1}]'
        mark.touch()
        publisher.publish(flights="SELECT 2 AS id")
        looks.clear()
        assert ids(first, "kept") == b'[{"id":2}]'
        assert len(looks) >= 2

        first.successor = None
        looks.clear()
        with pytest.raises(EngineUnavailableError, match="The configuration of the runtime has changed"):
            ids(first, "removed")
        assert len(looks) >= 2

    with closing(InProcessEngine(config)) as engine:  # It has no successor, so a mark of `serve` means nothing to it.
        assert b"".join(engine.run(Query(sql="SELECT id FROM flights"))) == b'[{"id":2}]'
