"""
Manages the session on the cluster for one engine.

Every engine that uses a session has its own setting in the session, which it changes every `BEAT_S`. An engine that has
not updated its setting for `STALE_S` is considered dead. Another engine then ends the dead engine's operations by their
tag. The engine that leaves last ends the session. If a worker dies, its operation is ended immediately by the tag of
its statement.

A process that stops an operation stores the operation's id in a setting. The keepers then watch whether the cluster
stops computing, and end the session if it does not (see `cluster.cancelled_jobs`).

Clusters list the files of a dataset when it is defined, so the keeper periodically redefines everything that may have
changed. It also defines new versions of datasets and drops old ones.
"""

import logging
import os
import select
import time
from math import inf
from typing import Final

from msgspec import Struct

from cluster.cancelled_jobs import STOPPED, CancelledJobs
from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.errors import SessionLostError
from cluster.gate.gate import SparkGate
from cluster.identity import engine_tag, query_tag
from cluster.shared_session import OpenSession, SharedSession
from queryengine.errors import QueryError
from queryengine.execution.views import gate_views
from queryengine.manifest import Manifest, ManifestError, Signature, manifest_path, read_manifest, signature
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: The interval between two updates of an engine's setting, and the age at which the engine counts as dead.
BEAT_S: Final = 4.0
STALE_S: Final = 14.0
#: How often everything is redefined, and the shorter interval while a dataset cannot be read.
DEFINE_S: Final = 60.0
DEFINE_SOON_S: Final = 10.0
#: How long views of superseded versions stay, because slower engines may still use them.
DROP_S: Final = 600.0
#: How long, and how often, the cluster is checked after an operation was stopped.
WATCH_S: Final = 10.0
WATCH_AGAIN_S: Final = 1.0
#: How often an operation whose start may still be in transit is ended again.
_AGAIN_S: Final = (0.0, 2.0, 8.0)

_PREFIX: Final = "spark.querykeep.engine."
_QUERY_BYTES: Final = 64 * 1024


class _Engine(Struct):
    """Another engine: its last beat, and when that beat was first seen."""

    beat: str
    since: float


