"""The secret store `vault`: a secret of the key-value engine, version 2, of HashiCorp Vault or OpenBao."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtimeconf.secret_server import SecretServer, credential

#: Our reasons by status. Vault answers 404 for a path without a secret, and for one that is not mounted.
_REASONS: Final[Mapping[int, str]] = {
    400: "the server does not take the login",
    403: "the server does not allow it",
    404: "there is no such secret in a key-value engine, version 2",
    429: "the server is a standby",
    503: "the server is sealed, or starting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """
    How to read the secret at *path* of the engine at *mount*.

    *login* is the auth method that gives a token for *credentials*: values, or files with them, by the names that the
    server has for them. Without a *login*, *credentials* has the `token`.
    """

    address: str
    mount: str
    path: str
    login: str
    credentials: Mapping[str, str | Path] = field(repr=False)
    namespace: str = ""
    ca_file: Path | None = None

    def read(self) -> Mapping[str, Any]:
        """
        Return the secret.

        Raises:
            SecretError: The server cannot be reached, or refuses, or a credential cannot be used.
        """
        server = SecretServer(
            address=self.address, ca_file=self.ca_file, names=("vault_addr", "vault_ca_file"), reasons=_REASONS
        )
        with server.connection() as client:
            if self.namespace:
                client.headers["X-Vault-Namespace"] = self.namespace
            credentials = {name: credential(name, value) for name, value in self.credentials.items()}
            if self.login:
                answer = server.ask(client, "POST", f"/v1/auth/{self.login}/login", json=credentials)
                credentials = {"token": answer["auth"]["client_token"]}
            client.headers["X-Vault-Token"] = credentials["token"]
            secret: Mapping[str, Any] = server.ask(client, "GET", f"/v1/{self.mount}/data/{self.path}")["data"]["data"]
            return secret
