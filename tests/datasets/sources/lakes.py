"""What the tests of table formats share: declared tables, what is said about bad ones, and a server of S3."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pytest

from datasets.errors import SourceError
from datasets.sources.registry import source_of
from datasets.sources.source import Load, Wanted
from runtimeconf.connectors import CONNECTORS
from runtimeconf.model import DatasetConfig
from tests.datasets.support import builder, deadline, new_load, rows, wait_for

KEY, SECRET = "the-key-id", "the-secret-key"


def table(directory: Path, from_: str, *, name: str = "d", **more: Any) -> DatasetConfig:
    """Declare a dataset as a YAML in *directory* would; *more* are params and fields of the dataset."""
    connector, _, rest = from_.partition(":")
    fields = {key: more.pop(key) for key in ("acceleration", "on_schema_change") if key in more}
    location = CONNECTORS[connector].locate(rest, directory)
    assert CONNECTORS[connector].check(more) is None
    return DatasetConfig(
        name=name, from_=from_, connector=connector, location=location, params=more, yaml_path="x", line=1, **fields
    )


def load(directory: Path, dataset: DatasetConfig, sql: str = "") -> list[tuple[Any, ...]]:
    """Load *dataset* into a snapshot, and return its rows, or what *sql* gives over it."""
    return rows(directory, builder(directory).build(dataset, None, deadline()), sql)


def scan(
    directory: Path, dataset: DatasetConfig, wanted: Wanted | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and the rows that the source gives a load that wants *wanted*."""
    begun = new_load(directory)
    begun = Load(
        deadline=begun.deadline, scratch=begun.scratch, scratch_bytes=begun.scratch_bytes, wanted=wanted or Wanted()
    )
    with source_of(dataset).open(begun) as opened, duckdb.connect() as connection:
        found = connection.execute(f"FROM {opened.bind(connection)} ORDER BY ALL")
        return [column[0] for column in found.description], found.fetchall()


def version(directory: Path, dataset: DatasetConfig) -> str:
    """Return the version of the source after a load of it."""
    with source_of(dataset).open(new_load(directory)) as opened, duckdb.connect() as connection:
        connection.execute(f"FROM {opened.bind(connection)}").fetchall()
        assert opened.version is not None
        assert str(directory) not in opened.version
        return opened.version


def has_changed(directory: Path, dataset: DatasetConfig, version: str) -> bool:
    return source_of(dataset).has_changed(version, new_load(directory))


def refusal(directory: Path, dataset: DatasetConfig, limit_s: float = 60.0) -> str:
    """Return what is said about a table that is refused: one line without server paths and secrets."""
    with pytest.raises(SourceError) as caught:
        builder(directory).build(dataset, None, deadline(limit_s))
    sentence = str(caught.value)
    for hidden in (str(directory), "/proc", "\n", KEY, SECRET, "127.0.0.1", "Traceback"):
        assert hidden not in sentence
    assert sentence.endswith(".")
    assert list((directory / "state/snapshots").iterdir()) == []
    return sentence


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server of S3 on loopback, which asks for the signature of `KEY`, and give its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            assert process.poll() is None
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        wait_for(answers, "the server of S3")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def s3_client(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
    )


def s3_params(endpoint: str) -> dict[str, str]:
    return {"s3_endpoint": endpoint, "s3_key": KEY, "s3_secret": SECRET}


def upload(client: Any, directory: Path, bucket: str, prefix: str) -> None:
    """Copy all files below *directory* into a bucket."""
    for path in directory.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(directory)}")


@contextmanager
def silent_server() -> Iterator[str]:
    """Run a server that takes connections and never says anything, and give its URL."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        server.settimeout(0.05)
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                try:
                    held.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
            for connection in held:
                connection.close()


def elapsed_since(start: float) -> float:
    return time.monotonic() - start
