"""Declare datasets of any source, load them, and ask the sources themselves."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from datasources.deadline import Deadline
from datasources.errors import SnapshotError
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from datasources.sources.registry import source_of
from datasources.sources.source import Bound, Wanted
from queryengine.manifest import Snapshot, snapshot_path
from runtimeconf import loader
from runtimeconf.connector import Params
from runtimeconf.fields import ScalarField
from runtimeconf.model import DatasetConfig
from runtimeconf.plugins import CONNECTORS
from runtimeconf.yaml_nodes import Scalar
from tests.datasources.support import builder, deadline, files_below, new_load, refusal, rows
from tests.system.harness import wait_for

# --- datasets ---------------------------------------------------------------------------------------------------------


def table(directory: Path, from_: str, *, name: str = "d", **more: Any) -> DatasetConfig:
    """Declare a dataset as a YAML in *directory* would; *more* are params and fields of the dataset."""
    connector, _, rest = from_.partition(":")
    fields = {key: more.pop(key) for key in ("acceleration", "on_schema_change") if key in more}
    params = CONNECTORS[connector].params
    location = CONNECTORS[connector].locate(connector, rest, directory)
    values = typed(params, more)
    assert params.of(values).problem(location) is None
    return DatasetConfig(
        name=name, from_=from_, connector=connector, location=location, params=values, yaml_path="x", line=1, **fields
    )


def typed(params: type[Params], texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a YAML with these *texts* would give; an empty one stays, which a YAML may not have."""
    values = dict(texts)
    for name, text in texts.items():
        field = params.declared[name].field
        if text != "" and not params.declared[name].is_path and isinstance(field, ScalarField):
            values[name] = field.convert(Scalar(line=1, text=str(text), is_plain=True))
    return values


def build(directory: Path, dataset: DatasetConfig, limit: Deadline | None = None) -> Snapshot:
    return builder(directory).build(Order(dataset), limit or deadline())


def load(directory: Path, dataset: DatasetConfig, sql: str = "") -> list[tuple[Any, ...]]:
    """Load *dataset* and return its rows, or what *sql* gives over it."""
    return rows(directory, build(directory, dataset), sql)


def load_in_process(directory: Path, dataset: DatasetConfig, sql: str, memory_mib: int = 64) -> list[tuple[Any, ...]]:
    """Load *dataset* in a process of its own with little memory, as a runtime does; return what *sql* gives over it."""
    with closing(LoaderProcess(builder(directory, memory_mib))) as process:
        return rows(directory, process.build(Order(dataset), deadline(600.0)), sql)


def check_values(directory: Path, dataset: DatasetConfig, cases: Sequence[tuple[str, str, Collection[str]]]) -> None:
    """
    Load *dataset*, whose columns are *cases*: what the source declares, the engine's type, and the engine's texts of
    the values, without nulls; a load may change the order of rows. Times with a zone are shown in UTC.
    """
    snapshot = build(directory, dataset)
    with duckdb.connect(str(snapshot_path(directory / "state", snapshot)), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for column, (declared, expected, texts) in zip(snapshot.columns, cases, strict=True):
            found = connection.execute(
                f"SELECT {column.name}::VARCHAR FROM d WHERE {column.name} IS NOT NULL"
            ).fetchall()
            assert (declared, column.type, sorted(found)) == (declared, expected, sorted((text,) for text in texts))


def types(directory: Path, dataset: DatasetConfig) -> dict[str, str]:
    """Load *dataset* and return the engine's types of its columns."""
    return {column.name: column.type for column in build(directory, dataset).columns}


def scan(
    directory: Path, dataset: DatasetConfig, *bounds: Bound, columns: str | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names and the rows that the source gives a load that wants *columns* (separated by blanks)."""
    wanted = Wanted(columns=None if columns is None else frozenset(columns.split()), bounds=bounds)
    begun = replace(new_load(directory), wanted=wanted)
    with source_of(dataset).open(begun) as opened, duckdb.connect() as connection:
        found = connection.execute(f"FROM {opened.bind(connection)} ORDER BY ALL")
        return [column[0] for column in found.description], found.fetchall()


def version(directory: Path, dataset: DatasetConfig) -> str:
    """Return the version of the source once it has settled."""

    def settled() -> str | None:
        with source_of(dataset).open(new_load(directory)) as opened, duckdb.connect() as connection:
            opened.bind(connection)
            return opened.version

    found = wait_for(settled, "a version that is settled")
    assert str(directory) not in found
    return found


def has_changed(directory: Path, dataset: DatasetConfig, version: str) -> bool:
    return source_of(dataset).has_changed(version, new_load(directory))


def time_out_repeatedly(directory: Path, dataset: DatasetConfig, rounds: int, limit_s: float = 0.1) -> None:
    """Load *dataset*, whose server never answers, again and again: the time limit holds and nothing is left."""
    made = builder(directory)

    def leftovers() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def one() -> None:
        with pytest.raises(SnapshotError, match=r"was stopped after .* the refresh_timeout"):
            made.build(Order(dataset), deadline(limit_s))

    one()
    before = leftovers()
    for _ in range(rounds - 1):
        one()
    # Other tests' connections may end or a library start a thread meanwhile; what a load leaves, each leaves. A library
    # may end its threads a moment later.
    wait_for(
        lambda: all(now - then < rounds // 2 for now, then in zip(leftovers(), before, strict=True)),
        "threads and files to go",
    )
    assert files_below(directory) == []


#: Runs statements on a database, holds it open until its standard input ends, and dies without closing it.
_HOLDER = """
import importlib, os, sys
connection = importlib.import_module(sys.argv[1]).connect(sys.argv[2])
for statement in sys.argv[3:]:
    connection.execute(statement)
print("held", flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def held(path: Path, *statements: str, by: str) -> Iterator[None]:
    """Run *statements* with the library *by* in a process of its own, which dies at the end of the block."""
    command = [sys.executable, "-c", _HOLDER, by, str(path), *statements]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield


@contextmanager
def server_of_another_protocol() -> Iterator[int]:
    """Run a server that answers one client in HTTP, whatever it says; give its port."""

    def answer() -> None:
        with server.accept()[0] as client:
            client.recv(100)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(answer)
        yield server.getsockname()[1]


# --- datasets of a YAML -----------------------------------------------------------------------------------------------


def declared(directory: Path, source: str, params: Mapping[str, Any]) -> DatasetConfig:
    """Load a YAML in *directory* that declares the dataset d, and return it."""
    dataset = {"from": source, "name": "d"} | ({"params": dict(params)} if params else {})
    document = {"runtime": {"state_dir": "state", "query": {"memory_limit": "256MiB"}}, "datasets": [dataset]}
    file = directory / "runtime.yaml"
    file.write_text(json.dumps(document))
    file.chmod(0o600)
    (found,) = loader.load(file, {}).datasets
    return found


def loaded(directory: Path, source: str, **params: Any) -> list[tuple[Any, ...]]:
    return load(directory, declared(directory, source, params))


def refused(directory: Path, source: str, **params: str) -> str:
    """As `support.refusal`."""
    return refusal(directory, declared(directory, source, params))


def version_of(directory: Path, source: str, **params: str) -> str | None:
    """Return the version that a source gives at once."""
    with source_of(declared(directory, source, params)).open(new_load(directory)) as opened:
        return opened.version
