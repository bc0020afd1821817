"""The cluster that runs the statements."""

import uuid
from collections.abc import Iterator

from queryengine.errors import QueryError
from runtime_site.doctor.findings import Finding, error, ok
from runtimeconf.model import RuntimeConfig


def check(config: RuntimeConfig) -> Iterator[Finding]:
    """Yield whether the cluster of *config*, if any, takes the runtime. For that, a session is begun and ended."""
    if config.engine is None:
        return
    # gRPC is for those who need it.
    from cluster.connection import Connection  # noqa: PLC0415
    from cluster.errors import SessionLostError  # noqa: PLC0415

    connection = Connection(config.engine)
    session_id = str(uuid.uuid4())
    try:
        connection.options(session_id, "spark.querykeep.")
        connection.release_session(session_id)
    except (QueryError, SessionLostError) as exc:
        remedy = "Check the address, TLS, the token and the cluster's own log."
        yield error("cluster", f"sc://{config.engine.address}: {exc}", remedy)
    else:
        yield ok("cluster", f"sc://{config.engine.address} takes the runtime.")
    finally:
        connection.close()