class Keeper:
    """
    The keeper of the engine with this id. It has no thread, so `step` does the work that is due.

    The *predecessor*, another engine, is known to be dead.
    """

    def __init__(self, config: RuntimeConfig, cluster: ClusterConfig, engine: str, predecessor: str = "") -> None:
        gate = SparkGate()
        datasets = frozenset(dataset.name.lower() for dataset in config.datasets)
        views = gate_views(config.views, datasets, gate, config.file)
        self._connection = Connection(cluster)
        self._config, self._views = config, views
        self._manifest = str(manifest_path(config.state_dir))
        self._signature: Signature = None
        self._shared = SharedSession(self._connection, config, Manifest(generation=0), views)
        self._unused: dict[str, float] = {}  # views of superseded versions, and since when
        self._engine = engine
        self._predecessor = predecessor
        self._session: OpenSession | None = None
        self._cancelled = CancelledJobs(self._connection)
        self._stopped: str | None = None
        self._beats = 0
        self._others: dict[str, _Engine] = {}
        self._beat_at = self._define_at = 0.0
        self._watch_at, self._watch_until = inf, 0.0
        self._lost: list[tuple[float, str]] = []  # statements whose worker died, and when to end each (again)

    def lost(self, query_id: str, now: float) -> None:
        """End the operation of a statement whose worker died, soon and a few more times."""
        self._lost += [(now + pause_s, query_id) for pause_s in _AGAIN_S]

    def step(self, now: float) -> float:
        """Do the work due at *now* (`time.monotonic`), and return the seconds until the next step."""
        try:
            if self._session is not None:
                self._end_lost(self._session, now)
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                self._beat(now)
            if self._session is not None and now >= self._watch_at:
                self._watch(self._session, now)
        except (QueryError, SessionLostError) as error:
            logger.info("the session on the cluster cannot be kept alive", extra={"fields": {"error": str(error)}})
            self._session = None
        watch_at = self._beat_at if self._session is None else self._watch_at
        return min([self._beat_at, watch_at, *(at for at, _ in self._lost)]) - now

    def leave(self) -> None:
        """Leave the session, and end it if no other engine uses it."""
        session = self._session
        if session is None:
            return
        try:
            self._connection.unset_option(session.id, _PREFIX + self._engine)
            self._connection.interrupt(session.id, operation_tag=engine_tag(self._engine))
            if not self._connection.options(session.id, _PREFIX):
                self._connection.release_session(session.id)
        except (QueryError, SessionLostError) as error:
            logger.info("the session on the cluster cannot be ended", extra={"fields": {"error": str(error)}})
        self._connection.close()

    def _end_lost(self, session: OpenSession, now: float) -> None:
        due = [query_id for at, query_id in self._lost if at <= now]
        self._lost = [(at, query_id) for at, query_id in self._lost if at > now]
        for query_id in due:
            self._connection.interrupt(session.id, operation_tag=query_tag(query_id))
            self._begin_to_watch(now)

    def _beat(self, now: float) -> None:
        self._follow()
        if self._session is None:
            self._session = self._shared.open()
            self._stopped = None
            self._others.clear()
            self._define_at = now + self._interval_s(self._session)
        elif now >= self._define_at:
            self._session = self._shared.define(self._session.id, anew=True)
            self._define_at = now + self._interval_s(self._session)
            self._drop_unused(self._session, now)
        elif self._shared.look(self._session.id) is None:
            self._session = self._shared.define(self._session.id)
        self._beats += 1
        self._connection.set_options(self._session.id, {_PREFIX + self._engine: str(self._beats)})
        found = self._connection.options(self._session.id, _PREFIX)
        for engine, beat in found.items():
            if engine == self._engine:
                continue
            known = self._others.get(engine)
            if engine == self._predecessor or (known and known.beat == beat and now >= known.since + STALE_S):
                self._bury(self._session, engine)
                self._begin_to_watch(now)
            elif known is None or known.beat != beat:
                self._others[engine] = _Engine(beat, now)
        self._others = {engine: other for engine, other in self._others.items() if engine in found}
        stopped = self._connection.option(self._session.id, STOPPED)
        if stopped != self._stopped:
            self._stopped = stopped
            self._begin_to_watch(now)

    def _begin_to_watch(self, now: float) -> None:
        self._watch_at, self._watch_until = now, now + WATCH_S

    def _watch(self, session: OpenSession, now: float) -> None:
        """End the session if nothing else makes the cluster stop cancelled work."""
        if self._cancelled.compute(session.id, now):
            self._watch_until = now + WATCH_S
        self._watch_at = now + WATCH_AGAIN_S if now < self._watch_until else inf
        if self._cancelled.are_stuck(now):
            logger.warning("the cluster still runs a cancelled statement: its session is replaced")
            self._session, self._beat_at = None, now
            self._connection.release_session(session.id)

    def _follow(self) -> None:
        """Switch to the newest manifest."""
        found = signature(self._manifest)
        if found == self._signature:
            return
        try:
            manifest = read_manifest(self._config.state_dir)
        except ManifestError:
            return  # The refresher writes it again.
        self._shared = SharedSession(self._connection, self._config, manifest, self._views)
        self._signature = found

    def _drop_unused(self, session: OpenSession, now: float) -> None:
        """Drop the views that have been unused for `DROP_S`. Another engine that needs one defines it again."""
        self._unused = {view: self._unused.get(view, now) for view in self._shared.unused(session.id)}
        for view, since in self._unused.items():
            if now - since >= DROP_S:
                self._shared.drop(session.id, view)

    def _bury(self, session: OpenSession, engine: str) -> None:
        """End the leftover operations of a dead engine."""
        logger.warning("another engine is dead: its statements on the cluster are cancelled")
        self._connection.interrupt(session.id, operation_tag=engine_tag(engine))
        self._connection.unset_option(session.id, _PREFIX + engine)

    @staticmethod
    def _interval_s(session: OpenSession) -> float:
        is_waited_for = any(kind == "dataset" for kind, _ in session.unreadable.values())
        return DEFINE_SOON_S if is_waited_for else DEFINE_S


def run(keeper: Keeper, lost: int) -> None:
    """Run *keeper* until the other end of the pipe *lost* is closed. Each line in it is the id of a lost statement."""
    poll = select.poll()
    poll.register(lost, select.POLLIN)
    while True:
        wait_s = keeper.step(time.monotonic())
        if poll.poll(max(0.0, wait_s) * 1000):
            lines = os.read(lost, _QUERY_BYTES)
            if not lines:
                break
            for query_id in lines.decode("ascii", "replace").split():
                keeper.lost(query_id, time.monotonic())
    keeper.leave()
