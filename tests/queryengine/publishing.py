"""Real snapshots and a real manifest for tests of the engine."""

import hashlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

from queryengine.manifest import (
    SNAPSHOT_DIRECTORY,
    Column,
    Manifest,
    Snapshot,
    read_manifest,
    snapshot_path,
    write_manifest,
)

_serial = itertools.count(1)

#: Seconds that tell a hang from work on a slow machine.
PATIENCE_S = 60.0

#: Statements that run for hours and obey interrupts: one has no first row, one gives 50,000 rows first, which fill
#: several batches, and one gives rows all the time.
ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = -1"
ENDLESS_AFTER_ROWS = "SELECT range FROM range(1000000000000) WHERE range < 50000 OR range * 2 = 1"
ENDLESS_ROWS = "SELECT * FROM range(1000000000000)"
#: Describing this takes hours: DuckDB looks for the columns in the data.
SLOW_TO_DESCRIBE = "PIVOT (FROM (SELECT range AS a FROM range(1000000000000)) WHERE a < 1) ON a USING count(*)"


class Publisher:
    """Publishes tables in a state directory as the refresher does: new files, a new manifest, old files unlinked."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        (state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True, exist_ok=True)

    def publish(self, **tables: str) -> Manifest:
        """Publish, beside what is there, each of *tables* as the rows of its SELECT."""
        before = read_manifest(self.state_dir)
        written = {name: self._write(name, sql) for name, sql in tables.items()}
        kept = tuple(snapshot for snapshot in before.snapshots if snapshot.dataset not in written)
        manifest = Manifest(generation=before.generation + 1, snapshots=(*kept, *written.values()))
        write_manifest(self.state_dir, manifest)
        for snapshot in before.snapshots:
            if snapshot.dataset in written:
                snapshot_path(self.state_dir, snapshot).unlink(missing_ok=True)
        return manifest

    def _write(self, name: str, sql: str) -> Snapshot:
        path = self.state_dir / SNAPSHOT_DIRECTORY / f"{name}-{next(_serial)}.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(f'CREATE TABLE "{name}" AS {sql}')
            columns = connection.execute(f'DESCRIBE "{name}"').fetchall()
            counted = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()
        assert counted is not None
        return Snapshot(
            dataset=name,
            file=path.name,
            rows=counted[0],
            size_bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            created_at="2026-01-01T00:00:00Z",
            source="",
            columns=tuple(Column(name=column[0], type=column[1]) for column in columns),
        )


def wait_until(condition: Callable[[], bool], *, within_s: float = 60.0) -> float:
    """Wait for *condition*; seconds that took. Fail after *within_s*."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within_s, "waited in vain"
        time.sleep(0.005)
    return time.monotonic() - started
