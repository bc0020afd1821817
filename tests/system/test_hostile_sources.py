"""Check R07 over a whole runtime: files made to harm cost their own dataset only, while statements go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from runtimeconf.model import GIB, MIB
from tests.datasets.hostile import Parquet, gzip_bomb, sparse
from tests.system.harness import K1, Server, example_config, free_port
from tests.system.test_data import CHECKSUM, OLD

#: What is said of each: it is refused for what it is, or stopped at the memory that a load may take.
SAID = {
    "line.csv": "query.memory_limit",
    "lines.csv.gz": "query.memory_limit",
    "object.ndjson": "an object is larger than 16 MB",
    "page.parquet": "query.memory_limit",
    "index.parquet": "the engine cannot read it as Parquet",
}


def test_r07_hostile_files_leave_statements_alone(tmp_path: Path) -> None:
    sparse(tmp_path / "line.csv", b"a\n1\n", GIB)
    gzip_bomb(tmp_path / "lines.csv.gz", b'a\n1\n"', b"x\n" * 8 * MIB, 24)
    sparse(tmp_path / "object.ndjson", b'{"a":', GIB)
    (tmp_path / "page.parquet").write_bytes(replace(Parquet(), uncompressed=2**31 - 1).content())
    (tmp_path / "index.parquet").write_bytes(replace(Parquet(), body=b"\x02\x03\xff\xff").content())
    port = free_port()
    config = example_config(port, runtime={"query": {"memory_limit": "64MiB", "workers": 2}})
    config["datasets"] += [{"from": f"file:{file}", "name": file.partition(".")[0]} for file in SAID]
    seen = []

    def errors(server: Server) -> dict[str, Any]:
        answer = server.get("/v1/datasets", headers={"X-API-Key": K1}).json()
        return {row["from"].removeprefix("file:"): row["error"] for row in answer if row["error"]}

    with Server(tmp_path, config=config, port=port, wait_ready=False) as server:
        while not seen or len(errors(server)) < len(SAID):
            answer = server.sql(CHECKSUM)
            # Until orders is loaded, as the first of all, a statement over it is refused.
            if answer.status_code == 200:
                seen.append(answer.json())
        found = errors(server)
        assert server.get("/health").status_code == 200

    assert all(rows == OLD for rows in seen)
    assert {file for file, said in SAID.items() if said in found[file]} == set(SAID)
    assert not any(str(tmp_path) in error for error in found.values())
