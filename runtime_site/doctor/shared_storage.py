"""The object storage that nodes share."""

from collections.abc import Iterator

from datasources.errors import SharedStorageError
from datasources.sharing.documents import LEASE, MANIFEST, NODES, Holder, SharedManifest
from datasources.sharing.object_storage import ObjectStorage
from runtime_site.doctor.findings import Finding, error, note, ok
from runtimeconf.model import SnapshotsConfig


def check(config: SnapshotsConfig) -> Iterator[Finding]:
    """Yield whether the storage answers, and what the nodes have written there. Nothing is written."""
    about = "shared storage"
    try:
        storage = ObjectStorage(config)
        nodes = len(storage.tags(NODES))
        manifest, lease = storage.read(MANIFEST), storage.read(LEASE)
        if manifest is None or manifest == "unchanged":
            yield note(about, f"{config.location} answers; nothing is published there yet.")
            return
        published = len(SharedManifest.decode(manifest.content).snapshots)
        holder = "" if lease is None or lease == "unchanged" else Holder.decode(lease.content).node
    except SharedStorageError as exc:
        yield error(about, str(exc), "See runtime.snapshots, and docs/scaling.md.")
        return
    publisher = f"node {holder} publishes" if holder else "no node publishes at the moment"
    yield ok(about, f"{config.location} answers: {published} snapshots, {nodes} nodes; {publisher}.")
