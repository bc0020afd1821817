"""The secret store `vault`: a secret in the key-value engine, version 2, of HashiCorp Vault or OpenBao."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from runtimeconf.fields import ChoiceField, ParsedField, PathField, TextField, matching
from runtimeconf.secret_stores import SecretStore
from runtimeconf.store_kinds import StoreEntry, StoreKind
from secretstores.remote_store import SERVICE_ACCOUNT, RemoteStore
from system.addresses import Address

#: Our reasons by status. Vault returns 404 for a path without a secret, and for a path that is not mounted.
_REASONS: Final[Mapping[int, str]] = {
    400: "the server rejected the login",
    403: "the server does not allow it",
    404: "there is no such secret in a key-value engine, version 2",
    429: "the server is a standby",
    503: "the server is sealed, or starting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """
    Access to the secret at *path* in the engine at *mount*.

    *login* is the auth method that returns a token for *credentials*, which are values or files by the server's names
    for them. Without a *login*, *credentials* contains the `token`.
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
            SecretError: The server cannot be reached or refuses the request, or a credential cannot be used.
        """
        # Imported here because it loads an HTTP client, and every process that reads a configuration imports this
        # module.
        from secretstores.server import SecretServer, credential  # noqa: PLC0415

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


#: The setting that provides each part of a login.
_LOGIN: Final = {
    "jwt": "vault_jwt_file",
    "role": "vault_role",
    "role_id": "vault_role_id",
    "secret_id": "vault_secret_id_file, or VAULT_SECRET_ID in the environment",
    "token": "vault_token_file, or VAULT_TOKEN in the environment",
}


def _make(entry: StoreEntry) -> SecretStore | None:
    params, environ = entry.params, entry.environ

    def value(name: str, variable: str) -> str | Path | None:
        return entry.file(f"{name}_file") or environ.get(variable)

    address = params.get("vault_addr") or environ.get("VAULT_ADDR", "")
    problem = _address_problem(address)
    if problem:
        entry.fault(problem, "params", "vault_addr")
    auth = params.get("vault_auth", "token")
    needed: dict[str, str | Path | None]
    if auth == "approle":
        needed = {"role_id": params.get("vault_role_id"), "secret_id": value("vault_secret_id", "VAULT_SECRET_ID")}
    elif auth == "kubernetes":
        needed = {"role": params.get("vault_role"), "jwt": entry.file("vault_jwt_file") or SERVICE_ACCOUNT / "token"}
    else:
        needed = {"token": value("vault_token", "VAULT_TOKEN")}
    for name in [name for name, found in needed.items() if found is None]:
        entry.fault(f"lacks {_LOGIN[name]}, which {auth} authentication requires", "params")
    if problem or None in needed.values():
        return None
    mount, _, secret = entry.location.partition("/")
    vault = Vault(
        address=address.rstrip("/"),
        mount=mount,
        path=secret,
        login="" if auth == "token" else params.get("vault_mount", auth),
        credentials={name: found for name, found in needed.items() if found is not None},
        namespace=params.get("vault_namespace") or environ.get("VAULT_NAMESPACE", ""),
        ca_file=entry.file("vault_ca_file", environ.get("VAULT_CACERT", "")),
    )
    return RemoteStore(entry.name, f"{mount}/{secret} in the Vault at {urlsplit(address).netloc}", vault.read)


def _address_problem(text: str) -> str:
    """Return why *text* is not the address of a Vault server, in a few words; empty if it is."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        host, port, url = None, None, urlsplit("")
    if not host or url.scheme not in {"http", "https"} or "@" in url.netloc or url.path.strip("/") or url.query:
        return "must be a URL such as https://vault.internal:8200, here or as VAULT_ADDR in the environment"
    if url.scheme == "http" and not Address(host, port or 80).is_loopback:
        return "has no TLS, so the token and secrets would be sent unencrypted: write https://"
    return ""


VAULT: Final = StoreKind(
    make=_make,
    params={
        "vault_addr": TextField("a URL such as https://vault.internal:8200"),
        "vault_namespace": TextField("a namespace"),
        "vault_ca_file": PathField("the path of a PEM file with certificates"),
        "vault_auth": ChoiceField("token", "approle", "kubernetes"),
        "vault_mount": ParsedField("the path of an auth method", matching(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*")),
        "vault_token_file": PathField("the path of a file with a token"),
        "vault_role": TextField("the name of a role"),
        "vault_jwt_file": PathField("the path of a file with the token of a service account"),
        "vault_role_id": TextField("the id of a role"),
        "vault_secret_id_file": PathField("the path of a file with the secret id of a role"),
    },
    location=re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_.-]*[A-Za-z0-9_-])+"),
    placeholder="PATH",
    example="secret/querykeep",
    upstream_name="hashicorp_vault",
)
