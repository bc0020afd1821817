"""A node in a process that can be killed: `python -m tests.nodes.node_process DIRECTORY URL NAME`."""

import signal
import sys
import threading
from pathlib import Path

from datasources.refresh.loader import LoaderProcess
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import SnapshotBuilder
from tests.datasources.support import accelerated
from tests.nodes.fleet import Fleet, quick_leases
from tests.nodes.storage_server import SharedStorage

#: The file beside the state directory with the id of the node.
ID_NAME = "node"

if __name__ == "__main__":
    directory, url, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with quick_leases():
        dataset = accelerated(directory, refresh_check_interval_s=0.3)
        config = Fleet(directory, SharedStorage(url)).config(name, "auto", dataset)
        loaders = [LoaderProcess(SnapshotBuilder.of(config))]
        service = DatasetService(config, exclusive=True, builders=loaders)
        service.start()
        sharing = service.sharing()
        (directory / name / ID_NAME).write_text("" if sharing is None else sharing.node)
        ended.wait()
        service.stop(30)
        loaders[0].close()
