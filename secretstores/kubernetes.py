"""The secret store `kubernetes`: a secret in the pod's namespace, read from the cluster's API server."""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from runtimeconf.secret_stores import SecretError, SecretStore, without_newline
from runtimeconf.store_kinds import DIRECTORY, StoreEntry, StoreKind
from secretstores.remote_store import SERVICE_ACCOUNT, RemoteStore

_NAMESPACE: Final = re.compile("[a-z0-9]([a-z0-9-]*[a-z0-9])?")

_REASONS: Final[Mapping[int, str]] = {
    401: "the server does not recognize the pod's service account",
    403: "the pod's service account cannot read it: grant it a role with the verb get on this secret",
    404: "there is no such secret in the pod's namespace",
}


class KubernetesSecret(Struct, frozen=True):
    """
    The secret *name* from the API server at *address*.

    *directory* contains the files of a service account: `token`, `namespace` and `ca.crt`.
    """

    name: str
    address: str
    directory: Path

    def read(self) -> Mapping[str, object]:
        """
        Return the values: strings without one trailing newline, as in a mounted file, or bytes if not text.

        Raises:
            SecretError: The server cannot be reached or refuses the request, or a service account file cannot be used.
        """
        # Imported here because it loads an HTTP client, and every process that reads a configuration imports this
        # module.
        from secretstores.server import SecretServer, credential  # noqa: PLC0415

        server = SecretServer(
            address=self.address,
            ca_file=self.directory / "ca.crt",
            names=("KUBERNETES_SERVICE_HOST", f"{self.directory}/ca.crt"),
            reasons=_REASONS,
        )
        token, namespace = (credential(name, self.directory / name) for name in ("token", "namespace"))
        if _NAMESPACE.fullmatch(namespace) is None:
            raise SecretError(f"{self.directory}/namespace is not the name of a namespace")
        with server.connection() as client:
            client.headers["Authorization"] = f"Bearer {token}"
            secret = server.ask(client, "GET", f"/api/v1/namespaces/{namespace}/secrets/{self.name}")
        return {name: _decoded(value) for name, value in (secret.get("data") or {}).items()}


def _decoded(value: str) -> str | bytes:
    found = base64.b64decode(value, validate=True)
    try:
        return without_newline(found.decode())
    except UnicodeDecodeError:
        return found


def _make(entry: StoreEntry) -> SecretStore | None:
    host = entry.environ.get("KUBERNETES_SERVICE_HOST")
    port = entry.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        message = (
            "works only in a Kubernetes pod, but KUBERNETES_SERVICE_HOST is not set: mount the secret and write file"
        )
        entry.fault(message, "from")
        return None
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16):
        entry.fault("needs KUBERNETES_SERVICE_PORT, which is not a valid port number", "from")
        return None
    directory = entry.file("directory") or SERVICE_ACCOUNT
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    read = KubernetesSecret(entry.location, server, directory).read
    return RemoteStore(entry.name, f"the secret {entry.location} of Kubernetes", read)


KUBERNETES: Final = StoreKind(
    make=_make,
    params={"directory": DIRECTORY},
    location=re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"),
    example="querykeep",
)
