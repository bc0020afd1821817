"""
Serve public Spicepods, to check that accepted Spicepods also work.

Download some as described in `benchmarks.spicepods`, and run `python -m benchmarks.served_spicepods DIRECTORY...`, with
requirements/test.txt and MariaDB installed.

Each Spicepod that is accepted, and whose datasets are files, S3 objects or tables of a database that runs here, is
served from a source with generated rows. Only addresses, logins and placeholders are changed. The results of SQL are
compared with the data of the source.
"""

import logging
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import trustme
import yaml
from pyarrow import csv

from benchmarks.spicepods import STORE, reasons, spicepods
from tests.connectors.moto_server import S3Server, s3_server
from tests.connectors.mysql.mariadb_server import MariadbServer
from tests.connectors.postgres.postgres_server import PostgresServer
from tests.system.harness import Server, clean_environ, free_port, wait_for

_ROWS = 1000
_COLUMNS = {
    "id": "range::BIGINT",
    "email": "'caller' || range || '@example.com'",
    "name": "'name ' || range",
    "count": "range % 7",
    "product_id": "range % 50",
    "passenger_count": "range % 4",
    "trace_id": "'trace' || range",
    "updated_at": "TIMESTAMP '2024-01-01 00:00:00' + to_seconds(range::BIGINT)",
    "tpep_pickup_datetime": "TIMESTAMP '2024-01-01 00:00:00' + to_minutes(range::BIGINT)",
}

#: Columns that a table of a Spicepod with a view does not have.
_WITHOUT = {"products": {"count"}}

#: What is compared: the types of these columns are the same in every source.
_COMPARED = "id, email, passenger_count"


class Sources:
    """The servers, each with a login, and the rows that every table contains."""

    def __init__(self, stack: ExitStack) -> None:
        made = ", ".join(f'{sql} AS "{name}"' for name, sql in _COLUMNS.items())
        with duckdb.connect() as connection:
            self.held: pa.Table = connection.table_function("range", [_ROWS]).project(made).to_arrow_table()
        self._s3: S3Server = stack.enter_context(s3_server())
        self._postgres = PostgresServer(self._directory(stack))
        self._postgres.start()
        stack.callback(self._postgres.stop)
        self._mariadb = MariadbServer(self._directory(stack), trustme.CA())
        stack.callback(self._mariadb.stop)
        self._made: set[str] = set()

    @staticmethod
    def _directory(stack: ExitStack) -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="querykeep-")))

    def hold(self, location: str, params: Mapping[str, str], directory: Path) -> tuple[str, dict[str, str]] | None:
        """Write the rows to *location*. Return `from:` and the `params` to use, or None without such a source."""
        kind, _, name = location.partition(":")
        kept = {key: value for key, value in params.items() if not re.match("(pg|mysql|s3)_", key)}
        name = "table_of_caller" if name.startswith("[") else name
        match kind:
            case "localpod":
                pass
            case "file":
                write = csv.write_csv if params.get("file_format") == "csv" else pq.write_table
                write(self.held, directory / name)
            case "s3":
                self._put(name.removeprefix("//"))
                kept |= self._s3.params
            case "duckdb":
                with duckdb.connect(directory / params["duckdb_open"]) as connection:
                    connection.register("held", self.held)
                    connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM held")
            case "postgres":
                self._create(f"postgres.{name.removeprefix('public.')}", name, self._postgres.run, "timestamp")
                kept |= self._postgres.params
            case "mysql":
                name = name.rpartition(".")[2]
                self._create(f"mysql.{name}", name, self._mariadb.run, "datetime(6)")
                kept |= self._mariadb.params
            case _:
                return None
        return f"{kind}:{name}", kept

    def _put(self, name: str) -> None:
        bucket, _, key = name.partition("/")
        if name not in self._made:
            self._made.add(name)
            sink = pa.BufferOutputStream()
            pq.write_table(self.held, sink)
            with closing(self._s3.client()) as client:
                client.create_bucket(Bucket=bucket)
                key = f"{key}part-0.parquet" if key.endswith("/") else key
                client.put_object(Bucket=bucket, Key=key, Body=sink.getvalue().to_pybytes())

    def _create(self, place: str, table: str, run: Any, timestamp: str) -> None:
        if place in self._made:
            return
        self._made.add(place)
        kinds = {pa.string(): "varchar(60)", pa.timestamp("us"): timestamp}
        quote = "`" if place.startswith("mysql") else '"'
        held = self.held.drop_columns(list(_WITHOUT.get(table.rpartition(".")[2], ())))
        columns = ", ".join(f"{quote}{field.name}{quote} {kinds.get(field.type, 'bigint')}" for field in held.schema)
        rows = ", ".join(
            "(" + ", ".join(str(value) if isinstance(value, int) else f"'{value}'" for value in row.values()) + ")"
            for row in held.to_pylist()
        )
        run(f"CREATE TABLE {table} ({columns})", f"INSERT INTO {table} VALUES {rows}")


