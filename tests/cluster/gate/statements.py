"""The statements of the data files beside this one, and what to do with them."""

from collections.abc import Iterator
from pathlib import Path

from queryengine.cancellation import Interruption
from queryengine.engine import GatedStatement, Query
from tests.cluster.clusters import ClusterEngine

_DATA = Path(__file__).parent

DECLARED = frozenset({"flights", "few"})


def _lines(name: str) -> Iterator[str]:
    for line in (_DATA / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("-- "):
            yield line.replace("¶", "\n")


def hostile() -> list[tuple[str, str]]:
    """Return each hostile statement after its theme."""
    pairs = []
    theme = ""
    for line in _lines("hostile.sql"):
        if line.startswith("[") and line.endswith("]"):
            theme = line.strip("[]")
        else:
            pairs.append((theme, line))
    pairs += [("G05 comments and hints", text) for text in ("-- c\nDROP TABLE flights", "-- \n SELECT * FROM hidden")]
    return pairs


def harmless() -> list[tuple[str, str]]:
    """Return each statement that looks hostile and is not, with its answer."""
    found = list(_lines("harmless.sql"))
    return list(zip(found[::2], [answer.removeprefix("=> ") for answer in found[1::2]], strict=True))


def ungated(engine: ClusterEngine, sql: str) -> list[dict[str, object]]:
    """Return the rows of *sql*, which is sent as it is."""
    statement = GatedStatement(sql, "select", frozenset(), frozenset())
    reader = engine.session.run(statement, Query(sql=sql), Interruption())
    try:
        return [row for batch in reader for row in batch.to_pylist()]
    finally:
        reader.close()
