"""The order of a run, and failures of its parts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench import (
    Curve,
    Effort,
    Environment,
    Results,
    Row,
    Stage,
    Standalone,
    rotated,
    run_curve,
    run_stage,
    run_standalone,
)
from benchmarks.processes import cpu_s, family, pss_bytes
from benchmarks.subjects import Plan, Running, Subject
from benchmarks.tables import Tables


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(scratch=tmp_path, peers=tmp_path, tables=Tables(tmp_path / "tables"))


def program(name: str, code: str) -> Subject:
    return Subject(name, lambda *_: Plan(command=[sys.executable, "-c", code], is_ready=lambda: name == "good"))


def refused(*_: object) -> Any:
    raise ValueError("it cannot be done")


def test_each_round_starts_with_another_subject() -> None:
    assert [rotated("abc", number) for number in range(3)] == [list("abc"), list("bca"), list("cab")]


def test_a_failure_is_recorded_and_the_others_continue(environment: Environment) -> None:
    seen: list[int] = []

    def look(running: Running, _seconds: float) -> dict[str, float]:
        seen.append(running.pid)
        return {"members": len(list(family(running.pid))), "MiB": pss_bytes(running.pid), "s": cpu_s(running.pid)}

    both = ("good", "bad")
    stage = Stage(
        tables=(),
        subjects=[program("bad", "print('no such thing')"), program("good", "import time; time.sleep(600)")],
        rows=[
            Row(name="refused", title="", subjects=both, measure=refused),
            Row(name="looked", title="", subjects=both, measure=look),
            Row(name="not chosen", title="", subjects=both, measure=refused),
        ],
    )
    results = Results()

    run_stage(stage, {"refused", "looked"}, environment, Effort(rounds=2, seconds=0.1), results)

    assert set(results.rows) == {"refused", "looked"}
    assert results.rows["refused"].failures["good"] == "ValueError: it cannot be done"
    assert "no such thing" in results.rows["looked"].failures["bad"]
    assert results.rows["looked"].of("good", "members") == [1, 1]
    assert len(set(seen)) == 2
    assert [Path(f"/proc/{pid}").exists() for pid in seen] == [False, False]


def test_standalone_rows_and_curves_record_failures(environment: Environment) -> None:
    curve = Curve(
        name="curve", title="", along="", points=(1, 2), subjects=("Querykeep",), shown=(), measure=refused, rounds=2
    )
    results = Results()

    run_standalone(Standalone(name="row", title="", measure=refused), environment, Effort(rounds=2), results)
    run_curve(curve, environment, Effort(rounds=2), results)

    assert results.rows["row"].failures == {"Querykeep": "ValueError: it cannot be done"}
    assert [samples.failures for samples in results.curves["curve"].values()] == [
        {"Querykeep": "ValueError: it cannot be done"}
    ] * 2
