"""Where the datasets of each connector are, by `from`, and that no fault shows a password."""

from pathlib import Path

import pytest

from runtimeconf.dataset_schema import ABSENT
from runtimeconf.tables import table_parts
from tests.runtimeconf.configurations import NO_REFERENCE, SECRET, Fault, Load, dataset_text, load_dataset, required

DATABASES = ("postgres", "mysql", "mssql", "duckdb", "flightsql", "spark")


@pytest.mark.parametrize(
    ("source", "location"),
    [
        ("https://host/a.csv", "https://host/a.csv"),
        ("http://HOST:8080/a b/ü.csv", "http://host:8080/a%20b/%C3%BC.csv"),
        ("https://[::1]:443/a%20b@c:d.csv", "https://[::1]:443/a%20b@c:d.csv"),
        ("https://[::1]/a", "https://[::1]/a"),
        ("https://host", "https://host/"),
        ("s3://bucket/a.csv", "s3://bucket/a.csv"),
        ("s3://bucket", "s3://bucket/"),
        ("s3://my_Old.Bucket/d/ü b%20?c#*.csv", "s3://my_Old.Bucket/d/ü b%20?c#*.csv"),
        ("s3://bucket//a@b:c.csv", "s3://bucket//a@b:c.csv"),
        ("gs://bucket/d/ü b%20?c#*.csv", "gs://bucket/d/ü b%20?c#*.csv"),
        ("gcs://bucket", "gs://bucket/"),
        ("ftp://HOST:2121//d/ü b%20?c#*.csv", "ftp://host:2121/d/ü b%20?c#*.csv"),
        ("sftp://[::1]/a", "sftp://[::1]/a"),
        ("abfss://box@account.dfs.core.windows.net/d/*.csv", "abfss://box@account.dfs.core.windows.net/d/*.csv"),
        ('duckdb:main."a=b@c"', 'main."a=b@c"'),
        ('mysql:Shop."a.b"', 'Shop."a.b"'),
        ('mssql:Shop.dbo."a.]b"', 'Shop.dbo."a.]b"'),
        ("sqlite:data/a.db", "{directory}/data/a.db"),
        ("sqlite://data/a.db", "{directory}/data/a.db"),
        ("sqlite:/data/a.db", "/data/a.db"),
        *(
            (f"sqlite:{path}", str(Path("{directory}") / path))
            for path in ("/d/a:b@c/a.db", "d/a@b.db", "k=v/what?.db", "a:b.db")
        ),
        *(
            (f"file:{path}", "{directory}/" + path.removeprefix("//"))
            for path in (
                *("//a@b/c.parquet", "a:b@c.parquet", "data/20??/year=*/a.parquet", "a b@c:d/e.csv", "//a.csv"),
                *("a.csv", "data/", "./a.csv", "data/*.csv"),
            )
        ),
        ("file:/data/a.csv", "/data/a.csv"),
        ("file:///data/a.csv", "/data/a.csv"),
        *(
            (f"{connector}:{text}", location)
            for connector in ("delta", "delta_lake", "iceberg")
            for text, location in (
                ("a b/t", "{directory}/a b/t"),
                ("/data/t/", "/data/t"),
                ("file:///data/t", "/data/t"),
                ("s3://lake/a b/t//", "s3://lake/a b/t"),
                ("s3a://lake/t", "s3://lake/t"),
                ("s3://Old_Lake/t", "s3://Old_Lake/t"),
            )
        ),
    ],
)
def test_valid_locations(load_text: Load, tmp_path: Path, source: str, location: str) -> None:
    dataset = load_dataset(load_text, source, required(source))

    assert (dataset.from_, dataset.location) == (source, location.replace("{directory}", str(tmp_path)))
    assert dataset.params.keys() == required(source).keys()


NO_USER = "remove the user, password or port before the path: anyone who can list the datasets can see it"
NO_QUERY = "remove the query after the path: anyone who can list the datasets can see it"
NO_BUCKET = "write only the bucket name before the key: use s3_key, s3_secret and s3_endpoint for the rest"
NO_CREDENTIALS = "; put a part that contains = or @ in double quotes"

