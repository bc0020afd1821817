import os
import resource
import threading
from pathlib import Path

import duckdb
import pytest

from queryengine.errors import EngineUnavailableError, SqlError
from queryengine.execution.instance import EngineInstance
from queryengine.execution.session_manager import EngineReplacedError, Lease, SessionManager
from queryengine.manifest import (
    SNAPSHOT_DIRECTORY,
    Signature,
    manifest_path,
    read_manifest,
    signature,
    snapshot_path,
    write_manifest,
)
from tests.open_files import open_files
from tests.queryengine.asking import begin
from tests.queryengine.conftest import MakeManager
from tests.queryengine.execution.instances import declared, gate, run, table
from tests.queryengine.publishing import Publisher, wait_until

RELATIONS = frozenset({"flights", "planes", "joined", "soon", "years", "later", "ids", "d1"})


def leased(manager: SessionManager, sql: str = "SHOW TABLES") -> Lease:
    """Lease a session for *sql*; by default the newest, because only that shows all tables."""
    return manager.lease(gate().admit(sql, RELATIONS))


def seen(manager: SessionManager, sql: str) -> tuple[int, Signature]:
    """Return the generation of the session that *sql* gets, and the data version of its result."""
    lease = leased(manager, sql)
    lease.release()
    assert isinstance(lease.session, EngineInstance)
    return lease.session.generation, lease.data_version


def value(manager: SessionManager, sql: str = "SELECT min(id) AS id FROM flights") -> int:
    lease = leased(manager)
    assert isinstance(lease.session, EngineInstance)
    try:
        return int(table(run(lease.session, sql, relations=RELATIONS)).column(0)[0].as_py())
    finally:
        lease.release()


def break_session(manager: SessionManager, sql: str = "SHOW TABLES") -> None:
    lease = leased(manager, sql)
    assert isinstance(lease.session, EngineInstance)
    lease.session.cursors.failure(duckdb.FatalException("FATAL Error: x"))
    lease.release()


@pytest.fixture
def manager(publisher: Publisher, make_manager: MakeManager) -> SessionManager:
    """A manager over the first version of `flights`."""
    publisher.publish(flights="SELECT 1 AS id")
    return make_manager()


