"""What is looked up for the metrics, with and without the other parts."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from datasources.control import DatasetState, SharingState
from datasources.refresh.control_socket import ControlServer
from runtimeconf.model import AccelerationConfig, DatasetConfig, RuntimeConfig, SnapshotsConfig
from supervisor.gauges import Gauges, _ProcessorTime
from telemetry import metrics
from tests.system.harness import wait_for


@pytest.fixture
def config(tmp_path: Path) -> RuntimeConfig:
    acceleration = AccelerationConfig(refresh_check_interval_s=60.0)
    return RuntimeConfig(
        file=tmp_path / "runtime.yaml",
        state_dir=tmp_path,
        datasets=(DatasetConfig(name="orders", from_="", acceleration=acceleration), DatasetConfig(name="b", from_="")),
    )


@pytest.fixture
def gauges() -> Iterator[Gauges]:
    made = Gauges(None)
    yield made
    made.stop()


def test_without_the_other_parts_there_is_what_this_one_knows(config: RuntimeConfig, gauges: Gauges) -> None:
    gauges.adopt(config, [("app", 1.5e9), ("forever", None)])
    wait_for(lambda: metrics.BUILD in gauges.series(), "the first look")
    found = gauges.series()

    assert found[metrics.KEY_EXPIRES] == {("app",): 1.5e9}
    assert found[metrics.DATASET_INTERVAL] == {("orders",): 60.0}
    assert found[metrics.CONFIG] == {("1", "off", "on", "off", "off"): 1.0}
    assert found[metrics.DATASET_AGE] == {}
    assert found[metrics.STATEMENTS_QUEUED] == {(): 0}
    assert found[metrics.WORKERS] == {("busy",): 0, ("idle",): 0, ("missing",): 4}
    assert found[metrics.PROCESSES]["watch",] >= 1
    assert found[metrics.DISK_FREE][()] <= found[metrics.DISK_SIZE][()]

    gauges.adopt(replace(config, generation=2, datasets=()), [])
    wait_for(lambda: gauges.series()[metrics.CONFIG] == {("2", "off", "on", "off", "off"): 1.0}, "the second look")
    assert gauges.series()[metrics.KEY_EXPIRES] == {}


def test_a_part_that_answers_late_does_not_make_the_page_old(
    config: RuntimeConfig, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.gauges.LOOK_S", 0.1)
    asked = 0

    class Late:
        def datasets(self) -> tuple[DatasetState, ...]:
            nonlocal asked
            asked += 1
            time.sleep(0.5)  # a part that is stopped takes ten times as long, until the time-out
            return ()

    server = ControlServer(config.state_dir, Late())  # type: ignore[arg-type]
    try:
        gauges.adopt(config, [])
        wait_for(lambda: asked >= 3, "the third look", 20.0)
    finally:
        server.close()


def test_a_node_publishes_until_another_one_may_even_if_nobody_answers_any_more(
    config: RuntimeConfig, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("supervisor.gauges.since_boot", lambda: clock[0])
    config = replace(config, snapshots=SnapshotsConfig(location="s3://lake/x", role="auto"))

    class Publisher:
        def sharing(self) -> SharingState:
            return SharingState(node="n", publisher="n", epoch=1, error=None, answered_s=1, publishes_s=12.0)

        def datasets(self) -> tuple[DatasetState, ...]:
            return ()

    server = ControlServer(config.state_dir, Publisher())  # type: ignore[arg-type]
    try:
        gauges.adopt(config, [])
        wait_for(lambda: metrics.SHARED_STORAGE_AGE in gauges.series(), "the first look")
    finally:
        server.close()

    shown = []
    for time_s in (1000.0, 1011.9, 1012.0, 1100.0):
        clock[0] = time_s
        found = gauges.series()
        shown.append((found[metrics.NODE_PUBLISHES][()], found[metrics.SHARED_STORAGE_AGE][()]))
    assert shown == [(1.0, 1.0), (1.0, 12.9), (0.0, 13.0), (0.0, 101.0)]
    gauges.adopt(replace(config, snapshots=None), [])
    wait_for(lambda: metrics.NODE_PUBLISHES not in gauges.series(), "the look without nodes")


def test_processor_time_never_falls_whoever_ends() -> None:
    times = _ProcessorTime()
    times.add("web", os.getpid(), 2.0)
    times.add("web", 1, 3.0)
    assert times.seconds() == {("web",): 5.0}

    times.add("web", os.getpid(), 1.0)  # read while a child of it was being reaped

    assert times.seconds() == {("web",): 5.0}
    assert times.seconds() == {("web",): 5.0}
    times.add("web", os.getpid(), 0.5)  # begun anew, for all that is known
    assert times.seconds() == {("web",): 5.5}