INVALID_LOCATIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "file: and the path of a file": (
        (f"file://user:{SECRET}@host/a.parquet", "remove the user and password before the path: anyone who can list"),
        *(
            (source, "a file, a directory or a glob (there is no path after the colon)")
            for source in ("file:", "file://", "file: ")
        ),
    ),
    "https: and the rest of the URL of a file, such as //host/data/flights.parquet": (
        (f"https://user:{SECRET}@host/a.csv", "remove the user and password before the host: use the params for these"),
        (f"https://{SECRET}@host/a.csv", "remove the user and password before the host: use the params for these"),
        (
            f"https://host/a.csv?token={SECRET}",
            "anyone who can list the datasets can see it: set the query in params.http_query",
        ),
        (
            f"https://host/a.csv#{SECRET}",
            "anyone who can list the datasets can see it: set the query in params.http_query",
        ),
        ("https://host:0/a.csv", "ports range from 1 to 65535"),
        ("https://host:70000/a.csv", "ports range from 1 to 65535"),
        ("https://ho st/a.csv", "not a host name"),
        ("https://1.2.3/a.csv", "not an IPv4 address"),
        ("https:///a.csv", "not a host and a port"),
        ("https://[::1/a.csv", "not a host and a port"),
        ("https://[]/a.csv", "not a host and a port"),
        ("https:host/a.csv", "a URL begins with http:// or https://"),
        ("https:", "a URL begins with http:// or https://"),
    ),
    "s3: and a bucket with a key, a prefix or a glob, such as //bucket/data/flights.parquet": (
        (f"s3://AKIA:{SECRET}@bucket/a.csv", NO_BUCKET),
        (f"s3://{SECRET}@bucket/a.csv", NO_BUCKET),
        ("s3://bucket:9000/a.csv", NO_BUCKET),
        (f"s3:AKIA:{SECRET}@bucket", "write s3:// before the bucket"),
        ("s3:bucket/a.csv", "write s3:// before the bucket"),
        ("s3:///a.csv", "not a bucket name"),
        ("s3://b/a.csv", "not a bucket name"),
        ("s3://..bucket/a.csv", "not a bucket name"),
        ("s3://bucket/" + "ü" * 513, "keys are limited to 1,024 bytes"),
    ),
    "gs: and a bucket with a key, a prefix or a glob, such as //bucket/data/flights.parquet": (
        (f"gs://{SECRET}@bucket/a.csv", "not a bucket name; write only the bucket name before the key"),
        ("gs:bucket/a.csv", "write gs:// before the bucket"),
        ("gs://bucket/" + "ü" * 513, "keys are limited to 1,024 bytes"),
    ),
    "abfss: and a container with a path, a directory or a glob, such as //container/data/flights.parquet": (
        (f"abfss://u:{SECRET}@account.dfs.core.windows.net/a.csv", "not a container name"),
        (f"abfss://box@{SECRET}/a.csv", "use abfs_endpoint for another server"),
        ("abfss://box@169.254.169.254/a.csv", "use abfs_endpoint for another server"),
        ("abfss://box@account.dfs.core.windows.net.example.org/a.csv", "use abfs_endpoint for another server"),
        (f"abfss://box/a.csv?sv=1&sig={SECRET}", "remove the signature after the path"),
        ("abfss:box/a.csv", "write abfss:// before the container"),
        ("abfss://box/" + "ü" * 2049, "paths are limited to 4,096 bytes"),
    ),
    "delta: and the directory of a table": (
        ("delta:", "(there is no path after the colon)"),
        (f"delta:s3://{SECRET}@lake/t", NO_BUCKET),
        (f"delta:file://u:{SECRET}@h/t", NO_USER),
        (f"delta://{SECRET}@h/t", NO_USER),
        (f"delta:t?token={SECRET}", NO_QUERY),
        (f"delta:s3://lake/t?token={SECRET}", NO_QUERY),
        ("delta:s3://a..b/t", "not a bucket name"),
        ("delta:s3://lake", "write a prefix within the bucket, without .."),
        ("delta:s3://lake/", "write a prefix within the bucket, without .."),
        ("delta:s3://lake/a/../../b", "write a prefix within the bucket, without .."),
        (f"delta:https://{SECRET}@host/t", "only s3://bucket/prefix URLs are supported"),
    ),
    "sqlite: and the path of a database file": (
        ("sqlite:", "(there is no path after the colon)"),
        *((f"sqlite:{path}", NO_USER) for path in (f"//u:{SECRET}@h/a.db", f"//{SECRET}@h/a.db", "//h:80/a.db")),
        (f"sqlite:u:{SECRET}@h/a.db", NO_USER),
        *((f"sqlite:{path}?{SECRET}={SECRET}", NO_QUERY) for path in ("a.db", "file:a.db?mode=ro&", "//a.db?a/b")),
    ),
    **{
        f"{connector}: and the name of a table or view, such as ": (
            *((f"{connector}:{table}", "") for table in ("", ".", "a.", ".a", "a..b", '"a', 'a"b', '""', '"a"b')),
            (f"{connector}:a.b.c.d", "(at most "),
            *((f"{connector}:{url}", "(not a URL: ") for url in (f"//user:{SECRET}@host/db", f"a://{SECRET}@host")),
            (f"{connector}:md:?motherduck_token={SECRET}", NO_CREDENTIALS),
            (f"{connector}:u:{SECRET}@host", NO_CREDENTIALS),
            (f'{connector}:host=h "a b" password={SECRET}', NO_CREDENTIALS),
        )
        for connector in DATABASES
    },
    "a connector and where the data is": (
        (f"mariadb://user:{SECRET}@host/db", "it uses the MySQL protocol: write mysql:)"),
        (f"S3://{SECRET}@bucket", ""),
        (f"smb:{SECRET}", ""),
        ("snowflake:x", f"(the connector snowflake is not supported; {ABSENT['snowflake']})"),
        *((source, "(write file: before a path)") for source in ("FILE:a.csv", "data/a.csv", "file")),
        (
            "file:${ env:x }",
            NO_REFERENCE,
        ),
    ),
}


@pytest.mark.parametrize(
    ("expected", "source", "hint"),
    [(expected, *case) for expected, cases in INVALID_LOCATIONS.items() for case in cases],
)
def test_an_invalid_location_is_a_fault_and_not_shown(fault: Fault, expected: str, source: str, hint: str) -> None:
    message = fault(dataset_text(source, required(source)), {"TOKEN": SECRET})

    assert message.startswith(f"1: datasets[0].from: must be {expected}")
    assert hint in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("t",)),
        ("a.b.c", ("a", "b", "c")),
        ('"a.b"."c ""d"""', ("a.b", 'c "d"')),
        ("My Table", ("My Table",)),
        ("ünï.$t", ("ünï", "$t")),
    ],
)
def test_a_table_name_has_parts(text: str, parts: tuple[str, ...]) -> None:
    assert table_parts(text) == parts
