"""Samples per round, medians, and ratios of medians with their spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians; `low` and `high` are the smallest and largest ratio of a single round."""

    value: float
    low: float
    high: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """
    Return the ratio of the medians, with the range of the ratios in common rounds.

    Raises:
        ValueError: One side has no samples, or a sample of the second side is zero.
    """
    if not ours or not theirs:
        raise ValueError("a ratio needs samples of both")
    below = statistics.median(theirs)
    if not below or not all(theirs):
        raise ValueError("a ratio to zero")
    rounds = [mine / other for mine, other in zip(ours, theirs, strict=False)]
    return Ratio(statistics.median(ours) / below, min(rounds), max(rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    A limit on a metric of a subject, or on its ratio to the same metric of another subject.

    Medians are compared. Exactly one of `at_least` and `at_most` is given.
    """

    metric: str
    of: str = "Querykeep"
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def limit(self) -> str:
        """The limit as shown in the report."""
        sign, value = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {value:g}{' x' if self.against else ''}"

    def is_reached_by(self, value: float) -> bool:
        """Return whether a median or ratio is within the limit."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


@dataclass(slots=True)
class Samples:
    """The samples of a row by subject and metric, one per round, and the reasons why subjects have none."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, subject: str, found: dict[str, float]) -> None:
        """Add the metrics of one round."""
        for metric, value in found.items():
            self.values.setdefault(subject, {}).setdefault(metric, []).append(value)

    def fail(self, subject: str, reason: str) -> None:
        """Record why a subject could not be measured; the first reason is kept."""
        self.failures.setdefault(subject, reason)

    def of(self, subject: str, metric: str) -> list[float]:
        """Return the samples of a metric."""
        return self.values.get(subject, {}).get(metric, [])

    def judge(self, target: Target) -> "Judgement":
        """Compare with a target."""
        ours = self.of(target.of, target.metric)
        theirs = self.of(target.against, target.metric) if target.against else []
        if not ours or (target.against and not theirs):
            missing = target.of if not ours else str(target.against)
            return Judgement(None, "not measured", f"{missing}: {self.failures.get(missing, 'not run')}")
        if target.against and not all(theirs):
            return Judgement(None, "not measured", f"{target.against} has a sample of 0")
        alone = Ratio(statistics.median(ours), min(ours), max(ours))
        found = ratio(ours, theirs) if target.against else alone
        return Judgement(found, "reached" if target.is_reached_by(found.value) else "not reached", "")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome for a target: the figure, or the reason why there is none."""

    found: Ratio | None
    verdict: Literal["reached", "not reached", "not measured"]
    reason: str
