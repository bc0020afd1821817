"""Parameters of connectors that do not fit, by `from` of a dataset: each with what the fault says."""

from tests.runtimeconf.configurations import (
    FLIGHTSQL,
    GRAPHQL,
    MSSQL,
    MYSQL,
    POSTGRES,
    SECRET,
)

TOKEN = "${ env:TOKEN }"
TOKEN_STRING = f"Server = tcp:db,1433; User ID=u; Password={TOKEN};Encrypt=True"
S3_KEYS = {"s3_key": TOKEN, "s3_secret": TOKEN}

FAULTS: dict[str, tuple[tuple[dict[str, str], str], ...]] = {
    "https://host/a.csv": (
        ({"http_port": "0"}, ".http_port: must be a port from 1 to 65535; found '0'"),
        ({"http_port": "65536"}, ".http_port: must be a port from 1 to 65535; found '65536'"),
        ({"http_query": f"a={SECRET}#b"}, ".http_query: must be the query string of the URL"),
        ({"http_password": "x"}, ": has http_password, but no http_username"),
        ({"http_username": "a:b"}, ": has a colon in http_username"),
        ({"http_username": "u", "http_bearer_token": TOKEN}, ": has http_username and http_bearer_token: remove one"),
        (
            {"http_bearer_token": TOKEN, "http_headers": f"authorization: {TOKEN}"},
            ": has http_bearer_token and an Authorization header in http_headers: remove one",
        ),
        ({"http_headers": TOKEN}, ".http_headers: must be headers such as X-Token: abc, one per line"),
        ({"http_headers": f"Host: {TOKEN}"}, "(Host is set by the runtime itself)"),
        ({"http_headers": f"X-A: é{TOKEN}"}, "a name, a colon and a value in printable ASCII"),
        ({"http_headers": f"X-A: {TOKEN}" + "x" * 8192}, "it is longer than 8,192 characters"),
        ({"http_bearer_token": f"é{TOKEN}"}, ".http_bearer_token: must be a bearer token; found a string (print"),
        ({"http_bearer_token": ""}, ".http_bearer_token: must be a bearer token; found a string (it is empty)"),
        ({"client_timeout": "0s"}, ".client_timeout: must be a duration"),
        ({"max_download_size": "much"}, ".max_download_size: must be a size in bytes"),
    ),
    "file:a.csv.gz": (
        *(({"csv_delimiter": text}, ".csv_delimiter: must be one character, such as ; or") for text in (";;", "x", "")),
        *(({"csv_quote": text}, ".csv_quote: must be one character, or empty for none") for text in ("''", "1", "«")),
        ({"csv_escape": ""}, ".csv_escape: must be one character; found '' (exactly one)"),
        ({"csv_has_header": "no"}, ".csv_has_header: must be true or false"),
        ({"encoding": "utf8"}, "utf-8, utf-16, latin-1 or windows-1252; found 'utf8' (did you mean utf-8?)"),
        ({"skip_rows": "3"}, ".skip_rows: must be a whole number from 0 to 10000; found '3' (without quotes)"),
        *(({"null_values": text}, ".null_values: must be a list of strings") for text in ("", "NA,,x", "N\x07A")),
        *(
            ({"date_format": text}, ".date_format: must be a strptime format such as %d.%m.%Y")
            for text in ("dd.mm.yyyy", "%d.%m", "%d.%m.%Y %Q", "%d.%m.%y%Y", "%d.%m.%Y%", "%d.%m.%Y %z", "%-p%d%m%y")
        ),
        ({"decimal_separator": ";"}, ".decimal_separator: must be . or ,; found ';'"),
        ({"thousands_separator": "_"}, ".thousands_separator: must be a point, a comma, an apostrophe or a space"),
        ({"thousands_separator": "."}, ": has thousands_separator equal to decimal_separator, which defaults to ."),
        ({"csv_delimiter": '"'}, ": has csv_delimiter equal to csv_quote"),
        ({"csv_delimiter": "!", "csv_escape": "!"}, ": has csv_delimiter equal to csv_escape"),
        (
            {"csv_delimiter": ";", "null_values": "a;b"},
            ": has null_values that contain the csv_delimiter or csv_quote",
        ),
        ({"file_compression_type": "gzip"}, "GZIP, ZSTD or UNCOMPRESSED; found 'gzip' (did you mean GZIP?)"),
        ({"file_format": "xls"}, ".file_format: must be parquet, csv, tsv, json, ndjson, jsonl or xlsx; found 'xls'"),
        ({"delimiter": ";"}, ".delimiter: unknown field; did you mean csv_delimiter?"),
        ({"sheet": "x"}, ".sheet: is a parameter of xlsx files, not of csv"),
    ),
    "s3://bucket/a.parquet": (
        ({"skip_rows": "1"}, ".skip_rows: must be"),
        ({"encoding": "utf-8"}, ".encoding: is a parameter of csv files, not of parquet"),
        ({"file_compression_type": "GZIP"}, ": is a parameter of csv and json files, not of parquet"),
    ),
    "https://host/a.xlsx": (
        *(
            ({"range": text}, ".range: must be a cell range such as B3:F200 or B3:F")
            for text in ("B3", "F1:B3", "B3:F2", "B:F5", "B0:F5", "AAAA1:B2")
        ),
        *(({"sheet": text}, ".sheet: must be a sheet name") for text in (" ", "x" * 32)),
        ({"csv_delimiter": ";"}, ".csv_delimiter: is a parameter of csv files, not of xlsx"),
    ),
    "gs://bucket/a": (
        ({"gcs_endpoint": "http://host"}, ": has a gcs_endpoint without TLS"),
        ({"gcs_endpoint": f"https://host/{SECRET}"}, "use only the scheme, the host and the port"),
        ({"gcs_service_account_key": TOKEN}, "it is not JSON"),
        (
            {"gcs_service_account_path": "a.json", "gcs_skip_signature": "true"},
            ": has gcs_service_account_path and gcs_skip_signature: remove one",
        ),
        (
            {"gcs_service_account_path": "a.json", "gcs_use_metadata_server": "true"},
            ": has gcs_service_account_path and gcs_use_metadata_server: remove one",
        ),
    ),
    "abfs://box/a": (
        ({"abfs_skip_signature": "true"}, ": must name the account exactly once: after @ in from:, or in abfs_account"),
        ({"abfs_account": "acc"}, ": must have one of abfs_access_key, abfs_sas_string, abfs_bearer_token, abfs_"),
        (
            {"abfs_account": "acc", "abfs_bearer_token": TOKEN, "abfs_skip_signature": "true"},
            ": must have one of abfs_access_key",
        ),
        (
            {"abfs_account": "acc", "abfs_skip_signature": "true", "abfs_endpoint": "http://host"},
            ": has an abfs_endpoint without TLS",
        ),
        ({"abfs_account": "acc", "abfs_access_key": "${ env:TOKEN }!"}, "it is not base64"),
        ({"abfs_account": "acc", "abfs_sas_string": TOKEN}, "a shared access signature contains sig="),
        (
            {"abfs_account": "acc", "abfs_client_secret": TOKEN},
            ": has abfs_client_secret, but not abfs_tenant_id and abfs_client_id",
        ),
        (
            {"abfs_account": "acc", "abfs_federated_token_file": "a", "abfs_client_id": "b"},
            ": has abfs_federated_token_file, but not abfs_tenant_id",
        ),
        (
            {"abfs_account": "acc", "abfs_skip_signature": "true", "abfs_tenant_id": "b"},
            ": has abfs_tenant_id, which abfs_skip_signature does not use",
        ),
        *(
            ({"abfs_account": "acc", "abfs_msi_endpoint": url}, ".abfs_msi_endpoint: must be a URL such as")
            for url in ("http://10.0.0.1/token", "https://host/token", "http://169.254.169.254/token?a=b")
        ),
        ({"abfs_account": "not.one", "abfs_skip_signature": "true"}, "must be the name of a storage account"),
    ),
    "abfs://box@account.dfs.core.windows.net/a": (
        (
            {"abfs_skip_signature": "true", "abfs_endpoint": "https://host"},
            ": has both a host in from: and abfs_endpoint: remove one",
        ),
    ),
    "s3://bucket/a": (
        ({"s3_key": TOKEN}, ": has only one of s3_key and s3_secret"),
        ({"s3_secret": TOKEN}, ": has only one of s3_key and s3_secret"),
        ({"s3_session_token": TOKEN}, ": has s3_session_token but no s3_key and s3_secret"),
        ({"s3_auth": "key"}, ": has s3_auth: key but no s3_key and s3_secret"),
        ({"s3_auth": "public", **S3_KEYS}, ": has both s3_auth: public and s3_key: remove one"),
        ({"s3_auth": "iam_role", **S3_KEYS}, ": has both s3_auth: iam_role and s3_key: remove one"),
        ({"s3_endpoint": "http://minio:9000"}, ": has an s3_endpoint without TLS"),
        ({"s3_endpoint": "http://minio:9000", "allow_http": "false"}, ": has an s3_endpoint without TLS"),
        ({"s3_endpoint": f"https://AKIA:{SECRET}@minio"}, "remove the user and password before the host"),
        ({"s3_endpoint": f"https://minio/{SECRET}"}, "use only the scheme, the host and the port"),
        ({"s3_endpoint": "minio:9000"}, "a URL begins with http:// or https://"),
        ({"s3_region": "eu.central"}, ".s3_region: must be the region of the bucket, such as eu-central-1"),
        ({"s3_auth": "iam-role"}, ".s3_auth: must be public, key or iam_role"),
        ({"s3_key": f"é{TOKEN}", "s3_secret": TOKEN}, ".s3_key: must be an access key id; found a string"),
    ),
    "delta:t": tuple(
        ({"s3_endpoint": url}, ".s3_endpoint: must be a URL such as https://minio.example.org:9000")
        for url in (
            *(f"https://user:{SECRET}@host", f"https://host?x={SECRET}", "ftp://host", "https://", "https://host/path"),
            *("https://host#x", "https://ho st", "https://host:99999", "https://[::1"),
        )
    ),
    "iceberg:t": (
        ({"s3_key": TOKEN}, ": has only one of s3_key and s3_secret"),
        ({"iceberg_table": "a.b"}, ": has only one of iceberg_catalog and iceberg_table"),
        ({"iceberg_catalog": "c.db"}, ": has only one of iceberg_catalog and iceberg_table"),
        ({"iceberg_catalog_name": "x"}, ": has iceberg_catalog_name, but no iceberg_catalog"),
        (
            {"iceberg_catalog": "c.db", "iceberg_table": "b"},
            ": has an iceberg_table that is not a namespace, a dot and a table name",
        ),
    ),
    "postgres:t": (
        ({**POSTGRES, "pg_port": "0"}, ".pg_port: must be a port from 1 to 65535; found '0'"),
        ({**POSTGRES, "pg_port": "65536"}, ".pg_port: must be a port from 1 to 65535; found '65536'"),
        ({**POSTGRES, "pg_host": "a b"}, ".pg_host: must be a host name, an IP address, or the absolute"),
        ({**POSTGRES, "pg_host": "/a,b"}, "(a comma would add a second host)"),
        ({**POSTGRES, "pg_host": f"postgresql://u:{SECRET}@host/db"}, "found a string"),
        ({**POSTGRES, "pg_host": f"u:{SECRET}@host"}, "found a string"),
        ({**POSTGRES, "pg_sslmode": "allow"}, ".pg_sslmode: must be disable, prefer, require, verify-ca"),
        ({**POSTGRES, "duckdb_open": "a"}, ".duckdb_open: is not a parameter of the connector postgres"),
        ({**POSTGRES, "pg_password": "x"}, ".pg_password: unknown field; did you mean pg_pass?"),
        ({**POSTGRES, "user": "x"}, ".user: unknown field; did you mean pg_user?"),
        ({"pg_host": "a", "pg_db": "a"}, ": lacks the field pg_user: a user name"),
    ),
    "mysql:t": (
        ({**MYSQL, "mysql_tcp_port": "0"}, ".mysql_tcp_port: must be a port from 1 to 65535; found '0'"),
        ({**MYSQL, "mysql_host": "/run/mysqld/mysqld.sock"}, ".mysql_host: must be a host name or an IP address"),
        ({**MYSQL, "mysql_host": f"u:{SECRET}@host"}, "found a string"),
        ({**MYSQL, "mysql_sslmode": "verify_ca"}, ".mysql_sslmode: must be disabled, preferred or required"),
        ({**MYSQL, "mysql_port": "1"}, ".mysql_port: unknown field; did you mean mysql_tcp_port?"),
        ({"mysql_host": "a", "mysql_db": "a"}, ": lacks the field mysql_user: a user name"),
        (
            {"mysql_host": "a", "mysql_user": "u"},
            ": lacks the field mysql_db, the name of a database: from: contains only the table name",
        ),
        (
            {**MYSQL, "mysql_sslmode": "disabled", "mysql_sslrootcert": "ca.pem"},
            ": has mysql_sslrootcert, but mysql_sslmode: disabled turns TLS off",
        ),
    ),
    "mssql:t": (
        ({**MSSQL, "mssql_port": "0"}, ".mssql_port: must be a port from 1 to 65535; found '0'"),
        ({**MSSQL, "mssql_host": f"u:{SECRET}@host"}, "found a string"),
        ({**MSSQL, "mssql_encrypt": "strict"}, ".mssql_encrypt: must be true or false"),
        ({**MSSQL, "mssql_user": "x"}, ".mssql_user: unknown field; did you mean mssql_username?"),
        ({"mssql_username": "u"}, ": lacks the field mssql_host, or mssql_connection_string, which can contain it"),
        ({"mssql_host": "db"}, ": lacks the field mssql_username, or mssql_connection_string, which can contain it"),
        (
            {"mssql_connection_string": TOKEN_STRING, "mssql_database": "shop"},
            ": has both mssql_connection_string and mssql_database: use only one of the two",
        ),
        (
            {**MSSQL, "mssql_username": r"shop\reader"},
            r": has a Windows user (domain\user): only SQL Server logins",
        ),
        (
            {**MSSQL, "mssql_trust_server_certificate": "true", "mssql_sslrootcert": "ca.pem"},
            ": has mssql_sslrootcert, but mssql_trust_server_certificate: true turns verification off",
        ),
        *(
            ({"mssql_connection_string": text.format(SECRET)}, f"({said}")
            for text, said in (
                ("{}", "key=value pairs separated by semicolons"),
                ("Server=db;User ID=u;Password='{}", "key=value pairs separated by semicolons"),
                (
                    "Server=db;User ID=u;Integrated Security=true;Key={}",
                    "it has an unknown key; the supported keys are Server, Database",
                ),
                ("Server=a\\{};User ID=u", "not a host name"),
                ("Server=db,99999;User ID=u;Password={}", "the port after the comma must be a number from 1 to 65535"),
                ("Server=db;User ID=u;Encrypt=strict;Password={}", "Encrypt and TrustServerCertificate must be true"),
                ("Server=db;Password={}", "it lacks Server or User ID"),
                ("User ID=u;Password={}", "it lacks Server or User ID"),
            )
        ),
    ),
    "sqlite:a.db": (
        ({"sqlite_table": "t", "zzz": "x"}, "the fields here are: sqlite_table, sqlite_types"),
        ({}, ": lacks the field sqlite_table: the name of a table or view"),
        ({"sqlite_table": "t", "sqlite_types": "x"}, ".sqlite_types: must be declared or text; found 'x'"),
    ),
    "duckdb:t": (({}, ": lacks the field duckdb_open: the path of a database file"),),
    "ftp://host/a.csv": (
        ({"ftp_pass": TOKEN}, ": has ftp_pass, but no ftp_user"),
        ({"ftp_tls": "preferred"}, ".ftp_tls: must be required or disabled"),
        (
            {"ftp_tls": "disabled", "ftp_tls_root_certificate_file": "ca.pem"},
            ": has ftp_tls_root_certificate_file, but ftp_tls: disabled turns TLS off",
        ),
        ({"sheet": "a"}, ".sheet: is a parameter of xlsx files, not of csv"),
    ),
    "sftp://host/a.csv": (
        ({"sftp_pass": TOKEN}, ": lacks the field sftp_user"),
        ({"sftp_user": "u"}, ": must have one of sftp_pass and sftp_private_key_file"),
        (
            {"sftp_user": "u", "sftp_pass": TOKEN, "sftp_private_key_passphrase": TOKEN},
            ": has sftp_private_key_passphrase, but no sftp_private_key_file",
        ),
        *(
            ({"sftp_user": "u", "sftp_pass": TOKEN, "sftp_host_key": text}, reason)
            for text, reason in (
                ("SHA256:abc", "each line must be a type such as ssh-ed25519"),
                ("ssh-ed25519 x", "each line must be a type such as ssh-ed25519"),
                ("ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIKqP", "the key does not match its type"),
                ("\n", "it is blank"),
            )
        ),
    ),
    "graphql:https://host/graphql": (
        ({**GRAPHQL, "graphql_query": " "}, ".graphql_query: must be a query"),
        *(({**GRAPHQL, "json_pointer": text}, ".json_pointer: must be a JSON pointer") for text in ("data", "/a~2")),
        ({**GRAPHQL, "unnest_depth": "11"}, ".unnest_depth: must be a whole number from 0 to 10"),
        ({**GRAPHQL, "graphql_auth_user": "u"}, ": has only one of graphql_auth_user and graphql_auth_pass"),
        (
            {**GRAPHQL, "graphql_auth_user": "u", "graphql_auth_pass": TOKEN, "graphql_auth_token": TOKEN},
            ": has both graphql_auth_token and graphql_auth_user: remove one",
        ),
        ({**GRAPHQL, "graphql_auth_user": "u:v", "graphql_auth_pass": TOKEN}, ": has a colon in graphql_auth_user"),
    ),
    "graphql:http://host/graphql": (({**GRAPHQL, "graphql_auth_token": TOKEN}, ": has a URL without TLS"),),
    "spark:t": (
        *(
            ({"spark_remote": remote}, reason)
            for remote, reason in (
                ("grpc://host:15002", "it must begin with sc://"),
                (f"sc://user:{SECRET}@host", "no user before the host"),
                ("sc://host:0x1", "not a host and a port"),
                (f"sc://host/;user_id={SECRET}", "the only parameters are use_ssl and token, at most once each"),
                (f"sc://host/;token={SECRET};token=b", "the only parameters are use_ssl and token, at most once each"),
                ("sc://host/;use_ssl=yes", "use_ssl must be true or false"),
                ("sc://host/;token=a%20b%0a", "printable ASCII"),
                (f"sc://host/;token={SECRET};use_ssl=false", "a token is sent to another machine only over TLS"),
            )
        ),
        (
            {"spark_remote": "sc://host", "spark_tls_root_certificate_file": "ca.pem"},
            ": has spark_tls_root_certificate_file, but spark_remote has no TLS: add use_ssl=true",
        ),
    ),
    "flightsql:t": (
        *(
            ({"flightsql_endpoint": url}, ".flightsql_endpoint: must be a URL such as")
            for url in (
                *("127.0.0.1:50051", "grpc://host", "grpc://host:x", "https://host:1/path"),
                *(f"grpc://u:{SECRET}@host:1", f"grpc://host:1?token={SECRET}"),
            )
        ),
        (
            {"flightsql_endpoint": f"grpc://u:{TOKEN}@host:1"},
            "found a string (put the user and password in flightsql_username and flightsql_password)",
        ),
        (
            {"flightsql_endpoint": "grpc://host:1", "flightsql_username": "u"},
            ": has only one of flightsql_username and flightsql_password",
        ),
        (
            {**FLIGHTSQL, "flightsql_tls_root_certificate_file": "ca.pem"},
            ": has flightsql_tls_root_certificate_file, but flightsql_endpoint has no TLS",
        ),
        (
            {**FLIGHTSQL, "flightsql_token": TOKEN, "flightsql_username": "u", "flightsql_password": TOKEN},
            ": has both flightsql_token and flightsql_username or flightsql_password: remove one",
        ),
        ({**FLIGHTSQL, "flightsql_token": f"{TOKEN}-é"}, "found a string (printable ASCII)"),
    ),
}
