"""What tests share themselves: many cases in one test."""

import pytest

from tests.corpus import each


def test_each_case_runs_and_every_failure_is_named(tmp_path: object) -> None:
    seen = []

    @each("left, right", [(1, 1), pytest.param(1, 2, id="unequal"), (3, 4), (5, 5)])
    def compare(tmp_path: object, left: int, right: int) -> None:
        seen.append((tmp_path, left))
        if left == 3:
            with pytest.raises(ValueError, match="nothing raises it"):
                pass
        assert left == right

    with pytest.raises(
        AssertionError, match=r"(?s)^2 of 4 cases failed:\n\(1, 2\)\n    Assert.*\n\(3, 4\)\n    Failed: "
    ):
        compare(tmp_path=tmp_path)

    assert seen == [(tmp_path, number) for number in (1, 1, 3, 5)]


def test_a_corpus_without_a_case_is_an_error() -> None:
    with pytest.raises(AssertionError, match="without a case"):
        each("case", [])
