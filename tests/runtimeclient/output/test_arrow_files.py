import io
import os
import struct
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtimeclient.http.results import ARROW
from tests.runtimeclient.calling import Called, Screen, call
from tests.runtimeclient.remote import Remote, Reply

TABLE: Any = pa.table({"n": pa.array([1, 2, None]), "text": pa.array(["a", "é", None]).dictionary_encode()})
_END = b"\xff\xff\xff\xff\0\0\0\0"


def stream_of(table: Any, batch_rows: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def ask(remote: Remote, file: Path, body: bytes, *arguments: str) -> Called:
    remote.on_sql(Reply(body=body, content_type=ARROW))
    return remote.call("sql", "x", "--output", str(file), *arguments)


def test_arrow_and_parquet_files_hold_the_result(remote: Remote, tmp_path: Path) -> None:
    arrow, parquet = tmp_path / "a.arrow", tmp_path / "a.parquet"

    for file in (arrow, parquet):
        assert ask(remote, file, stream_of(TABLE, 2)) == Called(0, "", "")

    assert pa.ipc.open_file(arrow).read_all().equals(TABLE)
    assert pq.read_table(parquet).to_pydict() == TABLE.to_pydict()
    assert ask(remote, parquet, stream_of(TABLE.slice(0, 0))).status == 0
    assert pq.read_table(parquet).column_names == ["n", "text"]
    ask(remote, parquet, stream_of(pa.table({"n": pa.array(range(300_000), pa.int32())}), 2048))
    written = pq.ParquetFile(parquet).metadata
    assert (written.num_rows, written.num_row_groups) == (300_000, 3)
    assert {request.headers["Accept"] for request in remote.requests if request.method == "POST"} == {ARROW}


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_values_beyond_arrows_limits_are_written_as_they_are(remote: Remote, tmp_path: Path, name: str) -> None:
    sql = "SELECT TIME '24:00:00' AS t, 170141183460469231731687303715884105727::HUGEINT AS h"
    relation: Any = duckdb.sql(sql)
    table = relation.to_arrow_table()

    assert ask(remote, tmp_path / name, stream_of(table)).status == 0

    path = tmp_path / name
    written: Any = pq.read_table(path) if name == "a.parquet" else pa.ipc.open_file(path).read_all()
    assert [column.chunk(0).buffers()[1].to_pybytes()[:16] for column in written.columns] == [
        column.chunk(0).buffers()[1].to_pybytes()[:16] for column in table.columns
    ]


def test_files_are_written_into_pipes(remote: Remote) -> None:
    for format_ in ("arrow", "parquet"):
        reader, writer = os.pipe()
        try:
            done = ask(remote, Path(f"/dev/fd/{writer}"), stream_of(TABLE), "--format", format_)
            content = io.BytesIO(os.read(reader, 1 << 16))
        finally:
            os.close(reader)
            os.close(writer)
        read = pa.ipc.open_file(content).read_all() if format_ == "arrow" else pq.read_table(content)
        assert (done, read.to_pydict()) == (Called(0, "", ""), TABLE.to_pydict())


def patched(body: bytes, offset: int, value: bytes) -> bytes:
    return body[:offset] + value + body[offset + len(value) :]


WHOLE = stream_of(TABLE)
SCHEMA = stream_of(TABLE.slice(0, 0))[: -len(_END)]


def _with_body_length(length: int) -> bytes:
    """A message of the kind of a record batch whose body is said to be that long (Message.fbs)."""
    # A table of four fields: version, header_type, header, bodyLength.
    vtable = struct.pack("<6H", 12, 24, 4, 6, 8, 16)
    header = struct.pack("<HH", 4, 4) + struct.pack("<i", 4)
    table = struct.pack("<iHBxI4xq", len(vtable), 4, 3, 24, length)
    content = struct.pack("<I", 4 + len(vtable)) + vtable + table + header
    content += b"\0" * (-len(content) % 8)
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(content)) + content


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(WHOLE[:-20], "it is cut off", id="cut in a body"),
        pytest.param(WHOLE[:300], "it is cut off", id="cut in the schema"),
        pytest.param(WHOLE[:3], "it is cut off", id="cut in a head"),
        pytest.param(WHOLE + b"x", "data follows its end", id="more"),
        pytest.param(b"[{}]" * 100, "a message has an invalid prefix", id="JSON"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\xff\x7f", "a message has an invalid prefix", id="endless metadata"),
        pytest.param(b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8, "a message cannot be read", id="broken metadata"),
        pytest.param(SCHEMA + _with_body_length(1 << 60), "longer than 256 MiB", id="endless body"),
        pytest.param(SCHEMA + _with_body_length(-1), "longer than 256 MiB", id="negative body"),
        pytest.param(stream_of(TABLE, compression="zstd"), "it is compressed", id="compressed"),
        pytest.param(b"", "", id="nothing"),
    ],
)
def test_an_invalid_stream_leaves_no_file(remote: Remote, tmp_path: Path, body: bytes, said: str) -> None:
    done = ask(remote, tmp_path / "a.parquet", body)

    assert done.status == 3
    assert done.err.startswith("Error: The result is not a valid Arrow stream: ")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_stream_is_an_error_or_a_readable_file(remote: Remote, tmp_path: Path) -> None:
    """Whatever byte of the frame is changed: an error, or a file that is one."""
    file = tmp_path / "a.parquet"
    for offset in range(0, len(WHOLE), 23):
        done = ask(remote, file, patched(WHOLE, offset, b"\xff"))
        assert done.status in {0, 1, 3}, done
        if done.status == 0:
            pq.read_table(file)
            file.unlink()
        assert list(tmp_path.iterdir()) == []


def test_a_type_unknown_to_parquet_is_an_error(remote: Remote, tmp_path: Path) -> None:
    table = pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})

    done = ask(remote, tmp_path / "a.parquet", stream_of(table))

    assert done.status == 1
    assert done.err.startswith("Error: This result cannot be written as parquet: ")


def test_a_binary_format_needs_a_file_and_holds_one_result(remote: Remote, tmp_path: Path) -> None:
    script = tmp_path / "a.sql"
    script.write_text("SELECT 1; SELECT 2;")
    remote.on_sql(Reply(body=WHOLE, content_type=ARROW))
    file = tmp_path / "a.arrow"

    two = remote.call("sql", "-f", str(script), "-o", str(file))
    none = call("sql", "x", "--format", "parquet", out=Screen())

    assert "can hold the result of one statement only" in two.err
    assert not file.exists()
    assert none == Called(2, "", "Error: The format parquet needs a file: name one with --output.\n")
