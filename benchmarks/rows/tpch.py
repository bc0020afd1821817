"""The 22 queries of TPC-H at scale factor 1, in sequence over HTTP."""

from pathlib import Path

from benchmarks.bench import Row, Stage
from benchmarks.load import AnswerError
from benchmarks.samples import Target
from benchmarks.subjects import DuckDBInProcess, Running, datafusion, querykeep, roapi
from benchmarks.tables import TPCH, tpch_queries


def stage(peers: Path) -> Stage:
    """Return the row and its subjects."""
    subjects = [querykeep(), roapi(peers), datafusion(peers), DuckDBInProcess()]
    return Stage(
        tables=TPCH,
        subjects=subjects,
        rows=[
            Row(
                name="tpch",
                title="TPC-H at scale factor 1, 22 queries",
                subjects=[subject.name for subject in subjects],
                measure=queries,
                targets=[
                    Target(metric="s", against="ROAPI", at_most=0.55),
                    Target(metric="s", against="DataFusion", at_most=0.55),
                ],
            )
        ],
    )


def queries(running: Running, _seconds: float) -> dict[str, float]:
    """
    Run each query once, after counting each table.

    Raises:
        AnswerError: Some queries fail, so there is no total. The error names them.
    """
    taken: dict[str, float] = {}
    refused: dict[str, str] = {}
    for table in TPCH:
        running.ask(f"SELECT count(*) FROM {table}")
    for name, sql in tpch_queries().items():
        try:
            taken[name] = running.ask(sql).seconds
        except (AnswerError, OSError) as error:
            refused[name] = str(error)
    if refused:
        raise AnswerError("; ".join(f"{name}: {why[:120]}" for name, why in refused.items()))
    return {"s": sum(taken.values()), "slowest query s": max(taken.values())}
