"""Samples of rounds, their medians, and ratios of medians with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians; `low` and `high` are the smallest and the largest ratio of one round."""

    value: float
    low: float
    high: float


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """
    Return the ratio of the medians, with the ratios of the rounds that both have as its spread.

    Raises:
        ValueError: One of them has no sample, or theirs are zero.
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
    What a row has to show: a metric of a subject, as it is or in parts of the same metric of another subject.

    A ratio is that of the medians. Exactly one of `at_least` and `at_most` is given.
    """

    metric: str
    of: str = "Querykeep"
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def limit(self) -> str:
        """The limit as the report writes it."""
        sign, value = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {value:g}{' x' if self.against else ''}"

    def is_reached_by(self, value: float) -> bool:
        """Whether a median or a ratio of medians is on the right side of the limit."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


@dataclass(slots=True)
class Samples:
    """The samples of a row: by subject, then by metric, one a round; and why a subject has none."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, subject: str, found: dict[str, float]) -> None:
        """Add what one round found."""
        for metric, value in found.items():
            self.values.setdefault(subject, {}).setdefault(metric, []).append(value)

    def fail(self, subject: str, reason: str) -> None:
        """Keep the first reason for which a subject could not be measured."""
        self.failures.setdefault(subject, reason)

    def of(self, subject: str, metric: str) -> list[float]:
        """Return the samples of a metric, none when there are none."""
        return self.values.get(subject, {}).get(metric, [])

    def judge(self, target: Target) -> Judgement:
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
    """What came of a target: the figure, the verdict, and why there is no figure."""

    found: Ratio | None
    verdict: Literal["reached", "not reached", "not measured"]
    reason: str
