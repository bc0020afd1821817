"""Checks R07 and R18 over a whole runtime: files made to harm, and damage on the disk, never give a wrong answer."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runtimeconf.model import GIB, MIB
from tests.datasources.hostile import Parquet, gzip_bomb, sparse
from tests.system.harness import Server, wait_for
from tests.system.test_data import CHECKSUM, OLD

#: What is said of each: it is refused for what it is, or stopped at the memory that a load may take.
SAID = {
    # Which limit a line without end meets first depends on the memory that is free.
    "line.csv": "memory_limit|longer than 2 MB",
    "lines.csv.gz": "memory_limit|longer than 2 MB",
    "object.ndjson": "an object is larger than 16 MB",
    "page.parquet": "query.memory_limit",
    "index.parquet": "the engine cannot read it as Parquet",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a runtime with one good dataset and the hostile ones, which it goes on trying to load."""
    directory = tmp_path_factory.mktemp("hostile")
    sparse(directory / "line.csv", b"a\n1\n", GIB)
    gzip_bomb(directory / "lines.csv.gz", b'a\n1\n"', b"x\n" * 8 * MIB, 24)
    sparse(directory / "object.ndjson", b'{"a":', GIB)
    (directory / "page.parquet").write_bytes(replace(Parquet(), uncompressed=2**31 - 1).content())
    (directory / "index.parquet").write_bytes(replace(Parquet(), body=b"\x02\x03\xff\xff").content())
    hostile = [{"from": f"file:{file}", "name": file.partition(".")[0]} for file in SAID]
    changes = {
        "runtime": {"query": {"memory_limit": "64MiB", "workers": 2}},
        "datasets": [{"from": "file:orders.parquet", "name": "orders", "acceleration": {"enabled": True}}, *hostile],
    }
    with Server(directory, changes=changes, wait_ready=False) as running:
        wait_for(lambda: running.sql(CHECKSUM).status_code == 200, "the good dataset")
        yield running


def states(server: Server) -> dict[str, dict[str, Any]]:
    return {row["from"].removeprefix("file:"): row for row in server.listed("/v1/datasets")}


@pytest.mark.exhaustive
def test_r07_hostile_files_leave_statements_alone(server: Server) -> None:
    seen = []

    def errors() -> dict[str, str]:
        return {file: row["error"] for file, row in states(server).items() if row["error"]}

    while not SAID.keys() <= errors().keys():
        seen.append(server.rows(CHECKSUM))
    seen.append(server.rows(CHECKSUM))

    found = errors()
    assert all(rows == OLD for rows in seen)
    assert {file for file, said in SAID.items() if re.search(said, found[file])} == set(SAID)
    assert not any(str(server.directory) in error for error in found.values())
    assert server.get("/health").status_code == 200


@pytest.mark.exhaustive
def test_r18_a_snapshot_damaged_while_it_is_served_gives_no_wrong_row_and_the_next_refresh_replaces_it(
    server: Server,
) -> None:
    before = states(server)["orders.parquet"]["snapshot"]
    snapshot = server.directory / ".runtime" / "snapshots" / f"{before}.duckdb"
    content = snapshot.read_bytes()
    with snapshot.open("r+b") as file:
        for at in range(20_000, len(content), 4096):
            file.seek(at)
            file.write(bytes([content[at] ^ 0xFF]))

    answers = [server.sql(CHECKSUM) for _ in range(3)]
    assert server.ask_refresh().status_code == 201
    # The damage may have been noticed first: then there is none until the data is loaded again.
    wait_for(lambda: states(server)["orders.parquet"]["snapshot"] not in {before, None}, "another snapshot")

    # What a worker had read before is whole.
    assert all(answer.status_code == 503 or answer.json() == OLD for answer in answers)
    assert server.rows(CHECKSUM) == OLD
