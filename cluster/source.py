"""
`spark:` sources: a table or view on a Spark Connect cluster, read over the connection of `cluster`.

One statement reads all rows in a separate session for the load, so the data is one version of the table as the cluster
defines it. A result is complete only once the cluster reports this.
"""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from cluster.config import ClusterConfig
from cluster.connection import Connection
from cluster.errors import SessionLostError
from cluster.params import SparkParams, parse_remote
from cluster.protocol import messages
from cluster.reader import RemoteReader
from connectors.databases import INTEGERS, Column, checked, chosen, condition, explained
from datasources.errors import SourceError
from datasources.sources.source import Load, Source
from datasources.sources.streams import StreamScan
from queryengine.cancellation import Interruption
from queryengine.errors import QueryError, QueryTimeoutError, StatementError
from runtimeconf.model import DatasetConfig
from runtimeconf.network import pem_problem
from runtimeconf.tables import table_parts

#: The kinds of values that the cluster compares as the engine does, by Spark Connect type name.
_COMPARED = {**dict.fromkeys(("byte", "short", "integer", "long"), INTEGERS), "date": frozenset({"date"})}


class SparkSource(Source):
    """One table or view on a cluster. Spark Connect has no version number for a table."""

    def __init__(self, dataset: DatasetConfig, params: SparkParams) -> None:
        self._table = ".".join(map(_quoted, table_parts(dataset.location)))
        self._shown = dataset.location
        self._remote = parse_remote(params.spark_remote)
        self._roots = params.spark_tls_root_certificate_file

    @contextmanager
    def open(self, load: Load) -> Iterator[StreamScan]:
        """Connect and send the statement; see `Source.open`."""
        load.deadline.check()
        interruption, session_id = Interruption(), str(uuid.uuid4())
        # This error is never shown. Once the deadline has passed, `explained` raises the error that is shown.
        stop = QueryTimeoutError(load.deadline.limit_s)
        with (
            load.deadline.calling(lambda: interruption.stop(lambda: stop)),
            explained(load, self._explanation, QueryError, SessionLostError, pa.ArrowException),
            closing(self._connection()) as connection,
        ):
            try:
                with closing(self._reader(connection, session_id, interruption, load)) as reader:
                    batches = pa.RecordBatchReader.from_batches(reader.schema, map(checked, reader))
                    yield StreamScan(batches, load, self._explanation)
            finally:
                with suppress(QueryError, SessionLostError):
                    connection.release_session(session_id)

    def _connection(self) -> Connection:
        roots = None if self._roots is None else Path(self._roots)
        if roots is not None and (problem := pem_problem(roots)):
            raise SourceError(f"The file in spark_tls_root_certificate_file {problem}.")
        remote = self._remote
        return Connection(
            ClusterConfig(address=remote.address, token=remote.token, uses_tls=remote.uses_tls, tls_ca=roots)
        )

    def _reader(self, connection: Connection, session_id: str, interruption: Interruption, load: Load) -> RemoteReader:
        """Return the rows of the columns that the load needs, once the first rows have arrived."""
        every = f"SELECT * FROM {self._table}"  # noqa: S608 - quoted
        row = connection.row_type(session_id, _relation(every), interruption.attach, sql=every)
        columns = [
            Column(
                name=member.name,
                expression=_quoted(member.name),
                compared=_COMPARED.get(member.data_type.WhichOneof("kind"), frozenset()),
            )
            for member in row.struct.fields
        ]
        if not columns:
            raise SourceError(f"The Spark server: {self._shown} has no columns.")
        expressions = ", ".join(column.expression for column in chosen(columns, load.wanted))
        where = condition(columns, load.wanted, quoted=_quoted)
        sql = f"SELECT {expressions} FROM {self._table}{where}"  # noqa: S608 - quoted
        reader = RemoteReader(connection, session_id, interruption, sql=sql)
        try:
            reader.start(messages.Plan(root=_relation(sql)), ())
        except BaseException:
            reader.close()
            raise
        return reader

    def _explanation(self, error: Exception) -> SourceError:
        if isinstance(error, StatementError):
            return SourceError(f"The Spark server cannot read {self._shown}: {str(error).rstrip('.')}.")
        if isinstance(error, QueryError):
            return SourceError(f"The Spark server: {str(error).removesuffix('.').removesuffix(': try again')}.")
        return SourceError(f"The Spark server disconnected while {self._shown} was being read.")


def _relation(sql: str) -> messages.Relation:
    return messages.Relation(common=messages.RelationCommon(plan_id=0), sql=messages.SQL(query=sql))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
