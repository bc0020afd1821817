"""
The session on the cluster, shared by all workers of a runtime and all runtimes with the same configuration.

Its id is derived from the configuration, so no lookup is needed. The session describes its own content: it has a
setting for each defined view, written after the view. If a setting is missing, the session is new or lacks the most
recently published version of a dataset, or the cluster was restarted.
"""

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from cluster.connection import Connection
from cluster.errors import SessionLostError
from cluster.gate.binding import Relation, bound
from cluster.protocol import messages
from cluster.relations import Definition, Definitions
from cluster.types import name_of
from queryengine.engine import GatedStatement
from queryengine.errors import DatasetNotLoadedError, EngineUnavailableError, QueryError, SqlError, StatementError
from queryengine.execution.views import GatedView
from queryengine.manifest import Manifest
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: The prefix of the session settings that describe views. The rest is the view's name.
VIEW_PREFIX: Final = "spark.querykeep.view."

#: The version of the session content. A release that defines relations differently has a different version.
_VERSION: Final = 2
_NAMESPACE: Final = uuid.UUID("6f0c2a0e-98f2-4b43-9a3c-6a5b7a1f3d52")
#: The id of an ended session cannot be reused, so each session has the next id in a series.
_MOST_SESSIONS: Final = 5000

_ERRORS: Final[Mapping[str, type[QueryError]]] = {"dataset": DatasetNotLoadedError, "view": SqlError}

#: Why a relation cannot be read: the kind of the relation that causes the error, and a sentence.
_Fault = tuple[str, str]


class OpenSession(Struct, frozen=True):
    """
    A session with the relations of a configuration, by lower-case name.

    `unreadable` has the reasons why relations cannot be read, with the kind of the relation that causes the error.
    """

    id: str
    relations: Mapping[str, Relation]
    unreadable: Mapping[str, _Fault]

    def require(self, names: frozenset[str]) -> None:
        """Raise the error of one of the relations *names* that cannot be read, if any."""
        for name in sorted(names & self.unreadable.keys()):
            kind, reason = self.unreadable[name]
            raise _ERRORS[kind](reason)


class _Described(Struct, frozen=True):
    """A session's description of one of its views."""

    columns: tuple[tuple[str, str], ...] = ()
    fault: _Fault | None = None


