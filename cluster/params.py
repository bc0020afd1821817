"""The parameters of `spark:`: a table on an Apache Spark or Sail cluster, read over Spark Connect."""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated
from urllib.parse import unquote

from cluster.config import DEFAULT_PORT
from runtimeconf.addresses import split_host_port
from runtimeconf.connector import Connector, Param, Params
from runtimeconf.fields import InvalidValueError, ParsedField
from runtimeconf.network import RootCertificateFile, parse_token
from runtimeconf.tables import locate_table
from system.addresses import Address

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Remote:
    """The address and connection settings of a Spark Connect server."""

    address: Address
    uses_tls: bool
    token: str | None = field(repr=False)


def parse_remote(text: str) -> Remote:
    """
    Parse a connection string such as `sc://host:15002/;use_ssl=true;token=abc` (Spark's "Client connection string").

    Raises:
        InvalidValueError: *text* is not a connection string or has unsupported parameters.
    """
    if not text.startswith("sc://"):
        raise InvalidValueError("it must begin with sc://")
    authority, _, rest = text.removeprefix("sc://").partition("/")
    if "@" in authority or ";" in authority:
        raise InvalidValueError("write parameters after /; and no user before the host")
    found = split_host_port(authority)
    if found is None:
        raise InvalidValueError("not a host and a port")
    given: dict[str, str] = {}
    for part in rest.removeprefix(";").split(";") if rest else []:
        name, _, value = part.partition("=")
        if name not in {"use_ssl", "token"} or name in given:
            raise InvalidValueError("the only parameters are use_ssl and token, at most once each")
        given[name] = unquote(value)
    if given.get("use_ssl", "true") not in _BOOLEANS:
        raise InvalidValueError("use_ssl must be true or false")
    token = parse_token(given["token"]) if "token" in given else None
    uses_tls = _BOOLEANS[given.get("use_ssl", "false" if token is None else "true")]
    host, port = found
    return Remote(Address(host, port or DEFAULT_PORT), uses_tls, token)


def _checked(text: str) -> str:
    remote = parse_remote(text)
    if remote.token is not None and not remote.uses_tls and not remote.address.is_loopback:
        raise InvalidValueError("a token is sent to another machine only over TLS: remove use_ssl=false")
    return text


_REMOTE = ParsedField("a connection string such as sc://host:15002/;use_ssl=true;token=abc", _checked)


class SparkParams(Params):
    """The connection string."""

    spark_remote: Annotated[str, Param(_REMOTE, is_secret=True)]
    spark_tls_root_certificate_file: RootCertificateFile = None

    def problem(self, location: str) -> str | None:
        """Refuse root certificates without TLS; see `Params.problem`."""
        if self.spark_tls_root_certificate_file is not None and not parse_remote(self.spark_remote).uses_tls:
            return "has spark_tls_root_certificate_file, but spark_remote has no TLS: add use_ssl=true"
        return None


SPARK = Connector(
    expected="the name of a table or view, such as catalog.schema.table",
    locate=partial(locate_table, 3, "set it in params.spark_remote"),
    params=SparkParams,
    source="cluster.source:SparkSource",
)
