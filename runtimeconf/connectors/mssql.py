"""
The connector `mssql:`: a table of Microsoft SQL Server or Azure SQL.

Its parameters are those of upstream (Spice), and a file of certificate authorities.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from runtimeconf.addresses import parse_host
from runtimeconf.connectors.connector import Connector, Package, Param
from runtimeconf.connectors.downloads import PORT, parse_password
from runtimeconf.connectors.tables import locate_table
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField, PathField, TextField

#: The longest name of a database or a user (`sysname`).
_MAX_NAME_LENGTH = 128

#: One pair of a connection string, whose value may stand in quotes.
_PAIR = re.compile(
    r"""\s*(?P<key>[^=;]+?)\s*=\s*+"""
    r"""(?:"(?P<double>(?:[^"]|"")*+)"|'(?P<single>(?:[^']|'')*+)'|(?P<plain>(?!["'])[^;]*?))\s*(?:;|$)"""
)
#: The keys that are read, by the parameter that each stands for: as Microsoft.Data.SqlClient calls them.
_KEYS = {
    **dict.fromkeys(("server", "datasource", "addr", "address", "networkaddress"), "mssql_host"),
    **dict.fromkeys(("database", "initialcatalog"), "mssql_database"),
    **dict.fromkeys(("userid", "uid", "user"), "mssql_username"),
    **dict.fromkeys(("password", "pwd"), "mssql_password"),
    "encrypt": "mssql_encrypt",
    "trustservercertificate": "mssql_trust_server_certificate",
}
#: The keys that change nothing here: one connection for one load, with the time limit of the dataset.
_WITHOUT_EFFECT = frozenset(
    {"app", "applicationname", "commandtimeout", "connecttimeout", "connectiontimeout", "language", "packetsize"}
    | {"multipleactiveresultsets", "persistsecurityinfo", "pooling", "timeout", "workstationid", "wsid"}
)
_WORDS = {
    **dict.fromkeys(("true", "yes", "mandatory"), "true"),
    **dict.fromkeys(("false", "no", "optional"), "false"),
}
_EXPECTED = "an ADO connection string such as Server=host,1433;Database=shop;User ID=reader;Password=..."


@dataclass(frozen=True, slots=True, kw_only=True)
class MssqlServer:
    """How a server is reached. A *port* of 0, and an empty *database* or *password*, stand for the default."""

    host: str
    port: int
    database: str
    username: str
    password: str = field(repr=False)
    encrypt: bool
    trust_certificate: bool


def mssql_server(params: Mapping[str, str]) -> MssqlServer:
    """Return what the valid *params* of a dataset say, by names of their own or in a connection string."""
    if (text := params.get("mssql_connection_string")) is not None:
        params = _parsed(text)
    return MssqlServer(
        host=params["mssql_host"],
        port=int(params.get("mssql_port", 0)),
        database=params.get("mssql_database", ""),
        username=params["mssql_username"],
        password=params.get("mssql_password", ""),
        encrypt=params.get("mssql_encrypt") != "false",
        trust_certificate=params.get("mssql_trust_server_certificate") == "true",
    )


def _parse_connection_string(text: str) -> str:
    """Return *text* unchanged if it is one that `mssql_server` reads. No message shows a value of it."""
    parse_password(text)
    if {"mssql_host", "mssql_username"} - _parsed(text).keys():
        raise InvalidValueError("it lacks Server or User ID")
    return text


def _parsed(text: str) -> dict[str, str]:
    """Return the parameters for which the pairs of a connection string stand."""
    found: dict[str, str] = {}
    position = 0
    text = text.strip().rstrip(";")
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            raise InvalidValueError("pairs of a key and a value, key=value, with semicolons between them")
        position = match.end()
        key = re.sub(r"\s", "", match["key"]).lower()
        if match["double"] is not None:
            value = match["double"].replace('""', '"')
        elif match["single"] is not None:
            value = match["single"].replace("''", "'")
        else:
            value = match["plain"]
        if key in _WITHOUT_EFFECT:
            continue
        if key not in _KEYS:
            raise InvalidValueError(
                "it has a key that is not known here; those are Server, Database, User ID, Password, Encrypt and "
                "TrustServerCertificate"
            )
        found |= _param(_KEYS[key], value)
    return found


def _param(name: str, value: str) -> dict[str, str]:
    """Return the parameters that one value of a connection string gives."""
    if name == "mssql_host":
        host, _, port = value.removeprefix("tcp:").partition(",")
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
            raise InvalidValueError("the port after the comma is a number from 1 to 65535")
        return {name: parse_host(host.strip())} | ({"mssql_port": port} if port else {})
    if name in {"mssql_encrypt", "mssql_trust_server_certificate"}:
        if value.lower() not in _WORDS:
            raise InvalidValueError("Encrypt and TrustServerCertificate are true or false")
        return {name: _WORDS[value.lower()]}
    if name != "mssql_password" and len(value) > _MAX_NAME_LENGTH:
        raise InvalidValueError(f"a name is longer than {_MAX_NAME_LENGTH} characters")
    return {name: value} if value else {}


def _check(_location: str, params: Mapping[str, str]) -> str | None:
    others = sorted(params.keys() - {"mssql_connection_string", "mssql_sslrootcert"})
    if "mssql_connection_string" in params:
        if others:
            return f"has mssql_connection_string and {others[0]}: write both into one of them"
    else:
        for name in ("mssql_host", "mssql_username"):
            if name not in params:
                return f"lacks the field {name}, or mssql_connection_string, which has it too"
    server = mssql_server(params)
    if "\\" in server.username:
        return "has a user of Windows (domain\\user): only logins of SQL Server work"
    if "mssql_sslrootcert" in params and server.trust_certificate:
        return "has mssql_sslrootcert, but mssql_trust_server_certificate: true does without verification"
    return None


MSSQL = Connector(
    name="mssql",
    expected="the name of a table or view, such as schema.table",
    locate=partial(locate_table, 3, "mssql_host, mssql_port, mssql_username and mssql_password of params hold that"),
    params=(
        Param("mssql_connection_string", ParsedField(_EXPECTED, _parse_connection_string), is_secret=True),
        Param("mssql_host", ParsedField("a host name or an IP address", parse_host), is_hidden=True),
        Param("mssql_port", PORT),
        Param("mssql_database", TextField("the name of a database", max_length=_MAX_NAME_LENGTH)),
        Param("mssql_username", TextField("the name of a user", max_length=_MAX_NAME_LENGTH)),
        Param("mssql_password", ParsedField("a password", parse_password), is_secret=True),
        Param("mssql_encrypt", ChoiceField("true", "false")),
        Param("mssql_trust_server_certificate", ChoiceField("true", "false")),
        Param("mssql_sslrootcert", PathField("the path of a PEM file of certificates"), is_path=True),
    ),
    check=_check,
    packages=(Package("pymssql", "pymssql~=2.4"),),
)
