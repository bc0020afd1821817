"""The order of a run: each stage has rounds, and in each round every subject takes a turn."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.samples import Samples, Target
from benchmarks.subjects import Running, Subject
from benchmarks.tables import Tables

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The length of a run: rounds, and seconds of load in one turn of a row."""

    rounds: int = 5
    seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The scratch directory, the virtual environment of the peers, and the tables."""

    scratch: Path
    peers: Path
    tables: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One measurement of several subjects.

    `measure` takes a running subject and the seconds of load, and returns metrics by name; names include the unit. The
    first of the `subjects` is ours.
    """

    name: str
    title: str
    subjects: Sequence[str]
    measure: Callable[[Running, float], dict[str, float]]
    targets: Sequence[Target] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Rows over the same tables: a subject starts once per round, and all rows measure it."""

    tables: tuple[str, ...]
    subjects: Sequence[Subject]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A row that starts its subjects itself: `measure` runs one round and returns metrics by subject."""

    name: str
    title: str
    measure: Callable[[Environment, int, Effort], Mapping[str, dict[str, float]]]
    targets: Sequence[Target] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """
    A measurement along an axis: `measure` takes one subject at one point.

    `shown` are the metrics to draw.
    """

    name: str
    title: str
    along: str
    points: Sequence[int]
    subjects: Sequence[str]
    shown: Sequence[str]
    measure: Callable[[Environment, str, int, Effort], dict[str, float]]
    rounds: int = 2


@dataclass(slots=True)
class Results:
    """The results of a run: samples by row, and by curve and point."""

    rows: dict[str, Samples] = field(default_factory=dict)
    curves: dict[str, dict[int, Samples]] = field(default_factory=dict)
    seconds: float = 0.0


def say(text: str) -> None:
    """Write a progress message to standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def run_stage(stage: Stage, chosen: set[str], environment: Environment, effort: Effort, results: Results) -> None:
    """Measure the chosen rows of a stage."""
    rows = [row for row in stage.rows if row.name in chosen]
    wanted = {name for row in rows for name in row.subjects}
    subjects = [subject for subject in stage.subjects if subject.name in wanted]
    for row in rows:
        results.rows[row.name] = Samples()
    for number in range(effort.rounds):
        for subject in rotated(subjects, number):
            mine = [row for row in rows if subject.name in row.subjects]
            if all(subject.name in results.rows[row.name].failures for row in mine):
                continue
            say(f"round {number + 1} of {effort.rounds}: {subject.name} starts")
            try:
                with subject.running(environment.scratch, environment.tables, stage.tables) as running:
                    for row in mine:
                        _measure(row, subject.name, running, effort, results.rows[row.name])
            except Exception as error:  # noqa: BLE001 (the other subjects must still be measured)
                for row in mine:
                    results.rows[row.name].fail(subject.name, reason(error))
                say(f"{subject.name} failed: {reason(error)}")


def _measure(row: Row, subject: str, running: Running, effort: Effort, samples: Samples) -> None:
    if subject in samples.failures:
        return
    try:
        found = row.measure(running, effort.seconds)
    except Exception as error:  # noqa: BLE001 (the failure is reported, the other rows continue)
        samples.fail(subject, reason(error))
        say(f"  {row.name}: {subject} failed: {reason(error)}")
        return
    samples.add(subject, found)
    say(f"  {row.name}: {subject}: {shown(found)}")


def run_standalone(row: Standalone, environment: Environment, effort: Effort, results: Results) -> None:
    """Measure a standalone row."""
    samples = results.rows[row.name] = Samples()
    for number in range(effort.rounds):
        say(f"round {number + 1} of {effort.rounds}: {row.name}")
        try:
            found = row.measure(environment, number, effort)
        except Exception as error:  # noqa: BLE001 (as above)
            samples.fail("Querykeep", reason(error))
            say(f"  {row.name} failed: {reason(error)}")
            return
        for subject, metrics in found.items():
            samples.add(subject, metrics)
            say(f"  {row.name}: {subject}: {shown(metrics)}")


def run_curve(curve: Curve, environment: Environment, effort: Effort, results: Results) -> None:
    """Measure a curve, all of its points in each round."""
    points = results.curves[curve.name] = {point: Samples() for point in curve.points}
    rounds = min(effort.rounds, curve.rounds)
    for number in range(rounds):
        for point in curve.points:
            for subject in rotated(curve.subjects, number):
                if subject in points[point].failures:
                    continue
                try:
                    found = curve.measure(environment, subject, point, effort)
                except Exception as error:  # noqa: BLE001 (as above)
                    points[point].fail(subject, reason(error))
                    say(f"  {curve.name} at {point:,}: {subject} failed: {reason(error)}")
                    continue
                points[point].add(subject, found)
                say(f"  round {number + 1} of {rounds}: {curve.name} at {point:,}: {subject}: {shown(found)}")


def rotated(names: Sequence[T], number: int) -> list[T]:
    """Rotate the names, so that each round starts with another one."""
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]


def reason(error: Exception) -> str:
    """Return the error in one line."""
    line = " ".join(str(error).split())
    return f"{type(error).__name__}: {line[:400]}"


def shown(found: Mapping[str, float]) -> str:
    """Return metrics in one line."""
    return ", ".join(f"{metric} {value:,.3f}" for metric, value in found.items())