def test_a_view_that_no_longer_fits_is_logged_once_and_works_again_once_it_fits(
    publisher: Publisher, make_manager: MakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    views = declared(
        Years="SELECT day[:4]::INTEGER AS id FROM flights",
        later="SELECT id + 1 AS id FROM years",
        ids="SELECT id FROM flights",
    )
    publisher.publish(flights="SELECT '2024-01-01' AS day, 1 AS id")
    manager = make_manager(views=views)
    assert [value(manager, f"FROM {name}") for name in ("years", "later", "ids")] == [2024, 2025, 1]
    said = [record for record in caplog.records if record.message == "view unusable"]
    assert said == []

    for number in (2, 3):
        publisher.publish(flights=f"SELECT DATE '2024-01-01' AS day, {number} AS id")
        with pytest.raises(SqlError, match=r"^View 'Years' does not fit the data: ARRAY_SLICE") as caught:
            value(manager, "FROM years")
        assert "CREATE VIEW" not in str(caught.value)
        with pytest.raises(SqlError, match=r"^View 'later' cannot be read: View 'Years' does not fit the data"):
            value(manager, "FROM later")
        assert value(manager, "FROM ids") == number
        assert value(manager, "SELECT count(*) AS id FROM information_schema.tables") == 2, "flights and ids"

    (warning,) = (record for record in caplog.records if record.message == "view unusable")
    assert warning.levelname == "WARNING"
    fields = warning.fields  # type: ignore[attr-defined]
    assert (fields["view"], fields["yaml_path"]) == ("Years", "views[0].sql")
    assert fields["error"].startswith("ARRAY_SLICE")
    publisher.publish(flights="SELECT '2025-01-01' AS day, 4 AS id")
    assert [value(manager, f"FROM {name}") for name in ("years", "later", "ids")] == [2025, 2026, 4]


def test_one_session_serves_until_something_is_published_or_it_breaks(
    publisher: Publisher, manager: SessionManager, opened: list[int]
) -> None:
    assert [value(manager) for _ in range(3)] == [1, 1, 1]
    publisher.publish(flights="SELECT 2 AS id")
    assert [value(manager) for _ in range(3)] == [2, 2, 2]
    assert opened == [1, 2]

    break_session(manager)
    assert [value(manager) for _ in range(2)] == [2, 2]
    assert opened == [1, 2, 2]


def resting(monkeypatch: pytest.MonkeyPatch, superseded_s: float = 1_000_000.0) -> None:
    """Let the thread open no session, or after *superseded_s* seconds if a file is superseded."""
    monkeypatch.setattr("queryengine.execution.session_manager.REST_PARTS", 1_000_000_000)
    monkeypatch.setattr("queryengine.execution.session_manager.REST_S", superseded_s)


def test_a_statement_waits_for_a_new_session_only_if_its_data_was_published_again(
    publisher: Publisher,
    make_manager: MakeManager,
    opened: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resting(monkeypatch)
    views = declared(
        joined="SELECT id FROM flights UNION FROM planes",
        soon="SELECT id FROM flights WHERE now() IS NOT NULL",
    )
    publisher.publish(flights="SELECT 1 AS id", planes="SELECT 1 AS id")
    manager = make_manager(views=views, relations=("flights", "planes"), datasets=("flights", "planes", "late"))

    def published() -> Signature:
        return signature(str(manifest_path(publisher.state_dir)))

    publisher.publish(planes="SELECT 2 AS id")
    assert [seen(manager, "FROM flights"), seen(manager, "SELECT 1")] == [(1, published())] * 2
    assert seen(manager, "FROM planes") == (2, published())
    publisher.publish(planes="SELECT 3 AS id")
    assert seen(manager, "FROM flights") == (2, published())
    assert seen(manager, "FROM joined") == (3, published())
    for number, sql in enumerate(
        ["FROM information_schema.tables", "SHOW TABLES", "FROM soon", "EXPLAIN FROM flights"]
    ):
        publisher.publish(planes=f"SELECT {number} AS id")
        assert seen(manager, sql) == (4 + number, published())
    publisher.publish(late="SELECT 1 AS id")
    assert seen(manager, "FROM joined") == (7, published())
    whole = read_manifest(publisher.state_dir)
    manifest_path(publisher.state_dir).write_text("{")
    assert seen(manager, "FROM joined")[0] == 7
    write_manifest(publisher.state_dir, whole)
    assert seen(manager, "FROM joined") == (7, published())
    publisher.publish(flights="SELECT 2 AS id")
    assert seen(manager, "FROM joined") == (9, published())

    assert opened == [1, 2, 3, 4, 5, 6, 7, 9]


def test_a_replaced_engine_reads_nothing_that_is_published_from_then_on(
    publisher: Publisher, make_manager: MakeManager, opened: list[int], tmp_path: Path
) -> None:
    replaced = tmp_path / "replaced"
    publisher.publish(flights="SELECT 1 AS id", planes="SELECT 1 AS id")
    manager = make_manager(relations=("flights", "planes"), datasets=("flights", "planes"), replaced=replaced)
    replaced.touch()
    assert value(manager) == 1

    publisher.publish(planes="SELECT 2 AS id")
    assert seen(manager, "FROM flights")[0] == 1
    for sql in ("FROM planes", "SHOW TABLES"):
        with pytest.raises(EngineReplacedError):
            leased(manager, sql)
    with pytest.raises(EngineReplacedError):
        make_manager(replaced=replaced)
    break_session(manager, "FROM flights")
    with pytest.raises(EngineReplacedError):
        leased(manager, "FROM flights")

    assert opened == [1]


class SlowOpening:
    """Called before a session opens; once it `is_slow`, the session waits for `go_on`."""

    def __init__(self) -> None:
        self.is_slow, self.is_opening, self.go_on = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        if self.is_slow.is_set():
            self.is_opening.set()
            assert self.go_on.wait(30)


def test_statements_go_on_while_a_session_is_opened_for_others(publisher: Publisher, make_manager: MakeManager) -> None:
    publisher.publish(flights="SELECT 1 AS id", planes="SELECT 1 AS id")
    slowly = SlowOpening()
    manager = make_manager(slowly, datasets=("flights", "planes"))
    slowly.is_slow.set()
    publisher.publish(planes="SELECT 2 AS id")
    assert slowly.is_opening.wait(30)

    assert seen(manager, "FROM flights")[0] == 1
    slowly.go_on.set()
    assert seen(manager, "FROM planes")[0] == 2


def test_a_session_that_opens_during_close_is_closed_too(publisher: Publisher, make_manager: MakeManager) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    slowly = SlowOpening()
    manager = make_manager(slowly)
    slowly.is_slow.set()
    publisher.publish(flights="SELECT 2 AS id")
    assert slowly.is_opening.wait(30)

    closing = begin(lambda: manager.close(30))
    wait_until(lambda: manager._closed)
    with pytest.raises(EngineUnavailableError, match="stopping"):
        leased(manager, "SELECT 1")
    slowly.go_on.set()
    closing.result(30)

    wait_until(lambda: not open_files(publisher.state_dir / SNAPSHOT_DIRECTORY))


def look_three_times(manager: SessionManager) -> None:
    """Have the thread look for a new manifest."""
    for _ in range(3):
        manager._wake.set()
        wait_until(lambda: not manager._wake.is_set())


def test_a_superseded_file_is_freed_soon_but_new_data_waits(
    publisher: Publisher, make_manager: MakeManager, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch, superseded_s=0.0)
    publisher.publish(flights="SELECT 1 AS id")
    manager = make_manager(datasets=("flights", "planes"))
    publisher.publish(planes="SELECT 1 AS id")
    look_three_times(manager)
    assert opened == [1]

    publisher.publish(planes="SELECT 2 AS id", flights="SELECT 2 AS id")
    wait_until(lambda: opened == [1, 3])


def test_a_lease_keeps_its_session_and_the_last_release_frees_it(publisher: Publisher, manager: SessionManager) -> None:
    (old,) = (snapshot.file for snapshot in read_manifest(publisher.state_dir).snapshots)
    leases = [leased(manager), leased(manager)]
    publisher.publish(flights="SELECT 2 AS id")
    assert value(manager) == 2

    leases[0].release()
    wait_until(lambda: not manager._wake.is_set())
    assert open_files(old)
    leases[1].release()

    wait_until(lambda: not open_files(old))


def test_a_snapshot_that_is_superseded_during_the_opening_is_noticed(
    publisher: Publisher, make_manager: MakeManager, opened: list[int]
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    publications = iter(["SELECT 2 AS id", "SELECT 3 AS id"])

    def publish_first() -> None:
        if sql := next(publications, None):
            publisher.publish(flights=sql)

    manager = make_manager(before_open=publish_first)

    assert value(manager) == 3
    assert opened == [3]


def test_a_lost_snapshot_makes_only_its_dataset_unavailable(publisher: Publisher, make_manager: MakeManager) -> None:
    manifest = publisher.publish(flights="SELECT 1 AS id", planes="SELECT 7 AS id")
    snapshot_path(publisher.state_dir, manifest.snapshots[0]).unlink()
    manager = make_manager(datasets=("flights", "planes"))

    with pytest.raises(EngineUnavailableError, match="'flights' cannot be read"):
        value(manager)

    publisher.publish(flights="SELECT 2 AS id")
    assert value(manager) == 2


def test_a_damaged_manifest_leaves_the_old_data(
    publisher: Publisher, make_manager: MakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.publish(flights="SELECT 1 AS id")
    manager, good = make_manager(), read_manifest(publisher.state_dir)
    manifest_path(publisher.state_dir).unlink()
    assert value(manager) == 1
    manifest_path(publisher.state_dir).write_text("{")
    assert [value(manager) for _ in range(3)] == [1, 1, 1]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == ["manifest unusable"]

    break_session(manager)
    with pytest.raises(EngineUnavailableError, match="damaged"):
        leased(manager)
    write_manifest(publisher.state_dir, good)
    assert value(manager) == 1


def test_a_damaged_manifest_at_the_start_means_no_data(publisher: Publisher, make_manager: MakeManager) -> None:
    assert seen(make_manager(), "SHOW TABLES")[1] is None, "nothing is published"
    manifest_path(publisher.state_dir).write_text('{"format_version": 99}')
    manager = make_manager()

    assert value(manager, "SELECT 5 AS id") == 5
    with pytest.raises(EngineUnavailableError, match="not loaded"):
        value(manager)
    manifest_path(publisher.state_dir).unlink()
    publisher.publish(flights="SELECT 1 AS id")
    assert value(manager) == 1


def test_close_waits_for_leases_up_to_its_limit_and_refuses_new_ones(
    publisher: Publisher, manager: SessionManager
) -> None:
    lease = leased(manager)
    closing = begin(lambda: manager.close(30))
    wait_until(lambda: manager._closed)
    manager.close(0.05)

    assert not closing.done()
    with pytest.raises(EngineUnavailableError, match="stopping"):
        leased(manager)
    assert open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)
    lease.release()
    closing.result(30)

    assert not manager._thread.is_alive()
    wait_until(lambda: not open_files(publisher.state_dir / SNAPSHOT_DIRECTORY))
    manager.close(1)


def test_a_temporarily_unreadable_manifest_is_read_later(publisher: Publisher, manager: SessionManager) -> None:
    publisher.publish(flights="SELECT 2 AS id")
    # The same file, with the same times, as after a lack of descriptors.
    manifest = manifest_path(publisher.state_dir)
    stat = manifest.stat()
    statement = gate().admit("SHOW TABLES", RELATIONS)  # before the limit: DuckDB aborts if it cannot open a file
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        manager.lease(statement).release()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert manifest.stat() == stat
    assert value(manager) == 2


@pytest.mark.parametrize(
    "failure",
    [
        ("the session", MemoryError()),  # The memory of a worker is limited, and a statement may have used it up.
        ("the manifest", MemoryError()),
        ("the session", EngineUnavailableError("The engine cannot start.")),
    ],
)
def test_a_failure_to_open_does_not_stop_the_closing_of_unused_sessions(
    publisher: Publisher,
    make_manager: MakeManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: tuple[str, Exception],
) -> None:
    failing_part, error = failure
    resting(monkeypatch, superseded_s=0.0)
    publisher.publish(flights="SELECT 1 AS id")
    failing = threading.Event()
    failures = []

    def fail(*_: object) -> None:
        if failing.is_set():
            failures.append(error)
            raise error

    manager = make_manager(fail)
    # A manifest that was read stays pinned until a session for it opens.
    held = len(open_files("manifest")) + (failing_part == "the session")
    failing.set()
    with monkeypatch.context() as patched:
        if failing_part == "the manifest":
            patched.setattr("queryengine.execution.session_manager.read_declared", fail)
        publisher.publish(flights="SELECT 2 AS id")
        wait_until(lambda: len(failures) >= 3, within_s=30)
        wait_until(lambda: len(open_files("manifest")) <= held, within_s=30)
        failing.clear()

    assert value(manager) == 2
    wait_until(lambda: len(open_files(publisher.state_dir / SNAPSHOT_DIRECTORY)) == 1, within_s=30)
    assert (caplog.text.count("cannot be opened") >= 2) == isinstance(error, MemoryError)


def test_a_lack_of_descriptors_makes_no_dataset_unavailable(
    publisher: Publisher, make_manager: MakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch)
    names = [f"d{number}" for number in range(8)]
    publisher.publish(flights="SELECT 1 AS id", **dict.fromkeys(names, "SELECT 1 AS id"))
    manager = make_manager(datasets=["flights", *names])
    publisher.publish(flights="SELECT 2 AS id")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    gaps: list[int] = []
    while not gaps or gaps[-1] < highest:
        gaps.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + 6, hard))
    try:
        with pytest.raises(EngineUnavailableError, match=r"^The limit on open files is too low for the engine\.$"):
            leased(manager)
        leased(manager, "FROM d1").release()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for gap in gaps:
            os.close(gap)

    assert value(manager) == 2


def test_a_manifest_that_looks_like_an_earlier_one_is_noticed(publisher: Publisher, make_manager: MakeManager) -> None:
    """File systems reuse inodes, the sizes are equal, and here the clock stands still."""

    def publish(number: int) -> None:
        publisher.publish(flights=f"SELECT {number} AS id")
        os.utime(manifest_path(publisher.state_dir), ns=(0, 0))

    publish(10)
    manager = make_manager()
    for number in range(11, 19):
        publish(number)
        publish(number + 20)
        assert value(manager) == number + 20
        assert seen(manager, "SHOW TABLES")[1] == signature(str(manifest_path(publisher.state_dir)))