def serve(text: str, sources: Sources, directory: Path) -> list[str] | None:
    """Return what differs from the source, dataset by dataset; None if a source of *text* does not run here."""
    text = STORE.sub("env", text)
    config = yaml.safe_load(re.sub(r": (\[[^\]\n,]+\])[ \t]*$", r": '\1'", text, flags=re.MULTILINE))
    for dataset in config.get("datasets") or []:
        held = sources.hold(re.sub(r"\[.*", "[placeholder]", dataset["from"]), dataset.get("params") or {}, directory)
        if held is None:
            return None
        dataset["from"], dataset["params"] = held
        dataset["name"] = re.sub(r"[\[\]]", "", dataset["name"])
        if not dataset["params"]:
            del dataset["params"]
    if not config.get("datasets"):
        return None
    port = free_port()
    config.setdefault("runtime", {}).update(
        http={"bind": f"127.0.0.1:{port}"}, flight={"enabled": False}, query={"workers": 1}
    )
    server = Server(directory, text=yaml.safe_dump(config, sort_keys=False), port=port, wait_ready=False)
    server.environ = clean_environ()
    with server:
        try:
            wait_for(lambda: server.answers("/v1/ready"), "the datasets")
        except AssertionError:
            return [server.output()[-2000:]]
        return list(_differences(config, server, sources.held))


def _differences(config: Mapping[str, Any], server: Server, held: pa.Table) -> Iterator[str]:
    for dataset in config["datasets"]:
        name = dataset["name"]
        refresh_sql = (dataset.get("acceleration") or {}).get("refresh_sql", f"SELECT * FROM {name}")
        with duckdb.connect() as connection:
            connection.register(name, held)
            sql = f"SELECT {_COMPARED} FROM ({refresh_sql.strip().rstrip(';')}) ORDER BY id"
            rows: pa.Table = connection.sql(sql).to_arrow_table()
        answer = httpx.post(f"{server.url}/v1/sql", content=f"SELECT {_COMPARED} FROM {name} ORDER BY id", timeout=60)
        if answer.status_code != httpx.codes.OK:
            yield f"{name}: {answer.text}"
        elif answer.json() != rows.to_pylist():
            yield f"{name}: {len(answer.json())} rows, the source has {rows.num_rows}"
    for view in config.get("views") or []:
        answer = httpx.post(f"{server.url}/v1/sql", content=f"SELECT * FROM {view['name']}", timeout=60)
        if answer.status_code != httpx.codes.OK:
            yield f"{view['name']}: {answer.text}"


def main(directories: list[str]) -> None:
    """Print what became of each Spicepod."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    texts = dict.fromkeys(text for directory in directories for text in spicepods(Path(directory)))
    right = 0
    with ExitStack() as stack:
        sources = Sources(stack)
        for text in texts:
            with tempfile.TemporaryDirectory() as scratch:
                directory = Path(scratch)
                if reasons(text, directory / "spicepod.yaml"):
                    continue
                found = serve(text, sources, directory)
            if found is None:
                continue
            config = yaml.safe_load(text)
            right += not found
            datasets = ", ".join(str(dataset["from"]) for dataset in config["datasets"])
            sys.stdout.write(f"{config['name']} ({datasets}): {'; '.join(found) or 'same as the source'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{right} Spicepods are served with the rows of their sources.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
