"""
The levels of the suite: which tests belong to which, and which of them run together.

A test belongs to the core unless its directory or its marker says otherwise. See decision 18.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS: Final = Path(__file__).parent

#: What each level runs: `core` in a few minutes, `rest` what the first two leave out, and `alone` test by test.
LEVELS: Final = {
    "core": "not (plugin or lifecycle or alone or exhaustive or soak or cluster or browser)",
    "plugins": "plugin and not (lifecycle or alone or exhaustive or soak or cluster or browser)",
    "rest": "(lifecycle or exhaustive or hypothesis) and not (alone or soak or cluster or browser)",
    "alone": "alone and not (soak or cluster or browser)",
}

#: Every test in these directories, or of these files, has the marker.
DIRECTORIES: Final = {
    "plugin": ("connectors", "secretstores", "cluster", "nodes", "doctor", "operations", "clients"),
    "lifecycle": (
        *("system", "deploy", "benchmarks"),
        # A server, an arbiter or a loader for each test.
        "httpserver/test_gevent_worker.py",
        "queryengine/pool/test_arbiter.py",
        "queryengine/pool/test_client_processes.py",
        "queryengine/pool/test_worker_memory.py",
        "datasources/test_loader.py",
    ),
    "browser": ("runtimeclient/console/browser",),
}

#: The tests of each of these directories ask the same servers, so one worker of xdist runs them all.
SHARING: Final = ("blackbox", "clients")

#: Tests in these directories start processes, and take longest.
STARTING: Final = (
    *SHARING,
    *DIRECTORIES["lifecycle"],
    "connectors",
    "nodes",
    "supervisor",
    "httpserver",
    "datasources",
    "queryengine",
)

#: The files that take longest in `rest`.
LONGEST: Final = (
    "clients",
    "datasources/test_loader.py",
    "httpserver/test_gevent_worker.py",
    "queryengine/test_row_rules.py",
    "system/test_cluster.py",
    "system/test_cluster_kills.py",
    "system/test_hung_parts.py",
    "system/test_key_scopes.py",
    "system/test_metrics.py",
    "system/test_nodes.py",
    "system/test_reload.py",
    "system/test_serve.py",
    "system/test_startup.py",
)

#: Tests that mostly wait: for time limits, for runtimes to start and to end, for another to begin once one was killed.
WAITING: Final = (
    "deploy/test_fronts.py",
    "doctor/test_running.py",
    "nodes/test_kills.py",
    "queryengine/pool/test_arbiter.py",
    "supervisor/test_process_tree.py",
    "system/test_cluster_kills.py",
    "system/test_cluster_nodes.py",
    "system/test_fair_refreshes.py",
    "system/test_flight_server.py",
    "system/test_hung_parts.py",
    "system/test_late_source.py",
    "system/test_metrics.py",
    "system/test_named_keys.py",
    "system/test_nodes.py",
    "system/test_operator_views.py",
    "system/test_reload.py",
    "system/test_serve.py",
    "system/test_slow_clients.py",
    "system/test_startup.py",
    "system/test_traces.py",
)

#: The most that a test may take which is marked `exhaustive`, `alone` or `cluster`, its fixtures included.
LONG_TIMEOUT_S: Final = 900


@cache
def is_inside(path: Path, directories: tuple[str, ...]) -> bool:
    """Return whether *path* is in one of *directories* of the tests, or is one of them."""
    return any(path.is_relative_to(TESTS / directory) for directory in directories)


class ByServers(LoadScopeScheduling):
    """One worker runs all tests of a file, and all files that share servers, so that no server starts twice."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((name for name in SHARING if file.startswith(f"tests/{name}/")), file)

    def remove_node(self, node: Any) -> str | None:
        """
        Queue what a worker has left that crashed, and return the test that it ran, which has failed.

        xdist would queue that test too, and what the worker had finished: another gets nothing to run, and waits.
        """
        work = self.assigned_work.pop(node)
        crashed = next(((unit, test) for unit in work.values() for test, is_done in unit.items() if not is_done), None)
        if crashed is None:
            return None
        unit, test = crashed
        unit[test] = True
        self.workqueue.update({scope: tests for scope, tests in work.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return test

    def _assign_work_unit(self, node: Any) -> None:
        """A worker keeps its last test until it gets another one."""
        super()._assign_work_unit(node)
        without = sum(not work for work in self.assigned_work.values())  # at the start, they get theirs later
        if len(self.workqueue) > without and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)


class BesideWaiting(ByServers):
    """
    Two workers run what computes, and then what is left of the rest; the others run what mostly waits, and end.

    If more workers computed, the loads of runtimes would starve, which have the lowest priority.
    """

    _beside: Sequence[Any] = ()

    def schedule(self) -> None:
        if self.collection is None:
            self._beside = self.nodes[2:]
        super().schedule()

    def _reschedule(self, node: Any) -> None:
        if node in self._beside and not any(map(self._waits, self.workqueue)):
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        waits = node in self._beside
        scope = next((scope for scope in self.workqueue if self._waits(scope) is waits), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    @staticmethod
    def _waits(scope: str) -> bool:
        return scope.removeprefix("tests/") in WAITING


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--level", choices=LEVELS, help="which tests run: see tests/levels.py")


def pytest_configure(config: pytest.Config) -> None:
    if level := config.getoption("level"):
        config.option.markexpr = LEVELS[level]
    config.pluginmanager.register(LongestFirst())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order of the collection: what takes longest comes first
    kind = BesideWaiting if config.getoption("level") == "rest" and config.option.numprocesses > 2 else ByServers
    return kind(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """
    Import no file that has no test of this level: that would take as long as many tests.

    So a file with such a test names the marker itself, and imports none.
    """
    level = config.getoption("level")
    if level == "core":
        return is_inside(collection_path, tuple(chain(*DIRECTORIES.values()))) or None
    if level and collection_path.name.startswith("test_"):
        markers = ("lifecycle", "exhaustive", "hypothesis") if level == "rest" else (level.removesuffix("s"),)
        text = collection_path.read_text()
        may_run = any(
            is_inside(collection_path, DIRECTORIES.get(marker, ()))
            or re.search(rf"mark\.{marker}|^from {marker}", text, re.MULTILINE)
            for marker in markers
        )
        return None if may_run else True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, directories in DIRECTORIES.items():
            if is_inside(item.path, directories):
                item.add_marker(marker)
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(0))
        elif any(item.get_closest_marker(marker) for marker in ("exhaustive", "alone", "cluster")):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


class LongestFirst:
    """A plugin that runs what takes longest first: the worker that ends last would run it alone otherwise."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: (not is_inside(item.path, LONGEST), not is_inside(item.path, STARTING)))
