"""The schema of `secrets`: the stores, by the text before the colon of `from`."""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from runtimeconf.connector import Package
from runtimeconf.fields import (
    ChoiceField,
    Field,
    InvalidValueError,
    ListField,
    ParsedField,
    PathField,
    Section,
    Setting,
    TextField,
    into,
)
from runtimeconf.references import ALL_STORES, STORE_NAME
from runtimeconf.remote_store import RemoteStore
from runtimeconf.secret_stores import EnvStore, FileStore, KeyringStore, SecretStore, SecretStores
from runtimeconf.validation import YamlPath, nearest
from runtimeconf.yaml_reader import Mapping, Node, Scalar
from system.addresses import Address

_KEYRING: Final = Package("keyring", "keyring~=25.7")
_BOTOCORE: Final = Package("botocore", "botocore~=1.44")

#: Where Kubernetes mounts the token, the authorities and the namespace of a pod's service account.
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

#: Stores of Spice.ai that are not here, with what to do instead.
_ABSENT: Final = {
    "azure_keyvault": "is not supported: mount the secrets as files, and write file",
    "hashicorp_vault": "is called vault here: write vault: and the path of the secret",
}

#: The secret of a store that is a server, as it is written after the colon of `from`.
_LOCATIONS: Final = {
    "aws_secrets_manager": re.compile(r"[A-Za-z0-9/_+=.@:-]{1,512}"),
    "kubernetes": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"),
    "vault": re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_.-]*[A-Za-z0-9_-])+"),
}


def _build_env(values: dict[str, Any], _node: Mapping, path: YamlPath) -> SecretStore:
    validation = path.validation
    return EnvStore(values["name"], validation.environ, validation.directory, validation.warn)


