"""
The parameters of `mssql:`: a table in Microsoft SQL Server or Azure SQL.

They are the parameters of upstream (Spice), plus a file of certificate authorities.
"""

import re
from functools import partial
from typing import Annotated, Any, Self

from runtimeconf.addresses import parse_host
from runtimeconf.connector import Connector, Package, Param, Params
from runtimeconf.fields import FlagField, InvalidValueError, ParsedField, TextField
from runtimeconf.network import PORT, RootCertificateFile, parse_password
from runtimeconf.tables import locate_table

#: The maximum length of a database or user name (`sysname`).
_MAX_NAME_LENGTH = 128

#: One pair in a connection string. The value may be quoted.
_PAIR = re.compile(
    r"""\s*(?P<key>[^=;]+?)\s*=\s*+"""
    r"""(?:"(?P<double>(?:[^"]|"")*+)"|'(?P<single>(?:[^']|'')*+)'|(?P<plain>(?!["'])[^;]*?))\s*(?:;|$)"""
)
#: The supported keys by the parameter that each sets, with the names of Microsoft.Data.SqlClient.
_KEYS = {
    **dict.fromkeys(("server", "datasource", "addr", "address", "networkaddress"), "mssql_host"),
    **dict.fromkeys(("database", "initialcatalog"), "mssql_database"),
    **dict.fromkeys(("userid", "uid", "user"), "mssql_username"),
    **dict.fromkeys(("password", "pwd"), "mssql_password"),
    "encrypt": "mssql_encrypt",
    "trustservercertificate": "mssql_trust_server_certificate",
}
#: The keys that have no effect here, because a load uses one connection with the dataset's time limit.
_WITHOUT_EFFECT = frozenset(
    {"app", "applicationname", "commandtimeout", "connecttimeout", "connectiontimeout", "language", "packetsize"}
    | {"multipleactiveresultsets", "persistsecurityinfo", "pooling", "timeout", "workstationid", "wsid"}
)
_WORDS = {
    **dict.fromkeys(("true", "yes", "mandatory"), True),
    **dict.fromkeys(("false", "no", "optional"), False),
}


def _parse_connection_string(text: str) -> str:
    """Return *text* unchanged if `_parsed` accepts it. Messages show no values from it."""
    parse_password(text)
    if {"mssql_host", "mssql_username"} - _parsed(text).keys():
        raise InvalidValueError("it lacks Server or User ID")
    return text


def _parsed(text: str) -> dict[str, Any]:
    """Return the parameters that the pairs of a connection string set."""
    found: dict[str, Any] = {}
    position = 0
    text = text.strip().rstrip(";")
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            raise InvalidValueError("key=value pairs separated by semicolons")
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
                "it has an unknown key; the supported keys are Server, Database, User ID, Password, Encrypt and "
                "TrustServerCertificate"
            )
        found |= _param(_KEYS[key], value)
    return found


def _param(name: str, value: str) -> dict[str, Any]:
    """Return the parameters that one value in a connection string sets."""
    if name == "mssql_host":
        host, _, port = value.removeprefix("tcp:").partition(",")
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
            raise InvalidValueError("the port after the comma must be a number from 1 to 65535")
        return {name: parse_host(host.strip())} | ({"mssql_port": int(port)} if port else {})
    if name in {"mssql_encrypt", "mssql_trust_server_certificate"}:
        if value.lower() not in _WORDS:
            raise InvalidValueError("Encrypt and TrustServerCertificate must be true or false")
        return {name: _WORDS[value.lower()]}
    if name != "mssql_password" and len(value) > _MAX_NAME_LENGTH:
        raise InvalidValueError(f"a name is longer than {_MAX_NAME_LENGTH} characters")
    return {name: value} if value else {}


_CONNECTION_STRING = ParsedField(
    "an ADO connection string such as Server=host,1433;Database=shop;User ID=reader;Password=...",
    _parse_connection_string,
)
_NAME_OF_DATABASE = TextField("the name of a database", max_length=_MAX_NAME_LENGTH)
_NAME_OF_USER = TextField("a user name", max_length=_MAX_NAME_LENGTH)


class MssqlParams(Params):
    """The server and the login, as separate parameters or in a connection string."""

    mssql_connection_string: Annotated[str | None, Param(_CONNECTION_STRING, is_secret=True)] = None
    mssql_host: Annotated[
        str | None, Param(ParsedField("a host name or an IP address", parse_host), is_hidden=True)
    ] = None
    mssql_port: Annotated[int | None, Param(PORT)] = None
    mssql_database: Annotated[str | None, Param(_NAME_OF_DATABASE)] = None
    mssql_username: Annotated[str | None, Param(_NAME_OF_USER)] = None
    mssql_password: Annotated[str | None, Param(ParsedField("a password", parse_password), is_secret=True)] = None
    mssql_encrypt: Annotated[bool | None, Param(FlagField())] = None
    mssql_trust_server_certificate: Annotated[bool | None, Param(FlagField())] = None
    mssql_sslrootcert: RootCertificateFile = None

    @property
    def expanded(self) -> Self:
        """Return the same parameters with the connection string expanded into separate parameters."""
        if self.mssql_connection_string is None:
            return self
        return type(self).of(_parsed(self.mssql_connection_string) | {"mssql_sslrootcert": self.mssql_sslrootcert})

    def problem(self, location: str) -> str | None:
        """Refuse duplicate and missing parameters; see `Params.problem`."""
        if self.mssql_connection_string is not None:
            others = self.declared.keys() - {"mssql_connection_string", "mssql_sslrootcert"}
            if given := sorted(name for name in others if getattr(self, name) is not None):
                return f"has both mssql_connection_string and {given[0]}: use only one of the two"
        else:
            for name in ("mssql_host", "mssql_username"):
                if getattr(self, name) is None:
                    return f"lacks the field {name}, or mssql_connection_string, which can contain it"
        server = self.expanded
        if "\\" in str(server.mssql_username):
            return "has a Windows user (domain\\user): only SQL Server logins are supported"
        if self.mssql_sslrootcert is not None and server.mssql_trust_server_certificate:
            return "has mssql_sslrootcert, but mssql_trust_server_certificate: true turns verification off"
        return None


MSSQL = Connector(
    expected="the name of a table or view, such as schema.table",
    locate=partial(locate_table, 3, "set these in params.mssql_host, mssql_port, mssql_username and mssql_password"),
    params=MssqlParams,
    source="connectors.mssql.source:MssqlSource",
    packages=(Package("pymssql", "pymssql~=2.4"),),
)
