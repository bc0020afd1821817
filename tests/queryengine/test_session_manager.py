from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from queryengine.cancellation import Interruption
from queryengine.errors import EngineUnavailableError, SqlError
from queryengine.execution.session import EngineInstance
from queryengine.execution.session_manager import Generations
from queryengine.execution.views import gate_views
from queryengine.gate.gate import Gate
from queryengine.manifest import (
    SNAPSHOT_DIRECTORY,
    Manifest,
    Signature,
    manifest_path,
    read_manifest,
    signature,
    snapshot_path,
    write_manifest,
)
from runtimeconf.model import ViewConfig
from tests.queryengine.conftest import MakeConfig
from tests.queryengine.publishing import Publisher, open_files, wait_until

MakeGenerations = Callable[..., Generations]


@pytest.fixture
def opened() -> list[int]:
    return []


@pytest.fixture
def make_generations(
    publisher: Publisher, make_config: MakeConfig, tmp_path: Path, opened: list[int]
) -> Iterator[MakeGenerations]:
    with ExitStack() as made:

        def make(
            before_open: Callable[[], None] = lambda: None,
            views: Sequence[ViewConfig] = (),
            relations: Sequence[str] = ("flights",),
            **settings: Any,
        ) -> Generations:
            config = make_config(**settings)
            gated = gate_views(views, frozenset(relations), Gate(), tmp_path / "runtime.yaml")

            def open_session(manifest: Manifest, tolerant: bool) -> EngineInstance:
                before_open()
                session = EngineInstance.open(
                    config, manifest, gated, tmp_path / f"scratch-{len(opened)}", tolerant=tolerant
                )
                opened.append(manifest.generation)
                return session

            generations = Generations(publisher.state_dir, open_session)
            made.callback(generations.close, 5)
            return generations

        yield make


def value(generations: Generations, sql: str = "SELECT min(id) AS id FROM flights") -> int:
    lease = generations.lease()
    try:
        reader = lease.session.run(
            Gate().admit(sql, frozenset({"flights", "years", "later", "ids"})), None, Interruption()
        )
        (batch,) = reader
        reader.close()
        return int(batch.column(0)[0].as_py())
    finally:
        lease.release()


def test_a_view_that_fits_no_longer_is_told_once_and_works_again_when_it_fits(
    publisher: Publisher, make_generations: MakeGenerations, caplog: pytest.LogCaptureFixture
) -> None:
    views = [
        ViewConfig(name="Years", sql="SELECT day[:4]::INTEGER AS id FROM flights", yaml_path="views[0].sql"),
        ViewConfig(name="later", sql="SELECT id + 1 AS id FROM years", yaml_path="views[1].sql"),
        ViewConfig(name="ids", sql="SELECT id FROM flights", yaml_path="views[2].sql"),
    ]
    publisher.publish(flights="SELECT '2024-01-01' AS day, 1 AS id")
    generations = make_generations(views=views)
    assert [value(generations, f"FROM {name}") for name in ("years", "later", "ids")] == [2024, 2025, 1]
    said = [record for record in caplog.records if record.message == "view unusable"]
    assert said == []

    for number in (2, 3):
        publisher.publish(flights=f"SELECT DATE '2024-01-01' AS day, {number} AS id")
        with pytest.raises(SqlError, match=r"^View 'Years' does not fit the data: ARRAY_SLICE") as caught:
            value(generations, "FROM years")
        assert "CREATE VIEW" not in str(caught.value)
        with pytest.raises(SqlError, match=r"^View 'later' cannot be read: View 'Years' does not fit the data"):
            value(generations, "FROM later")
        assert value(generations, "FROM ids") == number

    (warning,) = (record for record in caplog.records if record.message == "view unusable")
    assert warning.levelname == "WARNING"
    fields = warning.fields  # type: ignore[attr-defined]
    assert (fields["view"], fields["yaml_path"]) == ("Years", "views[0].sql")
    assert fields["error"].startswith("ARRAY_SLICE")
    publisher.publish(flights="SELECT '2025-01-01' AS day, 4 AS id")
    assert [value(generations, f"FROM {name}") for name in ("years", "later", "ids")] == [2025, 2026, 4]


