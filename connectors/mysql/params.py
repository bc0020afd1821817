"""The parameters of `mysql:`: a table in MySQL or MariaDB."""

from functools import partial
from typing import Annotated

from runtimeconf.addresses import parse_host
from runtimeconf.connector import Connector, Package, Param, Params
from runtimeconf.fields import ChoiceField, ParsedField, TextField
from runtimeconf.network import PORT, RootCertificateFile, parse_password
from runtimeconf.tables import locate_table, table_parts


class MysqlParams(Params):
    """The server and the login."""

    mysql_host: Annotated[str, Param(ParsedField("a host name or an IP address", parse_host), is_hidden=True)]
    mysql_tcp_port: Annotated[int, Param(PORT)] = 3306
    mysql_db: Annotated[str | None, Param(TextField("the name of a database", max_length=64))] = None
    mysql_user: Annotated[str, Param(TextField("a user name", max_length=80))]
    mysql_pass: Annotated[str, Param(ParsedField("a password", parse_password), is_secret=True)] = ""
    #: The upstream default.
    mysql_sslmode: Annotated[str, Param(ChoiceField("disabled", "preferred", "required"))] = "required"
    mysql_sslrootcert: RootCertificateFile = None

    def problem(self, location: str) -> str | None:
        """Refuse a table without a database, and root certificates without TLS; see `Params.problem`."""
        if len(table_parts(location)) == 1 and self.mysql_db is None:
            return "lacks the field mysql_db, the name of a database: from: contains only the table name"
        if self.mysql_sslmode == "disabled" and self.mysql_sslrootcert is not None:
            return "has mysql_sslrootcert, but mysql_sslmode: disabled turns TLS off"
        return None


MYSQL = Connector(
    expected="the name of a table or view, such as database.table",
    locate=partial(
        locate_table, 2, "set these in params.mysql_host, mysql_tcp_port, mysql_db, mysql_user and mysql_pass"
    ),
    params=MysqlParams,
    source="connectors.mysql.source:MysqlSource",
    # `cryptography` is needed for caching_sha2_password, MySQL's default, over connections without TLS.
    packages=(Package("pymysql", "pymysql~=1.2"), Package("cryptography", "cryptography>=46.0.7")),
)
