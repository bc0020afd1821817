"""`spark:`: a table or view of an Apache Spark or Sail cluster, which speaks Spark Connect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

from runtimeconf.addresses import split_host_port
from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.connectors.downloads import parse_token
from runtimeconf.connectors.tables import locate_table
from runtimeconf.fields import InvalidValueError, ParsedField, PathField
from system.addresses import Address

#: The port of Spark Connect, if the address has none.
DEFAULT_PORT = 15002

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a Spark Connect server is, and how it is asked."""

    address: Address
    uses_tls: bool
    token: str | None = field(repr=False)


def parse_remote(text: str) -> Remote:
    """
    Parse a connection string such as `sc://host:15002/;use_ssl=true;token=abc` (Spark's "Client connection string").

    Raises:
        InvalidValueError: It is not one, or has other parameters.
    """
    if not text.startswith("sc://"):
        raise InvalidValueError("it begins with sc://")
    authority, _, rest = text.removeprefix("sc://").partition("/")
    if "@" in authority or ";" in authority:
        raise InvalidValueError("parameters stand after /; and there is no user before the host")
    found = split_host_port(authority)
    if found is None:
        raise InvalidValueError("not a host and a port")
    given: dict[str, str] = {}
    for part in rest.removeprefix(";").split(";") if rest else []:
        name, _, value = part.partition("=")
        if name not in {"use_ssl", "token"} or name in given:
            raise InvalidValueError("the parameters are use_ssl and token, each once")
        given[name] = unquote(value)
    if given.get("use_ssl", "true") not in _BOOLEANS:
        raise InvalidValueError("use_ssl is true or false")
    token = parse_token(given["token"]) if "token" in given else None
    uses_tls = _BOOLEANS[given.get("use_ssl", "false" if token is None else "true")]
    host, port = found
    return Remote(Address(host, port or DEFAULT_PORT), uses_tls, token)


def _checked(text: str) -> str:
    remote = parse_remote(text)
    if remote.token is not None and not remote.uses_tls and not remote.address.is_loopback:
        raise InvalidValueError("a token goes to another machine over TLS only: remove use_ssl=false")
    return text


def _check(_location: str, params: Mapping[str, str]) -> str | None:
    has_roots = "spark_tls_root_certificate_file" in params
    if has_roots and "spark_remote" in params and not parse_remote(params["spark_remote"]).uses_tls:
        return "has spark_tls_root_certificate_file, but spark_remote has no TLS: add use_ssl=true"
    return None


SPARK = Connector(
    name="spark",
    expected="the name of a table or view, such as catalog.schema.table",
    locate=partial(locate_table, 3, "spark_remote of params holds that"),
    params=(
        Param(
            "spark_remote",
            ParsedField("a connection string such as sc://host:15002/;use_ssl=true;token=abc", _checked),
            is_required=True,
            is_secret=True,
        ),
        Param("spark_tls_root_certificate_file", PathField("the path of a PEM file of certificates"), is_path=True),
    ),
    check=_check,
)