class SharedSession:
    """
    Finds the session for *config* and *views*, and defines its content for *manifest*.

    Each of *views* reads only earlier ones.
    """

    def __init__(
        self, connection: Connection, config: RuntimeConfig, manifest: Manifest, views: Sequence[GatedView]
    ) -> None:
        self._connection = connection
        self._definitions = Definitions(config, manifest, views)
        self._logged: dict[str, str] = {}  # why relations cannot be read

    def open(self) -> OpenSession:
        """
        Return the session, starting it if necessary.

        Raises:
            QueryError: The cluster cannot be reached or refuses the runtime.
        """
        for number in range(_MOST_SESSIONS):
            session_id = str(uuid.uuid5(_NAMESPACE, f"{_VERSION} {self._definitions.digest} {number}"))
            try:
                return self.look(session_id) or self.define(session_id)
            except SessionLostError:
                continue
        raise EngineUnavailableError("The cluster keeps ending the session: try again.")

    def look(self, session_id: str) -> OpenSession | None:
        """
        Return the session as it describes itself; None if it lacks any relation.

        Raises:
            SessionLostError: The session has ended.
            QueryError: See `open`.
        """
        described = self._described(session_id)
        relations: dict[str, Relation] = {}
        unreadable: dict[str, _Fault] = {}
        for name, definition in self._definitions.by_name.items():
            known = described.get(definition.relation.view) if definition.is_loaded else _not_loaded(definition)
            if known is None:
                return None
            _add(relations, unreadable, name, definition, known)
        return OpenSession(session_id, relations, unreadable)

    def define(self, session_id: str, *, anew: bool = False) -> OpenSession:
        """
        Define missing relations and, with *anew*, relations that may have changed. Raises the same errors as `look`.

        The cluster then sees new files. Running statements are not affected, and others may define the same relations
        at the same time.
        """
        described = self._described(session_id)
        changes: dict[str, str] = {}
        relations: dict[str, Relation] = {}
        unreadable: dict[str, _Fault] = {}
        opened = OpenSession(session_id, relations, unreadable)
        for name, definition in self._definitions.by_name.items():
            view = definition.relation.view
            known = described.get(view) if definition.is_loaded else _not_loaded(definition)
            if known is None or (anew and definition.is_loaded and (definition.may_change or known.fault)):
                known = self._define(opened, definition)
                changes[VIEW_PREFIX + view] = json.dumps([known.columns, known.fault])
            _add(relations, unreadable, name, definition, known)
        if changes:
            self._connection.set_options(session_id, changes)
        return opened

    def drop(self, session_id: str, view: str) -> None:
        """Drop a view that nobody uses any more. Raises the same errors as `look`."""
        query = messages.SQL(query=f"DROP VIEW IF EXISTS `{view}`")
        self._connection.command(session_id, messages.Command(sql_command=messages.SqlCommand(input=_sql(query))))
        self._connection.unset_option(session_id, VIEW_PREFIX + view)

    def unused(self, session_id: str) -> frozenset[str]:
        """Return the views that this configuration and manifest do not use. Raises the same errors as `look`."""
        used = {definition.relation.view for definition in self._definitions.by_name.values()}
        return frozenset(self._described(session_id).keys() - used)

    def reads_the_same(self, statement: GatedStatement, files: Mapping[str, str]) -> bool:
        """See `Session.reads_the_same`."""
        return self._definitions.read_the_same(statement, files)

    def _described(self, session_id: str) -> dict[str, _Described]:
        """Return the session's description of each of its views, by name."""
        found = self._connection.options(session_id, VIEW_PREFIX)
        return {view: _decoded(text) for view, text in found.items()}

    def _define(self, opened: OpenSession, definition: Definition) -> _Described:
        """Define one view in a session that already has the relations before it."""
        name, view = definition.relation.name, definition.view
        if view is None:
            try:
                columns = self._create(opened.id, definition.relation.view, definition.source)
                reason = "" if columns else "no files or columns are found"
            except (StatementError, DatasetNotLoadedError) as error:
                columns, reason = (), str(error)
            if self._is_news(name, reason):
                logger.warning("dataset unreadable", extra={"fields": {"dataset": name, "error": reason}})
            fault = ("dataset", f"Dataset '{name}' cannot be read by the cluster at the moment.") if reason else None
            return _Described(columns, fault)
        for needed in sorted(view.statement.relations & opened.unreadable.keys()):
            kind, reason = opened.unreadable[needed]
            lack = "has no data yet" if kind == "dataset" else "cannot be read"
            return _Described(fault=(kind, f"View '{name}' {lack}: {reason}"))
        try:
            query = messages.SQL(query=bound(view.statement, opened.relations))
            return _Described(self._create(opened.id, definition.relation.view, messages.Relation(sql=query)))
        except StatementError as error:
            if self._is_news(name, str(error)):
                fields = {"view": name, "yaml_path": view.config.yaml_path, "error": str(error)}
                logger.warning("view unusable", extra={"fields": fields})
            return _Described(fault=("view", f"View '{name}' does not fit the data: {error}"))

    def _is_news(self, name: str, reason: str) -> bool:
        """Return whether there is a *reason* that differs from the last logged reason."""
        before, self._logged[name] = self._logged.get(name, ""), reason
        return bool(reason) and reason != before

    def _create(self, session_id: str, view: str, source: Any) -> tuple[tuple[str, str], ...]:
        """Create a view, and return its columns."""
        command = messages.CreateDataFrameViewCommand(input=source, name=view, replace=True)
        self._connection.command(session_id, messages.Command(create_dataframe_view=command))
        query = messages.SQL(query=f"SELECT * FROM `{view}`")  # noqa: S608 - a name of ours
        row = self._connection.row_type(session_id, messages.Relation(sql=query))
        return tuple((member.name, name_of(member.data_type)) for member in row.struct.fields)


def _sql(query: Any) -> Any:
    return messages.Relation(common=messages.RelationCommon(plan_id=0), sql=query)


def _not_loaded(definition: Definition) -> _Described:
    return _Described(fault=("dataset", f"Dataset '{definition.relation.name}' is not loaded yet."))


def _add(
    relations: dict[str, Relation],
    unreadable: dict[str, _Fault],
    name: str,
    definition: Definition,
    described: _Described,
) -> None:
    relations[name] = replace(definition.relation, columns=described.columns)
    if described.fault is not None:
        unreadable[name] = described.fault


def _decoded(text: str) -> _Described:
    columns, fault = json.loads(text)
    return _Described(
        tuple((column, kind) for column, kind in columns), None if fault is None else (fault[0], fault[1])
    )
