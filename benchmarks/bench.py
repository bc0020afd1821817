"""The order of a run: stages, in each of them rounds, in each of these the subjects in turns."""

from __future__ import annotations

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
    """How long a run takes: rounds of everything, and seconds of sending in one turn of a row."""

    rounds: int = 5
    seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run may write, where the peers are installed, and the tables."""

    scratch: Path
    peers: Path
    tables: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One thing that is measured.

    `measure` looks at one subject that runs, for that many seconds where it sends again and again, and returns metrics
    by name, each with its unit in the name. `subjects` are those that the row is about; ours is the first.
    """

    name: str
    title: str
    subjects: Sequence[str]
    measure: Callable[[Running, float], dict[str, float]]
    targets: Sequence[Target] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Rows over the same tables: a subject starts once a round, and all rows measure it then."""

    tables: tuple[str, ...]
    subjects: Sequence[Subject]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A row that starts what it needs itself: `measure` is one round, and returns metrics by subject."""

    name: str
    title: str
    measure: Callable[[Place, int, Effort], Mapping[str, dict[str, float]]]
    targets: Sequence[Target] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """
    How something grows: `measure` looks at one subject at one point.

    `shown` are the metrics with a picture.
    """

    name: str
    title: str
    along: str
    points: Sequence[int]
    subjects: Sequence[str]
    shown: Sequence[str]
    measure: Callable[[Place, str, int, Effort], dict[str, float]]
    rounds: int = 2


@dataclass(slots=True)
class Results:
    """What a run found: samples by row, and by curve and point."""

    rows: dict[str, Samples] = field(default_factory=dict)
    curves: dict[str, dict[int, Samples]] = field(default_factory=dict)
    seconds: float = 0.0


def say(text: str) -> None:
    """Tell the person who waits."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def run_stage(stage: Stage, chosen: set[str], place: Place, effort: Effort, results: Results) -> None:
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
                with subject.running(place.scratch, place.tables, stage.tables) as running:
                    for row in mine:
                        _measure(row, subject.name, running, effort, results.rows[row.name])
            except Exception as error:  # noqa: BLE001 (a subject that does not start leaves the others their turns)
                for row in mine:
                    results.rows[row.name].fail(subject.name, reason(error))
                say(f"{subject.name} failed: {reason(error)}")


def _measure(row: Row, subject: str, running: Running, effort: Effort, samples: Samples) -> None:
    if subject in samples.failures:
        return
    try:
        found = row.measure(running, effort.seconds)
    except Exception as error:  # noqa: BLE001 (a row that fails is reported, and the others go on)
        samples.fail(subject, reason(error))
        say(f"  {row.name}: {subject} failed: {reason(error)}")
        return
    samples.add(subject, found)
    say(f"  {row.name}: {subject}: {shown(found)}")


def run_alone(row: Alone, place: Place, effort: Effort, results: Results) -> None:
    """Measure a row that starts what it needs itself."""
    samples = results.rows[row.name] = Samples()
    for number in range(effort.rounds):
        say(f"round {number + 1} of {effort.rounds}: {row.name}")
        try:
            found = row.measure(place, number, effort)
        except Exception as error:  # noqa: BLE001 (as above)
            samples.fail("Querykeep", reason(error))
            say(f"  {row.name} failed: {reason(error)}")
            return
        for subject, metrics in found.items():
            samples.add(subject, metrics)
            say(f"  {row.name}: {subject}: {shown(metrics)}")


def run_curve(curve: Curve, place: Place, effort: Effort, results: Results) -> None:
    """Measure a curve, all of its points in each round."""
    points = results.curves[curve.name] = {point: Samples() for point in curve.points}
    rounds = min(effort.rounds, curve.rounds)
    for number in range(rounds):
        for point in curve.points:
            for subject in rotated(curve.subjects, number):
                if subject in points[point].failures:
                    continue
                try:
                    found = curve.measure(place, subject, point, effort)
                except Exception as error:  # noqa: BLE001 (as above)
                    points[point].fail(subject, reason(error))
                    say(f"  {curve.name} at {point:,}: {subject} failed: {reason(error)}")
                    continue
                points[point].add(subject, found)
                say(f"  round {number + 1} of {rounds}: {curve.name} at {point:,}: {subject}: {shown(found)}")


def rotated(names: Sequence[T], number: int) -> list[T]:
    """Return the names with another one first in each round."""
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]


def reason(error: Exception) -> str:
    """Return one line that says what failed, without paths of this machine's directories."""
    line = " ".join(str(error).split())
    return f"{type(error).__name__}: {line[:400]}"


def shown(found: Mapping[str, float]) -> str:
    """Return metrics in one line."""
    return ", ".join(f"{metric} {value:,.3f}" for metric, value in found.items())