def test_one_session_serves_until_something_is_published(
    publisher: Publisher, make_generations: MakeGenerations, opened: list[int]
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()

    assert [value(generations) for _ in range(3)] == [1, 1, 1]
    publisher.publish(flights="SELECT 2 AS id")
    assert [value(generations) for _ in range(3)] == [2, 2, 2]

    assert opened == [1, 2]


def held_manifests() -> int:
    found = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # it was closed meanwhile
            found += "manifest" in str(entry.readlink())
    return found


FLIGHTS_AND_PLANES = frozenset({"flights", "planes", "joined", "soon"})


def resting(monkeypatch: pytest.MonkeyPatch, superseded_s: float = 1_000_000.0) -> None:
    """The thread opens no session, for a superseded file not for so long."""
    monkeypatch.setattr("queryengine.execution.session_manager.REST_PARTS", 1_000_000_000)
    monkeypatch.setattr("queryengine.execution.session_manager.REST_S", superseded_s)


def test_a_statement_waits_for_a_new_session_only_if_what_it_reads_was_published_anew(
    publisher: Publisher,
    make_generations: MakeGenerations,
    opened: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resting(monkeypatch)
    views = [
        ViewConfig(name="joined", sql="SELECT id FROM flights UNION FROM planes", yaml_path="views[0].sql"),
        ViewConfig(name="soon", sql="SELECT id FROM flights WHERE now() IS NOT NULL", yaml_path="views[1].sql"),
    ]
    publisher.publish(flights="SELECT 1 AS id", planes="SELECT 1 AS id")
    generations = make_generations(views=views, relations=("flights", "planes"), datasets=("flights", "planes", "late"))
    gate = Gate()

    def seen(sql: str) -> tuple[int, Signature]:
        lease = generations.lease(gate.admit(sql, FLIGHTS_AND_PLANES))
        try:
            return lease.session.generation, lease.basis
        finally:
            lease.release()

    def published() -> Signature:
        return signature(str(manifest_path(publisher.state_dir)))

    publisher.publish(planes="SELECT 2 AS id")
    assert [seen("FROM flights"), seen("SELECT 1")] == [(1, published())] * 2
    assert seen("FROM planes") == (2, published())
    publisher.publish(planes="SELECT 3 AS id")
    assert seen("FROM flights") == (2, published())
    assert seen("FROM joined") == (3, published())
    for number, sql in enumerate(
        ["FROM information_schema.tables", "SHOW TABLES", "FROM soon", "EXPLAIN FROM flights"]
    ):
        publisher.publish(planes=f"SELECT {number} AS id")
        assert seen(sql) == (4 + number, published())
    publisher.publish(late="SELECT 1 AS id")
    assert seen("FROM joined") == (7, published())
    whole = read_manifest(publisher.state_dir)
    manifest_path(publisher.state_dir).write_text("{")
    assert seen("FROM joined")[0] == 7
    write_manifest(publisher.state_dir, whole)
    assert seen("FROM joined") == (7, published())
    publisher.publish(flights="SELECT 2 AS id")
    assert seen("FROM joined") == (9, published())

    assert opened == [1, 2, 3, 4, 5, 6, 7, 9]


def test_statements_go_on_while_a_session_is_opened_for_others(
    publisher: Publisher, make_generations: MakeGenerations
) -> None:
    publisher.publish(flights="SELECT 1 AS id", planes="SELECT 1 AS id")
    is_slow, is_opening, go_on = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        if is_slow.is_set():
            is_opening.set()
            assert go_on.wait(30)

    generations = make_generations(wait, datasets=("flights", "planes"))
    is_slow.set()
    publisher.publish(planes="SELECT 2 AS id")
    assert is_opening.wait(30)

    lease = generations.lease(Gate().admit("FROM flights", FLIGHTS_AND_PLANES))
    assert lease.session.generation == 1
    go_on.set()
    newer = generations.lease(Gate().admit("FROM planes", FLIGHTS_AND_PLANES))
    assert newer.session.generation == 2
    lease.release()
    newer.release()


def test_a_session_that_is_opened_while_all_is_closed_is_closed_too(
    publisher: Publisher, make_generations: MakeGenerations
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    is_slow, is_opening, go_on = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        if is_slow.is_set():
            is_opening.set()
            assert go_on.wait(30)

    generations = make_generations(wait)
    is_slow.set()
    publisher.publish(flights="SELECT 2 AS id")
    assert is_opening.wait(30)

    closing = threading.Thread(target=generations.close, args=(30,))
    closing.start()
    wait_until(lambda: generations._closed)
    with pytest.raises(EngineUnavailableError, match="stopping"):
        generations.lease(Gate().admit("SELECT 1", FLIGHTS_AND_PLANES))
    go_on.set()
    closing.join(30)

    assert not closing.is_alive()
    assert not open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)


def test_a_thread_opens_sessions_a_small_part_of_the_time_only(
    publisher: Publisher, make_generations: MakeGenerations, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch)
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()
    publisher.publish(flights="SELECT 2 AS id")
    for _ in range(3):  # It looks, and leaves it.
        generations._wake.set()
        wait_until(lambda: not generations._wake.is_set())

    assert opened == [1]
    assert value(generations) == 2


def test_a_superseded_file_is_freed_soon_and_what_is_new_waits(
    publisher: Publisher, make_generations: MakeGenerations, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch, superseded_s=0.0)
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations(datasets=("flights", "planes"))
    publisher.publish(planes="SELECT 1 AS id")
    for _ in range(3):
        generations._wake.set()
        wait_until(lambda: not generations._wake.is_set())
    assert opened == [1]

    publisher.publish(planes="SELECT 2 AS id", flights="SELECT 2 AS id")
    wait_until(lambda: opened == [1, 3])


def test_a_lease_keeps_its_session_and_the_last_release_frees_it(
    publisher: Publisher, make_generations: MakeGenerations
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()
    (old,) = open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)
    leases = [generations.lease(), generations.lease()]
    publisher.publish(flights="SELECT 2 AS id")
    assert value(generations) == 2

    leases[0].release()
    leases[0].release()
    wait_until(lambda: not generations._wake.is_set())
    assert any(old in name for name in open_files(publisher.state_dir / SNAPSHOT_DIRECTORY))
    leases[1].release()

    wait_until(lambda: not any(old in name for name in open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)))


def test_a_manifest_is_noticed_without_a_statement(
    publisher: Publisher, make_generations: MakeGenerations, opened: list[int]
) -> None:
    make_generations()

    publisher.publish(flights="SELECT 1 AS id")

    wait_until(lambda: opened == [0, 1])


def test_a_snapshot_that_is_superseded_while_it_is_opened_is_not_missed(
    publisher: Publisher, make_generations: MakeGenerations, opened: list[int]
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    publications = iter(["SELECT 2 AS id", "SELECT 3 AS id"])

    def publish_first() -> None:
        if sql := next(publications, None):
            publisher.publish(flights=sql)

    generations = make_generations(before_open=publish_first)

    assert value(generations) == 3
    assert opened == [3]


def test_a_snapshot_that_is_lost_is_done_without(publisher: Publisher, make_generations: MakeGenerations) -> None:
    manifest = publisher.publish(flights="SELECT 1 AS id", planes="SELECT 7 AS id")
    snapshot_path(publisher.state_dir, manifest.snapshots[0]).unlink()
    generations = make_generations(datasets=("flights", "planes"))

    with pytest.raises(EngineUnavailableError, match="'flights' cannot be read"):
        value(generations)

    publisher.publish(flights="SELECT 2 AS id")
    assert value(generations) == 2


def test_a_damaged_manifest_leaves_the_data_of_before(
    publisher: Publisher, make_generations: MakeGenerations, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    generations, good = make_generations(), read_manifest(publisher.state_dir)
    manifest_path(publisher.state_dir).unlink()
    assert value(generations) == 1
    manifest_path(publisher.state_dir).write_text("{")
    assert [value(generations) for _ in range(3)] == [1, 1, 1]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == ["manifest unusable"]

    lease = generations.lease()
    lease.session.failure(duckdb.FatalException("FATAL Error: x"))
    lease.release()
    with pytest.raises(EngineUnavailableError, match="damaged"):
        generations.lease()
    write_manifest(publisher.state_dir, good)
    assert value(generations) == 1


def test_a_damaged_manifest_at_the_start_means_no_data(publisher: Publisher, make_generations: MakeGenerations) -> None:
    manifest_path(publisher.state_dir).write_text('{"format_version": 99}')
    generations = make_generations()

    assert value(generations, "SELECT 5 AS id") == 5
    with pytest.raises(EngineUnavailableError, match="not loaded"):
        value(generations)
    manifest_path(publisher.state_dir).unlink()
    publisher.publish(flights="SELECT 1 AS id")
    assert value(generations) == 1


def test_a_broken_session_is_replaced_once(
    publisher: Publisher, make_generations: MakeGenerations, opened: list[int]
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()
    lease = generations.lease()
    lease.session.failure(duckdb.InternalException("INTERNAL Error: x"))
    lease.release()

    assert [value(generations) for _ in range(2)] == [1, 1]

    assert opened == [1, 1]


def test_a_session_that_cannot_be_opened_is_tried_again(
    publisher: Publisher, make_generations: MakeGenerations
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    failures = iter([False, True, True])

    def fail() -> None:
        if next(failures, False):
            raise EngineUnavailableError("The engine cannot start.")

    generations = make_generations(before_open=fail)
    publisher.publish(flights="SELECT 2 AS id")

    wait_until(lambda: next(failures, None) is None)
    assert value(generations) == 2


def test_close_waits_for_leases_and_refuses_new_ones(publisher: Publisher, make_generations: MakeGenerations) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()
    lease = generations.lease()
    closing = threading.Thread(target=generations.close, args=(10,))
    closing.start()

    wait_until(lambda: generations._closed)
    with pytest.raises(EngineUnavailableError, match="stopping"):
        generations.lease()
    assert open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)
    lease.release()
    closing.join(5)

    assert not closing.is_alive()
    assert not open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)
    generations.close(1)


def test_close_does_not_wait_for_ever(publisher: Publisher, make_generations: MakeGenerations) -> None:
    generations = make_generations()
    lease = generations.lease()

    generations.close(0.05)

    assert generations._thread.is_alive()
    lease.release()
    wait_until(lambda: not generations._thread.is_alive())


def test_a_manifest_that_could_not_be_read_for_a_while_is_not_forgotten(
    publisher: Publisher, make_generations: MakeGenerations
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()
    publisher.publish(flights="SELECT 2 AS id")
    # The same file, with the same times, as after a want of descriptors.
    manifest = manifest_path(publisher.state_dir)
    stat = manifest.stat()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        generations.lease().release()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert manifest.stat() == stat
    assert value(generations) == 2


def test_an_unforeseen_failure_to_open_does_not_stop_the_closing_of_what_nobody_uses(
    publisher: Publisher, make_generations: MakeGenerations, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    failing: list[Exception] = []

    def before_open() -> None:
        if failing:
            raise failing[0]

    generations = make_generations(before_open)
    failing.append(MemoryError())
    publisher.publish(flights="SELECT 2 AS id")
    wait_until(lambda: "cannot be opened" in caplog.text, within_s=30)
    failing.clear()

    assert value(generations) == 2
    wait_until(lambda: len(open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)) == 1, within_s=30)


def test_a_want_of_memory_for_the_manifest_does_not_stop_the_closing_of_what_nobody_uses(
    publisher: Publisher,
    make_generations: MakeGenerations,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker has a limit of memory, and the statement under way may have used it up."""
    resting(monkeypatch, superseded_s=0.0)
    publisher.publish(flights="SELECT 1 AS id")
    generations = make_generations()
    held = held_manifests()
    with monkeypatch.context() as failing:

        def fail(_: Path) -> Manifest:
            raise MemoryError

        failing.setattr("queryengine.execution.session_manager.read_manifest", fail)
        publisher.publish(flights="SELECT 2 AS id")
        wait_until(lambda: caplog.text.count("cannot be opened") >= 3, within_s=30)
        wait_until(lambda: held_manifests() <= held, within_s=30)

    assert value(generations) == 2
    wait_until(lambda: len(open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)) == 1, within_s=30)


def test_a_manifest_that_looks_like_the_one_before_the_last_is_another(
    publisher: Publisher, make_generations: MakeGenerations
) -> None:
    """File systems give inodes anew, sizes are the same, and here the clock stands still."""

    def publish(number: int) -> None:
        publisher.publish(flights=f"SELECT {number} AS id")
        os.utime(manifest_path(publisher.state_dir), ns=(0, 0))

    publish(10)
    generations = make_generations()
    for number in range(11, 19):
        publish(number)
        publish(number + 20)
        assert value(generations) == number + 20
        lease = generations.lease()
        assert lease.basis == signature(str(manifest_path(publisher.state_dir)))
        lease.release()


def test_without_a_manifest_there_is_nothing_to_name(publisher: Publisher, make_generations: MakeGenerations) -> None:
    generations = make_generations()

    lease = generations.lease()

    assert lease.basis is None
    lease.release()


def test_a_want_of_descriptors_makes_no_dataset_unavailable(
    publisher: Publisher, make_generations: MakeGenerations, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch)
    names = [f"d{number}" for number in range(8)]
    publisher.publish(flights="SELECT 1 AS id", **dict.fromkeys(names, "SELECT 1 AS id"))
    generations = make_generations(datasets=["flights", *names])
    publisher.publish(flights="SELECT 2 AS id")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    gaps: list[int] = []
    while not gaps or gaps[-1] < highest:
        gaps.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + 6, hard))
    try:
        with pytest.raises(EngineUnavailableError, match=r"^The system allows the engine too few open files\.$"):
            generations.lease()
        generations.lease(Gate().admit("FROM d1", frozenset({"d1"}))).release()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for gap in gaps:
            os.close(gap)

    assert value(generations) == 2
