"""What `doctor` says of sources: each is asked in a process of its own, which may hang or die."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from datasources.errors import DatasetError
from datasources.refresh.probe import Answer, Question, asked, probe
from datasources.snapshots.snapshot import Order, SnapshotBuilder, fingerprint
from queryengine.manifest import SNAPSHOT_DIRECTORY, Column, Manifest, write_manifest
from runtime_site.doctor.sources import Sources
from runtimeconf.loader import load
from runtimeconf.model import MIB, DatasetConfig, RuntimeConfig
from supervisor import parts
from tests.datasources.sources.web_server import File, WebServer
from tests.datasources.support import deadline, snapshot_of
from tests.runtime_site.doctor.examining import examine, shown, write


@contextmanager
def silent_server() -> Iterator[int]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def dataset(name: str, source: str, **more: str) -> str:
    fields = "".join(f", {field}: {value}" for field, value in more.items())
    return f"  - {{from: '{source}', name: {name}{fields}}}\n"


def serve(config: RuntimeConfig, *columns: Column) -> None:
    """Publish data with these *columns* for each dataset."""
    (config.state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True, exist_ok=True)
    config.state_dir.chmod(0o700)
    snapshots = []
    for one in config.datasets:
        (config.state_dir / SNAPSHOT_DIRECTORY / f"{one.name}.duckdb").write_bytes(b"x")
        snapshots.append(snapshot_of(one.name, source=fingerprint(one), columns=columns))
    write_manifest(config.state_dir, Manifest(generation=1, snapshots=tuple(snapshots)))


def test_each_source_is_judged_on_its_own(tmp_path: Path, web: WebServer) -> None:
    web.files["/a.csv"] = File(b"id,name\n1,a\n")
    web.files["/b.csv"] = File(b"id,price\n1,2.5\n")
    web.files["/closed.csv"] = File(b"no", status=401)
    (tmp_path / "good.csv").write_text("id,name\n1,a\n")
    with silent_server() as port:
        text = "datasets:\n" + "".join(
            (
                dataset("good", "file:good.csv"),
                dataset("absent", "file:absent.csv"),
                dataset("web", f"{web.url}/a.csv"),
                dataset("drifted", f"{web.url}/b.csv"),
                dataset("accepted", f"{web.url}/b.csv", on_schema_change="accept"),
                dataset("closed", f"{web.url}/closed.csv"),
                dataset("silent", f"http://127.0.0.1:{port}/a.csv", params="{client_timeout: 100ms}"),
            )
        )
        config = load(write(tmp_path, text + "views: [{name: v, sql: SELECT nmae FROM good}]\n"), {})
        serve(config, Column(name="id", type="BIGINT"), Column(name="name", type="VARCHAR"))
        code, found = examine(config.file, timeout=30.0)

    assert code == 1
    said = {one.about.removeprefix("dataset "): one.level + " " + one.text for one in found}
    assert said["good"] == said["web"] == "ok The source answers with the 2 columns that are served."
    assert said["absent"] == "error The source cannot be read: 'absent.csv' does not exist."
    assert said["drifted"].startswith("error The columns of drifted changed (name is gone, price is new)")
    assert said["accepted"].startswith("note The columns of the source have changed; the next refresh takes")
    assert "the server requires other credentials" in said["closed"]
    assert "the server was silent for 0.1 s, the client_timeout" in said["silent"]
    assert 'Referenced column "nmae" not found' in said["sql"]
    # The server says that it is two days ago.
    assert shown(found, "clock", "error")[0].startswith(f"error clock: The clock of {web.url} is ")


@pytest.mark.exhaustive
def test_an_unchanged_source_is_not_read_again(tmp_path: Path, web: WebServer) -> None:
    web.files["/a.csv"] = File(b"id,name\n1,a\n")
    config = load(write(tmp_path, "datasets:\n" + dataset("orders", f"{web.url}/a.csv")), {})
    (config.state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True, mode=0o700)
    config.state_dir.chmod(0o700)
    builder = SnapshotBuilder.of(config)
    snapshot = builder.build(Order(config.datasets[0]), deadline())
    builder.close()
    assert snapshot is not None
    write_manifest(config.state_dir, Manifest(generation=1, snapshots=(snapshot,)))
    loaded = len(web.targets)

    _, found = examine(config.file)

    assert shown(found, "dataset orders")[0].startswith("ok dataset orders: The source answers, and has not changed")
    assert web.targets[loaded:] == ["/a.csv", "/"]  # conditional, and the time
    assert "If-None-Match" in web.requests[loaded]


@pytest.mark.parametrize(
    ("answer", "connector", "says"),
    [
        (Answer(is_hung=True), "file", "error dataset d: The process that read the source died: its library has a"),
        (
            Answer(is_hung=True, is_late=True),
            "file",
            "error dataset d: The source does not answer within 9 s: it hangs.",
        ),
        (
            Answer(is_late=True),
            "file",
            "warning dataset d: The source answers, but its columns could not be read within",
        ),
        (Answer(is_late=True), "https", "warning dataset d: The source answers, but its columns could not be read"),
        (Answer(is_late=True), "postgres", "error dataset d: The source does not answer within 9 s."),
        (Answer(is_late=True, is_reached=True), "postgres", "warning dataset d: The source answers, but its columns"),
        (
            Answer(faults=(("from", "'x' has more bytes than query.temp_directory_limit allows."),)),
            "https",
            "note dataset d: The source answers. It has more than 256 MiB, so its columns were not read.",
        ),
        (
            Answer(faults=(("time_column", "No."),)),
            "file",
            "error dataset d: No. Correct /a.yaml:3: datasets[0].time_column",
        ),
        (Answer(columns=()), "file", "ok dataset d: The source answers with 0 columns; the dataset was never loaded."),
    ],
)
def test_what_an_answer_means(answer: Answer, connector: str, says: str) -> None:
    one = DatasetConfig(name="d", from_=f"{connector}:x", connector=connector, line=3, yaml_path="datasets[0]")
    config = RuntimeConfig(file=Path("/a.yaml"), state_dir=Path("/absent"), datasets=(one,))

    (line,) = shown(list(Sources(config, 9.0)._judged(one, answer, None)))

    assert line.startswith(says)


@pytest.mark.exhaustive
def test_offline_asks_only_files(tmp_path: Path, trap: str) -> None:
    (tmp_path / "good.csv").write_text("id\n1\n")
    text = "datasets:\n" + dataset("good", "file:good.csv") + dataset("web", f"http://{trap}/a.csv")

    _, found = examine(write(tmp_path, text), offline=True)

    assert shown(found, "dataset good", "ok")
    assert shown(found, "sources") == ["note sources: --offline: 1 sources were not asked."]
    assert shown(found, "dataset web") == []


@pytest.mark.exhaustive
def test_a_source_that_is_larger_than_the_scratch_space(tmp_path: Path, web: WebServer) -> None:
    web.files["/a.csv"] = File(b"id,name\n" + b"1,a\n" * 1000)
    config = load(write(tmp_path, "datasets:\n" + dataset("orders", f"{web.url}/a.csv")), {})
    question = Question(
        dataset=config.datasets[0], version=None, asks_time=False, limit_s=20.0, memory_limit_bytes=64 * MIB,
        scratch_bytes=1000,
    )  # fmt: skip

    answer = asked(question, tmp_path / "scratch")

    ((field, sentence),) = answer.faults
    assert (field, answer.columns) == ("from", None)
    assert sentence.endswith("has more bytes than query.temp_directory_limit allows.")
    assert not (tmp_path / "scratch").exists()


@pytest.mark.exhaustive
def test_a_source_that_does_not_end_is_killed_and_the_others_answer(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    config = load(write(tmp_path, "datasets:\n" + dataset("d", "file:a.csv")), {})
    question = Question(
        dataset=config.datasets[0], version=None, asks_time=False, limit_s=30.0, memory_limit_bytes=64 * MIB,
        scratch_bytes=MIB,
    )  # fmt: skip
    environ = parts.environment("refresh", config, os.environ)

    # Its time, and that for an orderly end, is over before it begins.
    answers = probe([replace(question, limit_s=-5.0), question, replace(question, limit_s=-5.0)], environ, 2)

    killed = Answer(is_late=True, is_hung=True)
    assert answers == [killed, Answer(columns=(Column(name="id", type="BIGINT"),), is_reached=True), killed]


@pytest.mark.exhaustive
def test_a_program_that_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    config = load(write(tmp_path, "datasets:\n" + dataset("d", "file:a.csv")), {})
    question = Question(
        dataset=config.datasets[0], version=None, asks_time=False, limit_s=30.0, memory_limit_bytes=MIB, scratch_bytes=0
    )

    with pytest.raises(DatasetError, match="The program that asks the sources failed"):
        probe([question], {"PYTHONHOME": "/absent"}, 1)


def test_no_source_is_asked_without_a_process(tmp_path: Path) -> None:
    assert probe([], {}, 4) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["postgres", "mysql", "mssql", "flightsql", "spark", "s3"])
def test_a_server_that_accepts_and_never_answers(tmp_path: Path, kind: str) -> None:
    with silent_server() as port:
        source, params = {
            "postgres": (
                "postgres:public.t",
                {"pg_host": "127.0.0.1", "pg_port": port, "pg_user": "u", "pg_db": "d", "pg_pass": "canary-pass"},
            ),
            "mysql": (
                "mysql:db.t",
                {"mysql_host": "127.0.0.1", "mysql_tcp_port": port, "mysql_user": "u", "mysql_pass": "canary-pass"},
            ),
            "mssql": (
                "mssql:t",
                {"mssql_host": "127.0.0.1", "mssql_port": port, "mssql_username": "u", "mssql_password": "canary-pass"},
            ),
            "flightsql": ("flightsql:t", {"flightsql_endpoint": f"grpc://127.0.0.1:{port}"}),
            "spark": (
                "spark:t",
                {"spark_remote": f"sc://127.0.0.1:{port}/;token=canary-token;use_ssl=false"},
            ),
            "s3": (
                "s3://bucket/a.csv",
                {"s3_endpoint": f"http://127.0.0.1:{port}", "s3_key": "canary-key", "s3_secret": "canary-secret"},
            ),
        }[kind]
        text = "datasets:\n" + dataset("d", source, params=json.dumps(params))
        began = time.monotonic()
        code, found = examine(write(tmp_path, text), timeout=2.0)

    assert code == 1
    assert shown(found, "dataset d", "error"), shown(found)
    assert "canary" not in str(found)
    assert time.monotonic() - began < 30


@pytest.mark.exhaustive
def test_very_many_sources(tmp_path: Path) -> None:
    """A process of its own for each, and all are told apart."""
    for number in range(20):
        names = [f"c{column}" for column in range(number % 7 + 1)]
        (tmp_path / f"f{number}.csv").write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    text = "datasets:\n" + "".join(dataset(f"d{number}", f"file:f{number}.csv") for number in range(20))
    config = load(write(tmp_path, text), {})
    questions = [
        Question(dataset=one, version=None, asks_time=False, limit_s=20.0, memory_limit_bytes=64 * MIB,
                 scratch_bytes=MIB)
        for one in config.datasets
    ]  # fmt: skip

    answers = probe(questions, parts.environment("refresh", config, {}), 4)

    assert [len(answer.columns or ()) for answer in answers] == [number % 7 + 1 for number in range(20)]
    assert all(answer == Answer(columns=answer.columns, is_reached=True) for answer in answers)
