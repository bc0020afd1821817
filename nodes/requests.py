"""Refresh requests made to a node that does not publish, stored as objects for the publisher."""

import hashlib
import json
import logging
import re
import secrets
from typing import Unpack

from datasources.control import RefreshOptions, RefreshRun
from datasources.errors import SharedStorageError
from datasources.snapshots.snapshot import refresh_sql_of
from nodes.documents import REQUESTS, RefreshRequest
from nodes.object_storage import ObjectStorage, within
from runtimeconf.model import DatasetConfig
from system.wallclock import utc_now

logger = logging.getLogger(__name__)

_SUFFIX = ".json"
_ID = re.compile(r"[0-9a-f]{16}")


def declaration_of(dataset: DatasetConfig) -> str:
    """Return a digest of what a caller's SQL replaces. Every node knows it; a follower may lack parameters."""
    return hashlib.sha256(json.dumps([dataset.name, dataset.from_, refresh_sql_of(dataset)]).encode()).hexdigest()


class Requests:
    """The requests in *storage* by run id. A request stays until its run has finished. Thread-safe."""

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage

    def add(self, dataset: DatasetConfig, sql: str | None, **options: Unpack[RefreshOptions]) -> RefreshRun:
        """Request a refresh, and return its run. Raises SharedStorageError."""
        run = RefreshRun(id=secrets.token_hex(8), status="queued", requested_at=utc_now())
        request = RefreshRequest(
            dataset=dataset.name, requested_at=run.requested_at, source=declaration_of(dataset), sql=sql, **options
        )
        self._storage.put(f"{REQUESTS}/{run.id}{_SUFFIX}", request.encode())
        return run

    def ids(self) -> set[str]:
        """Return the ids of the requests. Raises SharedStorageError."""
        ids = {name.removesuffix(_SUFFIX) for name in self._storage.tags(REQUESTS)}
        return {one for one in ids if _ID.fullmatch(one)}

    def get(self, run_id: str) -> RefreshRequest | None:
        """Return a request; None if it is gone or another program wrote it. Raises SharedStorageError."""
        found = self._storage.read(f"{REQUESTS}/{run_id}{_SUFFIX}")
        if found is None or found == "unchanged":
            return None
        try:
            return RefreshRequest.decode(found.content)
        except SharedStorageError as exc:
            logger.warning("A refresh request was dropped. %s", exc)
            self.remove({run_id})
            return None

    def remove(self, run_ids: set[str]) -> None:
        """Remove requests. Raises SharedStorageError."""
        self._storage.delete(within(REQUESTS, [f"{run_id}{_SUFFIX}" for run_id in run_ids]))
