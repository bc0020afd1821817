"""Tables in buckets, read from a server of S3."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from connectors.bucket import StoredObject
from connectors.lake_s3 import s3_root
from connectors.s3_bucket import S3Bucket
from datasources.errors import SnapshotError, SourceError
from datasources.snapshots.snapshot import Order
from runtimeconf.model import DatasetConfig
from runtimeconf.s3_params import S3Params
from tests.connectors.delta.delta_tables import HandMade, field
from tests.connectors.iceberg.iceberg_tables import SqliteCatalog
from tests.connectors.moto_server import S3Server, s3_server
from tests.datasources import support
from tests.datasources.sources.loads import has_changed, load, table, typed, version
from tests.datasources.support import deadline
from tests.web_server import File, serving


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        started.client().create_bucket(Bucket="lake")
        yield started


def delta(directory: Path, url: str, server: S3Server) -> DatasetConfig:
    return table(directory, f"delta:{url}", **server.params)


def write(directory: Path, **columns: object) -> None:
    write_deltalake((directory / "t").as_uri(), pa.table(columns), mode="append", partition_by=["p"])


def upload(client: Any, directory: Path, prefix: str) -> None:
    """Copy all files below *directory* into the bucket."""
    for path in directory.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "lake", f"{prefix}/{path.relative_to(directory)}")


def refusal(directory: Path, dataset: DatasetConfig) -> str:
    """As `support.refusal`; the address of the server is not shown either."""
    sentence = support.refusal(directory, dataset)
    assert "127.0.0.1" not in sentence
    return sentence


def test_a_delta_table_is_read_and_a_newer_version_is_noticed(tmp_path: Path, server: S3Server) -> None:
    write(tmp_path, n=[1, 2, 3], p=["a b", "ü%", None])
    upload(server.client(), tmp_path / "t", "wh/t 1")
    dataset = delta(tmp_path, "s3://lake/wh/t 1/", server)

    assert load(tmp_path, dataset, "FROM d ORDER BY n") == [(1, "a b"), (2, "ü%"), (3, None)]
    first = version(tmp_path, dataset)
    assert not has_changed(tmp_path, dataset, first)

    write(tmp_path, n=[4], p=["x"])
    upload(server.client(), tmp_path / "t", "wh/t 1")

    assert has_changed(tmp_path, dataset, first)
    assert len(load(tmp_path, dataset)) == 4


def test_an_iceberg_table_is_read_and_a_newer_snapshot_is_noticed(tmp_path: Path, server: S3Server) -> None:
    content = pa.table({"n": [1, 2], "s": ["a", "ü"]})
    catalog = SqliteCatalog(tmp_path)
    made = catalog.make("t 1", content.schema)

    def publish() -> None:
        made.append(content)
        upload(server.client(), catalog.warehouse, "ice")
        here = f"file://{catalog.warehouse}"
        there = catalog.execute("SELECT replace(metadata_location, ?, 's3a://lake/ice') FROM iceberg_tables", here)
        copied.execute("DELETE FROM iceberg_tables")
        copied.execute("INSERT INTO iceberg_tables VALUES ('default', 'ns', 't 1', ?, NULL, NULL)", *there[0])

    (tmp_path / "copy").mkdir()
    copied = SqliteCatalog(tmp_path / "copy")
    publish()
    named = {"iceberg_catalog": str(copied.file), "iceberg_table": "ns.t 1"}
    ways = [
        table(tmp_path, "iceberg:s3://lake/ice/ns/t 1", **server.params),
        table(tmp_path, "iceberg:s3://lake/ice", **server.params, **named),
    ]
    for way in ways:
        assert load(tmp_path, way, "FROM d ORDER BY n") == [(1, "a"), (2, "ü")]
    first = version(tmp_path, ways[0])
    assert not has_changed(tmp_path, ways[1], first)

    publish()

    for way in ways:
        assert has_changed(tmp_path, way, first)
        assert len(load(tmp_path, way)) == 4
    assert "is outside 's3://lake/other'" in refusal(
        tmp_path, table(tmp_path, "iceberg:s3://lake/other", **server.params, **named)
    )
    assert "is not an Iceberg table" in refusal(tmp_path, table(tmp_path, "iceberg:s3://lake/ice", **server.params))


def test_missing_tables_and_files_are_reported(tmp_path: Path, server: S3Server) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")])
    made.commit(made.add("a.parquet"))
    upload(server.client(), made.directory, "gone")

    assert refusal(tmp_path, delta(tmp_path, "s3://lake/nothing", server)) == (
        "'s3://lake/nothing' is not a Delta table: it has no _delta_log."
    )
    assert "the bucket does not exist" in refusal(tmp_path, delta(tmp_path, "s3://no-such-bucket/t", server))
    assert refusal(tmp_path, delta(tmp_path, "s3://lake/gone", server)) == (
        "'a.parquet' of 's3://lake/gone' cannot be read: it does not exist."
    )


ONE = StoredObject("t/a", '"tag"')


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (File(b"bcd", 206, tag='"tag"', headers={"Content-Range": "bytes 1-3/9"}), ""),
        (File(b"bcd", 206, tag='"tag"', headers={"Content-Range": "bytes 2-4/9"}), "a different part"),
        (File(b"bcd", 206, tag='"tag"'), "a different part"),
        (File(b"bc", 206, tag='"tag"', headers={"Content-Range": "bytes 1-3/9"}), "a different part"),
        (File(b"bcde", 206, tag='"tag"', headers={"Content-Range": "bytes 1-3/9"}), "a different part"),
        (File(b"bcd", 206, tag='"new"', headers={"Content-Range": "bytes 1-3/9"}), "changed while it was being read"),
        (File(b"", 412), "changed while it was being read"),
        (File(b"abcdefghi", 200, tag='"tag"'), "'s response is not compatible with S3"),
        (File(b"", 416), "'s response is not compatible with S3"),
    ],
)
def test_only_the_part_that_was_asked_for_is_taken(answer: File, said: str) -> None:
    with serving() as web, S3Bucket("lake", S3Params(s3_endpoint=web.url), deadline()) as bucket:
        web.files["/lake/t/a"] = answer
        if said:
            with pytest.raises(SourceError, match=said):
                bucket.read(ONE, 1, 3)
        else:
            assert bucket.read(ONE, 1, 3) == b"bcd"
            assert bucket.read(ONE, 1, 3) == b"bcd"
            assert len(set(web.clients)) == 1
        assert {(sent["Range"], sent["If-Match"]) for sent in web.requests} == {("bytes=1-3", '"tag"')}


def test_a_file_that_is_replaced_while_it_is_read_ends_the_load(tmp_path: Path, server: S3Server) -> None:
    client = server.client()
    pq.write_table(pa.table({"n": list(range(1000))}), tmp_path / "a.parquet")
    upload(client, tmp_path, "replaced")

    with (
        s3_root("s3://lake/replaced", S3Params.of(typed(S3Params, server.params)), deadline()) as root,
        root.open("a.parquet") as file,
    ):
        opened = pq.ParquetFile(file, pre_buffer=False)
        client.put_object(Bucket="lake", Key="replaced/a.parquet", Body=b"another")
        with pytest.raises(SourceError, match="changed while it was being read"):
            opened.read(use_threads=False)


def test_a_service_that_is_down_or_silent_ends_with_the_refresh_timeout(tmp_path: Path) -> None:
    keys = {"s3_key": "the-key", "s3_secret": "the-secret"}
    down = table(tmp_path, "delta:s3://lake/t", s3_endpoint="http://127.0.0.1:1", **keys)
    assert "the server cannot be reached" in support.refusal(tmp_path, down)

    # The system takes the connections; nobody answers.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        silent = table(tmp_path, "delta:s3://lake/t", s3_endpoint=f"http://127.0.0.1:{port}", **keys)
        with pytest.raises(SnapshotError, match=r"stopped after 0\.3 s, the refresh_timeout"):
            support.builder(tmp_path).build(Order(silent), deadline(0.3))
        assert support.connections_to(port) == 0
    assert support.files_below(tmp_path) == []
