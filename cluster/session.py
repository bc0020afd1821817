"""A session on a cluster, as a `queryengine.execution.session.Session`."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from cluster.arguments import arguments
from cluster.connection import Connection
from cluster.errors import SessionLostError
from cluster.gate.binding import bound
from cluster.gate.text import shown
from cluster.identity import engine_id, engine_tag, query_tag
from cluster.protocol import messages
from cluster.reader import RemoteReader
from cluster.shared_session import OpenSession, SharedSession
from cluster.types import schema_of
from queryengine.cancellation import Interruption, Watchdog
from queryengine.engine import GatedStatement, Parameters, Query
from queryengine.errors import EngineUnavailableError, QueryError, StatementError
from queryengine.execution.arrow_parameters import values_of
from queryengine.execution.parameters import nulls
from queryengine.execution.session import UnfitView
from queryengine.manifest import Column

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Seconds between two checks of the session on the cluster.
LOOK_S: Final = 5.0
#: Seconds between two checks while the cluster is unavailable.
LOOK_SOON_S: Final = 1.0

#: The columns and the schema of every EXPLAIN.
_PLAN: Final = (Column(name="plan", type="VARCHAR"),), pa.schema([pa.field("plan", pa.string())])


class RemoteSession:
    """
    The session that all workers share, in this process.

    It can also be created while the cluster is unreachable, and refuses statements until the cluster is reachable.

    A thread checks it every `LOOK_S`, so it notices if the cluster is gone or if others have redefined the session.
    """

    speculates = False
    is_broken = False
    cached_bytes = 0

    def __init__(self, connection: Connection, shared: SharedSession) -> None:
        self.unfit_views: Mapping[str, UnfitView] = {}  # The process that defines a view logs that it does not fit.
        self._connection = connection
        self._shared = shared
        self._lock = threading.Lock()  # held while searching for the session
        self._closed = threading.Event()
        self._open: OpenSession | None = None
        try:
            self._open_again()
        except QueryError as error:
            logger.warning("the cluster cannot be used", extra={"fields": {"error": str(error)}})
        threading.Thread(target=self._watch, name="engine-cluster", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether the cluster was usable at the last check."""
        return self._open is not None

    def run(
        self,
        statement: GatedStatement,
        query: Query,
        interruption: Interruption,
        watchdog: Watchdog | None = None,
    ) -> RemoteReader:
        """See `Session.run`. If the session has ended, the statement runs in a new session."""
        values = values_of(statement, query.parameters)
        tags = [engine_tag(engine_id()), query_tag(query.query_id)]

        def begun(session: OpenSession) -> RemoteReader:
            sql, relation = _relation(statement, session, values)
            rewrite = partial(_shown, session) if statement.kind == "explain" else lambda batch: batch
            reader = RemoteReader(self._connection, session.id, interruption, sql=sql, rewrite=rewrite)
            try:
                reader.start(messages.Plan(root=relation), tags)
            except BaseException:
                reader.close()
                raise
            return reader

        return self._in_session(statement, begun)

    def describe(
        self, statement: GatedStatement, parameters: Parameters | None, interruption: Interruption
    ) -> tuple[tuple[Column, ...], pa.Schema] | None:
        """See `Session.describe`."""
        if statement.kind == "explain":  # Not every cluster can describe it.
            return _PLAN
        unbound = bool(statement.parameters) and parameters is None
        values = nulls(statement.parameters) if unbound else values_of(statement, parameters)

        def described(session: OpenSession) -> tuple[tuple[Column, ...], pa.Schema]:
            sql, relation = _relation(statement, session, values)
            try:
                row = self._connection.row_type(session.id, relation, interruption.attach, sql=sql)
            except EngineUnavailableError:
                interruption.check()
                raise
            finally:
                interruption.detach()
            return schema_of(row)

        try:
            return self._in_session(statement, described)
        except StatementError:
            if unbound:
                return None
            raise

    def is_cacheable(self, statement: GatedStatement) -> bool:
        """Return False, because data that a cluster reads in place may change at any time."""
        return False

    def reads_the_same(self, statement: GatedStatement, files: Mapping[str, str]) -> bool:
        """See `Session.reads_the_same`. Data read in place counts as the same."""
        return self._shared.reads_the_same(statement, files)

    def holds_superseded(self, files: Mapping[str, str]) -> bool:
        """Return False, because the session has no files of this machine open."""
        return False

    def free_cache(self) -> None:
        """Do nothing: the data is in the cluster."""

    def close(self) -> None:
        """Stop checking. The session on the cluster stays because others use it."""
        self._closed.set()

    def _in_session(self, statement: GatedStatement, call: Callable[[OpenSession], _T]) -> _T:
        """
        Return the result of *call* for the session, or for a new session if it has ended.

        A restarted cluster does not know the relations and reports this in various ways. Therefore a statement's error
        is trusted only if the session still has the relations.
        """
        session = self._required()
        session.require(statement.relations)
        try:
            return call(session)
        except SessionLostError:
            logger.info("the session on the cluster has ended")
        except StatementError:
            if self._is_there(session):
                raise
        try:
            session = self._open_again(session)
            session.require(statement.relations)
            return call(session)
        except SessionLostError as error:
            raise EngineUnavailableError("The cluster keeps ending the session: try again.") from error

    def _required(self) -> OpenSession:
        return self._open or self._open_again()

    def _is_there(self, session: OpenSession) -> bool:
        try:
            return self._shared.look(session.id) is not None
        except SessionLostError:
            return False

    def _open_again(self, lost: OpenSession | None = None) -> OpenSession:
        """Find or start a session, unless another thread has already replaced the *lost* session."""
        with self._lock:
            if self._open is None or self._open is lost:
                self._open = None
                self._open = self._shared.open()
            return self._open

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S if self.is_ready else LOOK_SOON_S):
            try:
                self._look()
            except QueryError as error:
                if self.is_ready and not self._closed.is_set():
                    logger.warning("the cluster cannot be used", extra={"fields": {"error": str(error)}})
                self._open = None
            except Exception:  # The next check may succeed.
                logger.exception("the cluster cannot be checked")

    def _look(self) -> None:
        """Read the session's current content, or find another session. Raises QueryError."""
        current = self._open
        found = None
        if current is not None:
            with suppress(SessionLostError):
                found = self._shared.look(current.id)
        if found is None:
            self._open_again(current)
        elif found != current:
            self._open = found


def _relation(statement: GatedStatement, session: OpenSession, values: Any) -> tuple[str, Any]:
    """Return the text of *statement* in *session*, and the relation that runs it."""
    sql = bound(statement, session.relations)
    query = messages.SQL(query=sql, named_arguments=arguments(values))
    return sql, messages.Relation(common=messages.RelationCommon(plan_id=0), sql=query)


def _shown(session: OpenSession, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a plan in the form that callers may see."""
    names = {relation.view: relation.name for relation in session.relations.values()}
    columns = [pa.array([text and shown(text, names) for text in column.to_pylist()]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
