"""The configuration of a cluster in `runtime.engine`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from runtimeconf.addresses import split_host_port
from runtimeconf.connector import Engine, Package
from runtimeconf.fields import (
    BooleanField,
    DurationField,
    Field,
    IntegerField,
    InvalidValueError,
    ParsedField,
    PathField,
    Section,
    Setting,
    into,
)
from runtimeconf.handover import plain, rebuilt
from runtimeconf.model import EngineConfig
from runtimeconf.network import parse_token, pem_problem
from runtimeconf.secret_stores import holds_reference
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Node, Scalar
from system.addresses import Address

_NAME: Final = "sc"
_SCHEME: Final = f"{_NAME}://"
#: The Spark Connect port if the address has none.
DEFAULT_PORT: Final = 15002


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """
    The Spark Connect cluster at `address`.

    `uses_tls` is true if the connection is encrypted. `tls_ca` is the absolute path of a PEM file with the certificate
    authorities to trust, or None for the public ones.
    """

    address: Address
    token: str | None = field(default=None, repr=False)
    uses_tls: bool = False
    tls_ca: Path | None = None

    @classmethod
    def of(cls, engine: EngineConfig) -> Self:
        """Return the cluster configured in *engine*."""
        made: Self = rebuilt(cls, {**engine.params, "address": plain(engine.address)})
        return made


def _parse_address(text: str) -> Address:
    if not text.startswith(_SCHEME):
        raise InvalidValueError
    if ";" in text or "@" in text:
        raise InvalidValueError("remove the parameters and user: use params for the token")
    found = split_host_port(text.removeprefix(_SCHEME).removesuffix("/"))
    if found is None:
        raise InvalidValueError
    host, port = found
    return Address(host, port or DEFAULT_PORT)


#: An invalid address may contain a token.
_ADDRESS: Final = ParsedField(
    f"the address of a cluster, such as {_SCHEME}spark.internal:{DEFAULT_PORT}", _parse_address, is_hidden=True
)


class _TokenField(Field[str]):
    """The token. Secret references in it are resolved, and no error shows it."""

    expected = "a string or a secret reference such as ${ secrets:name }"
    is_hidden = True

    def read(self, node: Node, path: YamlPath) -> str | None:
        if not isinstance(node, Scalar) or node.is_null:
            self.refuse(node, path)
            return None
        if not holds_reference(node.text):
            path.warn(node.line, "is in plain text: use a secret reference to keep it out of this file")
        text = path.resolve(node)
        if text is None:
            return None
        try:
            return parse_token(text)
        except InvalidValueError:
            path.fault(node.line, "is not a token: printable ASCII without spaces")
            return None


def _build(values: dict[str, Any], node: Mapping, path: YamlPath) -> EngineConfig:
    address: Address = values.pop("from")
    params: dict[str, Any] = values.pop("params", {})
    where, line = path.field("params"), node.line_of("params")
    tls_ca = path.validation.directory / params["tls_ca"] if "tls_ca" in params else None
    if tls_ca is not None and (problem := pem_problem(tls_ca)):
        where.field("tls_ca").fault(line, problem)
    is_insecure = params.get("insecure", False)
    if not address.is_loopback and not is_insecure and "token" not in params:
        message = (
            "lacks the field token, which a cluster on another machine requires; insecure: true connects without it"
        )
        where.fault(line, message)
    if not address.is_loopback and is_insecure:
        lacks = [name for name, is_there in (("TLS", tls_ca), ("a token", "token" in params)) if not is_there]
        if lacks:
            message = f"connects without {' and '.join(lacks)}: anyone who can reach it can read all data"
            where.field("insecure").warn(line, message)
    known = {
        "token": params.get("token"),
        "uses_tls": tls_ca is not None or not (address.is_loopback or is_insecure),
        "tls_ca": tls_ca,
    }
    return EngineConfig(name=_NAME, address=address, params=plain(known), **values)


_SECTION: Final = Section[EngineConfig](
    _build,
    Setting("from", _ADDRESS, is_required=True),
    Setting(
        "params",
        Section(
            into(dict),
            Setting("token", _TokenField()),
            Setting("tls_ca", PathField("the path of a PEM file with certificates")),
            Setting("insecure", BooleanField()),
        ),
    ),
    Setting("max_running", IntegerField(1, 64)),
    Setting("statement_timeout", DurationField("1ms", "1d"), attribute="statement_timeout_s"),
    may_be_empty=False,
)

#: The package that parses statements for a cluster.
ENGINE: Final = Engine(
    section=_SECTION, packages=(Package("sqlglot", "sqlglot==30.30.0"),), plugin="cluster.plugin:ENGINE"
)
