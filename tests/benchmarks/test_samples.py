"""Medians, ratios and verdicts."""

import pytest

from benchmarks.samples import Ratio, Samples, Target, ratio


def test_a_ratio_compares_medians_and_its_spread_rounds() -> None:
    assert ratio([10.0, 30.0, 20.0], [10.0, 10.0, 40.0]) == Ratio(2.0, 0.5, 3.0)


@pytest.mark.parametrize(("ours", "theirs"), [([], [1.0]), ([1.0], []), ([1.0], [0.0])])
def test_a_ratio_needs_samples_of_both(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="ratio"):
        ratio(ours, theirs)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target(metric="s", at_most=2.0), "reached"),
        (Target(metric="s", at_most=1.9), "not reached"),
        (Target(metric="s", at_least=2.0), "reached"),
        (Target(metric="s", against="peer", at_most=0.5), "reached"),
        (Target(metric="s", against="peer", at_least=0.6), "not reached"),
    ],
)
def test_a_verdict_compares_the_median_with_the_limit(target: Target, verdict: str) -> None:
    samples = Samples()
    for ours, theirs in ((2.0, 4.0), (1.0, 5.0), (3.0, 3.0)):
        samples.add("Querykeep", {"s": ours})
        samples.add("peer", {"s": theirs})

    assert samples.judge(target).verdict == verdict


@pytest.mark.parametrize(("theirs", "reason"), [(None, "peer: it does not start"), (0.0, "peer has a sample of 0")])
def test_a_ratio_that_cannot_be_measured_has_a_reason(theirs: float | None, reason: str) -> None:
    samples = Samples()
    samples.add("Querykeep", {"s": 1.0})
    if theirs is None:
        samples.fail("peer", "it does not start")
        samples.fail("peer", "nor again")
    else:
        samples.add("peer", {"s": theirs})

    judged = samples.judge(Target(metric="s", against="peer", at_most=1.0))

    assert (judged.found, judged.verdict, judged.reason) == (None, "not measured", reason)


def test_a_limit_on_a_ratio_has_a_sign() -> None:
    assert Target(metric="s", at_most=3.0).limit == "≤ 3"
    assert Target(metric="s", against="peer", at_least=1.5).limit == "≥ 1.5 x"