def _build_file(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore | None:
    params = values.get("params", {})
    if "directory" not in params:
        path.field("params").fault(node.line_of("params"), "lacks the field directory: where the secret files are")
        return None
    directory = path.validation.directory / params["directory"]
    if os.path.exists(directory) and not os.path.isdir(directory):  # noqa: PTH110, PTH112 (they never raise)
        path.field("params").field("directory").fault(node.line_of("params"), "is not a directory")
    return FileStore(values["name"], directory)


def _build_keyring(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore:
    if not _KEYRING.is_installed:
        message = f"the keyring store needs the keyring package: {_KEYRING.install_command}"
        path.field("from").fault(node.line_of("from"), message)
    return KeyringStore(values["name"], values.get("params", {}).get("service", "runtime"))


def _build_aws(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore:
    from runtimeconf import aws_secrets  # noqa: PLC0415 (only for those who have such a store)

    if path.validation.needs_libraries and not _BOTOCORE.is_installed:
        message = f"the store needs a library (the extra sources has it): {_BOTOCORE.install_command}"
        path.field("from").fault(node.line_of("from"), message)
    secret = values["from"].partition(":")[2]
    read = partial(aws_secrets.read, secret, values.get("params", {}).get("aws_region"))
    return RemoteStore(values["name"], f"{secret} in AWS Secrets Manager", read)


def _build_kubernetes(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore | None:
    from runtimeconf.kubernetes import KubernetesSecret  # noqa: PLC0415 (it loads an HTTP client)

    environ = path.validation.environ
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        message = "is for a pod of Kubernetes, and KUBERNETES_SERVICE_HOST is not set: mount the secret, and write file"
        path.field("from").fault(node.line_of("from"), message)
        return None
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 2**16):
        path.field("from").fault(
            node.line_of("from"), "needs KUBERNETES_SERVICE_PORT, which is not the number of a port"
        )
        return None
    secret = values["from"].partition(":")[2]
    directory = path.validation.directory / values.get("params", {}).get("directory", _SERVICE_ACCOUNT)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    read = KubernetesSecret(secret, server, directory).read
    return RemoteStore(values["name"], f"the secret {secret} of Kubernetes", read)


def _build_vault(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore | None:
    from runtimeconf.vault import Vault  # noqa: PLC0415 (it loads an HTTP client)

    params: dict[str, str] = values.get("params", {})
    environ, directory, where = path.validation.environ, path.validation.directory, path.field("params")

    def file(name: str, default: str = "") -> Path | None:
        written = params.get(name, default)
        return directory / written if written else None

    def value(name: str, variable: str) -> str | Path | None:
        return file(f"{name}_file") or environ.get(variable)

    address = params.get("vault_addr") or environ.get("VAULT_ADDR", "")
    problem = _address_problem(address)
    if problem:
        where.field("vault_addr").fault(node.line_of("params"), problem)
    auth = params.get("vault_auth", "token")
    needed: dict[str, str | Path | None]
    if auth == "approle":
        needed = {"role_id": params.get("vault_role_id"), "secret_id": value("vault_secret_id", "VAULT_SECRET_ID")}
    elif auth == "kubernetes":
        needed = {"role": params.get("vault_role"), "jwt": file("vault_jwt_file", str(_SERVICE_ACCOUNT / "token"))}
    else:
        needed = {"token": value("vault_token", "VAULT_TOKEN")}
    for name in [name for name, found in needed.items() if found is None]:
        where.fault(node.line_of("params"), f"lacks {_LOGIN[name]}, which the login {auth} needs")
    if problem or None in needed.values():
        return None
    credentials = {name: found for name, found in needed.items() if found is not None}
    mount, _, secret = values["from"].partition(":")[2].partition("/")
    vault = Vault(
        address=address.rstrip("/"),
        mount=mount,
        path=secret,
        login="" if auth == "token" else params.get("vault_mount", auth),
        credentials=credentials,
        namespace=params.get("vault_namespace") or environ.get("VAULT_NAMESPACE", ""),
        ca_file=file("vault_ca_file", environ.get("VAULT_CACERT", "")),
    )
    return RemoteStore(values["name"], f"{mount}/{secret} in the Vault at {urlsplit(address).netloc}", vault.read)


#: What gives each part of a login.
_LOGIN: Final = {
    "jwt": "vault_jwt_file",
    "role": "vault_role",
    "role_id": "vault_role_id",
    "secret_id": "vault_secret_id_file, or VAULT_SECRET_ID in the environment",
    "token": "vault_token_file, or VAULT_TOKEN in the environment",
}


def _address_problem(text: str) -> str:
    """Return why *text* is not the address of a Vault server, in a few words; an empty text if it is."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        host, port, url = None, None, urlsplit("")
    if not host or url.scheme not in {"http", "https"} or "@" in url.netloc or url.path.strip("/") or url.query:
        return "must be a URL such as https://vault.internal:8200, here or as VAULT_ADDR in the environment"
    if url.scheme == "http" and not Address(host, port or 80).is_loopback:
        return "has no TLS: the token and the secrets could be read on the way; write https://"
    return ""


#: How to build each kind of store, and its parameters.
_KINDS: Final[dict[str, tuple[Callable[[dict[str, Any], Mapping, YamlPath], SecretStore | None], tuple[str, ...]]]] = {
    "env": (_build_env, ()),
    "file": (_build_file, ("directory",)),
    "keyring": (_build_keyring, ("service",)),
    "aws_secrets_manager": (_build_aws, ("aws_region",)),
    "kubernetes": (_build_kubernetes, ("directory",)),
    "vault": (
        _build_vault,
        (
            *("vault_addr", "vault_namespace", "vault_ca_file", "vault_auth", "vault_mount"),
            *("vault_token_file", "vault_role", "vault_jwt_file", "vault_role_id", "vault_secret_id_file"),
        ),
    ),
}


def _parse_from(text: str) -> str:
    kind, colon, location = text.partition(":")
    if (form := _LOCATIONS.get(kind)) is not None:
        if form.fullmatch(location) is None:
            raise InvalidValueError(f"write {kind}: and the name of the secret, such as {kind}:{_EXAMPLES[kind]}")
        return text
    if kind in _KINDS and not colon:
        return text
    if kind in _ABSENT:
        raise InvalidValueError(f"the store {kind} {_ABSENT[kind]}")
    meant = nearest(kind, _KINDS)
    raise InvalidValueError(f"did you mean {meant}?" if meant else "")


_EXAMPLES: Final = {"aws_secrets_manager": "prod/querykeep", "kubernetes": "querykeep", "vault": "secret/querykeep"}


def _parse_name(text: str) -> str:
    if STORE_NAME.fullmatch(text) is None:
        raise InvalidValueError
    if text.lower() == ALL_STORES:
        raise InvalidValueError("the name secrets asks all stores")
    return text


def _build_store(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore | None:
    kind = values["from"].partition(":")[0]
    build, known = _KINDS[kind]
    for param in values.get("params", {}):
        if param not in known:
            path.field("params").field(param).fault(node.line_of("params"), f"is not a parameter of the store {kind}")
    return build(values, node, path)


class _StoresField(ListField[SecretStore]):
    """
    The list of stores. References can be resolved once it is read without a fault.

    Spice.ai had one store with the version v1beta1, `{store: env}`, and no references: it is what there is without it.
    """

    def read(self, node: Node, path: YamlPath) -> tuple[SecretStore, ...] | None:
        validation = path.validation
        if isinstance(node, Mapping) and len(node.entries) == 1:
            only = node.get("store")
            if isinstance(only, Scalar) and only.text == "env":
                path.note(
                    node.line, "It is a list of one store, {from: env, name: env}, which is there without it too."
                )
                return ()
        validation.stores = None
        faults_before = len(validation.faults)
        stores = super().read(node, path) or ()
        names: set[str] = set()
        for store in stores:
            if store.name in names:
                path.fault(node.line, f"the store name {store.name} is used twice: each store needs its own")
            names.add(store.name)
        if len(validation.faults) == faults_before:
            validation.stores = SecretStores(stores)
        return stores


_MOUNT: Final = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")


def _parsed(form: re.Pattern[str], text: str) -> str:
    if form.fullmatch(text) is None:
        raise InvalidValueError
    return text


_PARAMS: Final[dict[str, Field[Any]]] = {
    "directory": PathField("a directory"),
    "service": TextField("the service name of the keyring entries"),
    "aws_region": ParsedField("a region such as eu-central-1", partial(_parsed, _REGION)),
    "vault_addr": TextField("a URL such as https://vault.internal:8200"),
    "vault_namespace": TextField("a namespace"),
    "vault_ca_file": PathField("the path of a PEM file of certificates"),
    "vault_auth": ChoiceField("token", "approle", "kubernetes"),
    "vault_mount": ParsedField("the path of an auth method", partial(_parsed, _MOUNT)),
    "vault_token_file": PathField("the path of a file with a token"),
    "vault_role": TextField("the name of a role"),
    "vault_jwt_file": PathField("the path of a file with the token of a service account"),
    "vault_role_id": TextField("the id of a role"),
    "vault_secret_id_file": PathField("the path of a file with the secret id of a role"),
}

SECRETS = _StoresField(
    Section[SecretStore](
        _build_store,
        Setting(
            "from",
            ParsedField("env, file, keyring, kubernetes:NAME, vault:PATH or aws_secrets_manager:NAME", _parse_from),
            is_required=True,
        ),
        Setting(
            "name",
            ParsedField("a store name of letters, digits, _ and -, with a letter first", _parse_name),
            is_required=True,
        ),
        Setting("params", Section(into(dict), *(Setting(name, one) for name, one in _PARAMS.items()))),
    )
)
