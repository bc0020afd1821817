from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from cluster.gate.functions import (
    CALLED_BY_NAME,
    NONDETERMINISTIC,
    REFUSED_BY_NAME,
    TAKE_A_UNIT,
    check,
    judgements,
)
from queryengine.errors import SqlError, StatementNotAllowedError
from tests.cluster.clusters import ClusterEngine, config_of
from tests.cluster.gate.statements import ungated
from tests.cluster.spark import TOKEN, Spark


def _unjudged(engine: ClusterEngine) -> set[str]:
    found = {str(row["function"]) for row in ungated(engine, "SHOW FUNCTIONS")}
    assert len(found) > 500
    return {name for name in found - judgements().keys() if name.replace("_", "").isalnum()}


def test_every_function_of_sail_is_judged(engine: ClusterEngine) -> None:
    assert _unjudged(engine) == {"cast"}, "judge these in function_list.txt"  # which has a class of its own


@pytest.mark.cluster
def test_every_function_of_spark_is_judged(tmp_path: Path) -> None:
    with Spark(tmp_path, workers=1) as spark:
        config = config_of(tmp_path / "state", spark.address, [])
        assert config.engine is not None
        with closing(ClusterEngine(replace(config, engine=replace(config.engine, params={"token": TOKEN})))) as engine:
            assert _unjudged(engine) == {"cast"}, "judge these in function_list.txt"


@pytest.mark.parametrize(("name", "kind"), [("sum", "scalar"), ("range", "table"), ("explode", "table")])
def test_allowed_functions_may_be_called(name: str, kind: str) -> None:
    check(name, kind)


@pytest.mark.parametrize(
    ("name", "kind", "error", "message"),
    [
        ("reflect", "scalar", StatementNotAllowedError, "calls any method"),
        ("reflect", "table", StatementNotAllowedError, "calls any method"),
        ("range", "scalar", SqlError, "returns a table"),
        ("sum", "table", SqlError, "returns a value"),
        ("nosuch", "scalar", SqlError, "does not exist"),
    ],
)
def test_other_functions_may_not(name: str, kind: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check(name, kind)


def test_the_lists_name_functions() -> None:
    assert judgements().keys() >= (NONDETERMINISTIC | TAKE_A_UNIT) - CALLED_BY_NAME


def test_functions_that_need_no_brackets_are_refused_as_those_with_brackets() -> None:
    for name in REFUSED_BY_NAME:
        with pytest.raises(StatementNotAllowedError, match="own state"):
            check(name, "scalar")
