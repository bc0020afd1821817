"""Runs a console in a thread of the tests."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from runtimeclient.client import RuntimeClient
from runtimeclient.console.assets import Asset
from runtimeclient.console.server import ConsoleServer


@contextmanager
def serving(url: str, key: str | None, assets: Mapping[str, Asset]) -> Iterator[ConsoleServer]:
    """Serve the page in *assets* for the runtime at *url*."""
    about = {"endpoint": url, "profile": None, "has_key": key is not None, "version": ""}
    with RuntimeClient(url, key) as client, ConsoleServer(client, assets, about) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
