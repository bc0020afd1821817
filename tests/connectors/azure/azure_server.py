"""A server of Azure Storage on a port of loopback: azurite, Microsoft's emulator, which checks keys and signatures."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import obstore
from obstore.store import AzureStore

from connectors.azure.params import AzureParams
from connectors.azure.source import AzureContainer
from tests.datasources.support import deadline

AZURITE = shutil.which("azurite-blob")

ACCOUNT = "devaccount"
KEY = "bm90IGEgc2VjcmV0LCBidXQgb2YgdGhlIGVtdWxhdG9y"


@dataclass(frozen=True, slots=True)
class AzureServer:
    """The *url* of the account on the server."""

    url: str

    @property
    def params(self) -> dict[str, str]:
        return {"abfs_account": ACCOUNT, "abfs_endpoint": self.url, "abfs_access_key": KEY}

    def create(self, container: str) -> None:
        target = f"/{ACCOUNT}/{container}?restype=container"
        with AzureContainer(container, AzureParams.of(self.params), deadline()) as ours:
            _, headers = ours._authorized("PUT", target, {})
        httpx.put(self.url.removesuffix(f"/{ACCOUNT}") + target, headers=headers).raise_for_status()

    def put(self, container: str, path: str, body: bytes) -> None:
        obstore.put(self._store(container), path, body)

    def signature(self, container: str, path: str) -> str:
        """Return a shared access signature for a blob."""
        return obstore.sign(self._store(container), "GET", path, timedelta(hours=1)).partition("?")[2]

    def _store(self, container: str) -> AzureStore:
        options: obstore.store.ClientConfig = {"allow_http": True}
        return AzureStore(container, account_name=ACCOUNT, access_key=KEY, endpoint=self.url, client_options=options)


@contextmanager
def azure_server(directory: Path) -> Iterator[AzureServer]:
    """Start azurite, which chooses its port and keeps everything in memory."""
    assert AZURITE is not None
    command = [AZURITE, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            listening = (re.search(r"listens on (http://127\.0\.0\.1:[0-9]+)", line) for line in process.stdout)
            yield AzureServer(next(found[1] for found in listening if found is not None) + f"/{ACCOUNT}")
        finally:
            process.terminate()
            process.communicate()  # it says that it ends
