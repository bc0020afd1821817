"""How the tests themselves run: each in one level, and many cases in one test."""

import itertools
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.corpus import each
from tests.levels import DIRECTORIES, LEVELS, LONGEST, TESTS, WAITING, BesideWaiting, ByServers

MARKERS = ("plugin", "lifecycle", "alone", "exhaustive")


def test_every_test_runs_in_exactly_one_level() -> None:
    """Properties run again in `rest`, with more examples; soak, Spark and the browser have targets of their own."""
    for values in itertools.product((False, True), repeat=len(MARKERS)):
        markers = dict(zip(MARKERS, values, strict=True), soak=False, cluster=False, browser=False, hypothesis=False)
        chosen = [level for level, expression in LEVELS.items() if eval(expression, markers.copy())]  # noqa: S307 - ours

        assert len(chosen) == 1, (markers, chosen)


def test_the_levels_name_markers_that_are_registered_and_paths_that_exist() -> None:
    options = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    registered = {line.partition(":")[0] for line in options["markers"]}

    assert {*MARKERS, "soak", "cluster", "browser"} == registered
    assert all(
        (TESTS / name).exists() for name in (*DIRECTORIES["lifecycle"], *DIRECTORIES["browser"], *WAITING, *LONGEST)
    )


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


def test_a_time_out_ends_the_corpus() -> None:
    seen = []

    @each("case", [1, 2])
    def run(case: int) -> None:
        seen.append(case)
        pytest.fail("Timeout (>120.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match=r"^Timeout"):
        run()

    assert seen == [1]


def test_a_corpus_without_a_case_is_an_error() -> None:
    with pytest.raises(AssertionError, match="without a case"):
        each("case", [])


class Worker:
    """What a scheduler of xdist needs of a worker, which runs its tests one by one."""

    gateway = SimpleNamespace(id="")

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler_of(workers: list[Worker], collection: list[str], pytestconfig: pytest.Config, kind: Any) -> Any:
    option = SimpleNamespace(loadscopereorder=False)
    scheduler = kind(
        SimpleNamespace(option=option, getvalue=lambda _: ["popen"] * len(workers), hook=pytestconfig.hook)
    )
    scheduler.numnodes = len(workers)
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, collection)
    return scheduler


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_each_worker_begins_with_a_file_if_there_are_enough(pytestconfig: pytest.Config, count: int) -> None:
    workers = [Worker() for _ in range(3)]
    collection = [f"tests/test_{number}.py::test" for number in range(count)]

    scheduler_of(workers, collection, pytestconfig, ByServers).schedule()

    assert sum(bool(worker.waiting) for worker in workers) == min(count, len(workers))
    assert sum(worker.shutting_down and not worker.waiting for worker in workers) == max(0, len(workers) - count)


def test_what_computes_has_two_workers_and_the_others_run_what_waits(pytestconfig: pytest.Config) -> None:
    waiting, others = WAITING[:6], [f"test_{number}.py" for number in range(9)]
    collection = [f"tests/{file}::test_{number}" for file in (*others, *waiting) for number in range(4)]
    workers = [Worker() for _ in range(4)]
    scheduler = scheduler_of(workers, collection, pytestconfig, BesideWaiting)
    ran: dict[str, int] = {}

    scheduler.schedule()
    # The last two are quick, and end; what they leave is for the first two.
    for turn in itertools.cycle((3, 2, 0, 1)):
        worker = workers[turn]
        # Like those of xdist, a worker keeps its last test until it hears that it is the last.
        if len(worker.waiting) > 1 or (worker.waiting and worker.shutting_down):
            index = worker.waiting.pop(0)
            ran[collection[index]] = turn
            scheduler.mark_test_complete(worker, index)
        elif all(not one.waiting for one in workers):
            break

    assert sorted(ran) == sorted(collection)
    beside = {test.removeprefix("tests/").partition("::")[0] for test, number in ran.items() if number > 1}
    assert beside <= set(waiting)
    assert len(beside) >= 4
    assert {number for test, number in ran.items() if test.startswith("tests/test_")} == {0, 1}


def test_a_worker_that_crashes_costs_the_test_that_it_ran(tmp_path: Path) -> None:
    for name in "abcdef":
        last = "os.abort()" if name == "c" else "pass"
        (tmp_path / f"test_{name}.py").write_text(
            f"import os\ndef test_1(): pass\ndef test_2(): {last}\ndef test_3(): pass\n"
        )
    (tmp_path / "pytest.ini").touch()
    options = ("-p", "xdist", "-p", "tests.levels", "-n", "2", "--dist", "loadfile")
    environ = {
        **os.environ,
        "PYTHONPATH": str(TESTS.parent),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }

    run = subprocess.run(
        (sys.executable, "-m", "pytest", *options),
        cwd=tmp_path,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert run.returncode == 1
    assert "1 failed, 17 passed" in run.stdout
    assert "crashed while running 'test_c.py::test_2'" in run.stdout
