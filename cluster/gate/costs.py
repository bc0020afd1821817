"""
Limits constructs that are slow to plan or crash the engine. The planner cannot be stopped and runs in Sail's server.

Engines read trees recursively: 500 levels of `1 + 1 + ...` crash the Sail process, and 30 nested queries keep it
planning for longer than any caller waits. Each level of lambda functions doubles its work.
"""

import math
from collections import Counter
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Final, NamedTuple

from sqlglot import exp

from queryengine.errors import SqlSyntaxError, StatementNotAllowedError

MAX_DEPTH: Final = 250
MAX_QUERIES: Final = 16
MAX_LAMBDAS: Final = 12
MAX_READS: Final = 1_000
MAX_GROUPING_SETS: Final = 1_024
MAX_SCHEMA_BRACKETS: Final = 500

#: Constructs that make planning slow if there are many of them.
_COSTLY: Final[Mapping[type[exp.Expr], tuple[str, int]]] = {
    exp.Join: ("joins", 100),
    exp.Pivot: ("PIVOT and UNPIVOT", 50),
    exp.SetOperation: ("UNION, INTERSECT and EXCEPT branches", 500),
    exp.CTE: ("common table expressions", 500),
}

#: The second argument is a type as text. 5,000 nested types crash the Sail process.
_TAKE_A_SCHEMA: Final = frozenset({"from_csv", "from_json"})


class Depth(NamedTuple):
    """The number of nodes, queries and lambda functions around a node, and its enclosing common table expressions."""

    nodes: int = 0
    queries: int = 0
    lambdas: int = 0
    ctes: tuple[str, ...] = ("",)

    def inside(self, node: exp.Expr) -> "Depth":
        """Return the depth of the nodes in *node*. Raises SqlSyntaxError if *node* is too deep."""
        found = Depth(
            self.nodes + 1,
            self.queries + isinstance(node, exp.Select),
            self.lambdas + isinstance(node, exp.Lambda),
            (*self.ctes, node.alias) if isinstance(node, exp.CTE) else self.ctes,
        )
        if found.nodes > MAX_DEPTH:
            raise SqlSyntaxError(
                f"The statement is nested too deep: {MAX_DEPTH} operators, functions and UNION branches in each other "
                "at most. Write a long list of conditions with IN."
            )
        for count, limit, what in (
            (found.queries, MAX_QUERIES, "queries"),
            (found.lambdas, MAX_LAMBDAS, "lambda functions"),
        ):
            if count > limit:
                raise SqlSyntaxError(f"The statement is nested too deep: {limit} {what} in each other at most.")
        return found


class Costs:
    """The costly constructs in one statement. The methods raise SqlSyntaxError if there are too many."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        #: How often each common table expression, "" for the statement itself, reads others.
        self._reads: dict[str, Counter[str]] = {"": Counter()}

    def count(self, node: exp.Expr) -> None:
        """Count *node*."""
        for kind, (what, limit) in _COSTLY.items():
            if isinstance(node, kind):
                self._counts[what] += 1
                _check(self._counts[what], limit, what)
        if isinstance(node, exp.Group):
            _check(_grouping_sets(node), MAX_GROUPING_SETS, "grouping sets")

    def count_read(self, name: str, depth: Depth) -> None:
        """Count that the common table expression *name* is read at *depth*."""
        if name not in depth.ctes:  # A recursive expression reads itself.
            self._reads.setdefault(depth.ctes[-1], Counter())[name] += 1

    def check_reads(self) -> None:
        """Check how often common table expressions are planned, which is each time that they are read."""
        totals: dict[str, int] = {}
        for name in TopologicalSorter(self._reads).static_order():
            read = self._reads.get(name, Counter())
            totals[name] = 1 + sum(times * totals[one] for one, times in read.items())
        _check(max(totals.values()), MAX_READS, "reads of common table expressions, direct and indirect,")


def check_call(name: str, arguments: list[exp.Expr]) -> None:
    """
    Check the *arguments* of the function *name*.

    Raises:
        StatementNotAllowedError: They make the engine plan for a very long time.
        SqlSyntaxError: They contain a type that is nested too deeply.
    """
    if name == "range" and len(arguments) > 3:
        raise StatementNotAllowedError("range takes at most three arguments here: the cluster chooses the partitions.")
    if name in _TAKE_A_SCHEMA:
        texts = [text for argument in arguments[1:2] for text in argument.find_all(exp.Literal, exp.RawString)]
        _check(
            sum(text.name.count(sign) for text in texts for sign in "<([{"), MAX_SCHEMA_BRACKETS, "brackets of a type"
        )


def _grouping_sets(node: exp.Expr, grouped: int = 0) -> int:
    """Return the number of sets in part of a GROUP BY. A CUBE or ROLLUP without columns has *grouped* columns."""
    size = len(node.expressions) or grouped
    match node:
        case exp.Group():
            with_ = [part for key in ("cube", "rollup", "grouping_sets") for part in node.args.get(key) or ()]
            return math.prod(_grouping_sets(part, size) for part in (*node.expressions, *with_))
        case exp.Cube():
            return 1 << min(size, 64)
        case exp.Rollup():
            return size + 1
        case exp.GroupingSets():
            return sum(map(_grouping_sets, node.expressions))
    return 1


def _check(number: int, limit: int, what: str) -> None:
    if number > limit:
        raise SqlSyntaxError(
            f"More than {limit:,} {what} in one statement are not allowed: planning them takes too long."
        )
