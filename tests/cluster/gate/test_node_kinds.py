"""A new version of sqlglot is reviewed before it is used: these tests fail until the data file tells what it has."""

from pathlib import Path

import pytest
from sqlglot import exp

from cluster.gate.node_kinds import FORMS, TYPES, known
from queryengine.errors import StatementNotAllowedError
from tests.corpus import each

_REVIEWED = dict(
    line.split(": ", 1)
    for line in (Path(__file__).parent / "sqlglot_kinds.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
)


def _classes(root: type[exp.Expr]) -> set[str]:
    return {root.__name__}.union(*(_classes(kind) for kind in root.__subclasses__()))


def test_every_class_of_sqlglot_is_reviewed() -> None:
    ours = {"Expression"}  # what sqlglot's compiled and plain versions do not both derive

    assert _classes(exp.Expr) - ours == set(_REVIEWED["classes"].split()) - ours


@each("kind", FORMS)
def test_every_argument_of_an_allowed_class_is_reviewed(kind: type[exp.Expr]) -> None:
    assert " ".join(sorted(kind.arg_types)) == _REVIEWED[kind.__name__]
    assert FORMS[kind].parts | FORMS[kind].options <= kind.arg_types.keys()


def test_every_type_is_reviewed() -> None:
    assert {one.name for one in exp.DType} == set(_REVIEWED["types"].split())
    assert {one.name for one in TYPES} < set(_REVIEWED["types"].split())


def test_what_is_not_listed_is_refused() -> None:
    with pytest.raises(StatementNotAllowedError, match=r"not allowed here \(select with into\)"):
        known(exp.Select(into=exp.Into()))
    with pytest.raises(StatementNotAllowedError, match=r"not allowed here \(union with by name\)"):
        known(exp.Union(by_name=exp.Null()))
    with pytest.raises(StatementNotAllowedError, match="INSERT statements"):
        known(exp.Insert())
    with pytest.raises(StatementNotAllowedError, match=r"\(unnest\)"):
        known(exp.Unnest())
