import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from datasources.errors import SharedStorageError
from nodes.documents import Holder, Presence, RefreshRequest, SharedManifest, SharedState
from tests.datasources.test_control_socket import RUN, STATE
from tests.queryengine.test_manifest import FLIGHTS

_ONE = "0123456789abcdef"
_SNAPSHOT = replace(FLIGHTS, file=f"flights-{_ONE}.duckdb")
DOCUMENTS: list[Any] = [
    SharedManifest(epoch=2, node="a", generation=7, snapshots=(_SNAPSHOT,)),
    Holder(epoch=2, node="a", beat=3),
    SharedState(epoch=2, datasets=(STATE, replace(STATE, name="b", error="No file \udcff.")), runs={"ä": (RUN, RUN)}),
    Presence(beat=3, reads=("a", "b")),
    RefreshRequest(dataset="d", requested_at="r", sql="FROM d", mode="append", jitter_max_s=1.5),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: type(one).__name__)
def test_a_document_is_read_as_it_was_written(document: Any) -> None:
    assert type(document).decode(document.encode()) == document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"\xff", id="not UTF-8"),
        pytest.param(lambda _: b"[" * 100_000, id="deep"),
        pytest.param(lambda _: b"[]", id="a list"),
        pytest.param(lambda fields: json.dumps({"format_version": fields["format_version"]}).encode(), id="fields"),
        pytest.param(
            lambda fields: json.dumps(fields | {"epoch": 1e999, "beat": 1e999, "jitter_max_s": 1e999}).encode(),
            id="infinity",
        ),
        pytest.param(
            lambda fields: json.dumps({key: [] for key in fields} | {"format_version": 2}).encode(), id="types"
        ),
    ],
)
def test_what_something_else_wrote_is_refused(document: Any, damage: Callable[[dict[str, Any]], bytes]) -> None:
    with pytest.raises(SharedStorageError, match="something else is writing there"):
        type(document).decode(damage(json.loads(document.encode())))


def test_another_release_is_named_as_the_cause() -> None:
    with pytest.raises(SharedStorageError, match="another release"):
        Holder.decode(b'{"format_version": 99, "epoch": 1, "node": "a", "beat": 1}')


@pytest.mark.parametrize("file", ["../../etc/passwd", "a.duckdb", f"d-{_ONE}.duckdb.wal", f"D-{_ONE}.duckdb", "lock"])
def test_a_snapshot_with_a_file_of_another_name_is_refused(file: str) -> None:
    fields = json.loads(DOCUMENTS[0].encode())
    fields["snapshots"][0]["file"] = file

    with pytest.raises(SharedStorageError):
        SharedManifest.decode(json.dumps(fields).encode())


@pytest.mark.parametrize("document", DOCUMENTS[:4], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("value", [-1, 1.5, "7", True, None, 10**4000])
def test_a_number_that_counts_nothing_is_refused(document: Any, value: object) -> None:
    fields = json.loads(document.encode())
    name = "epoch" if "epoch" in fields else "beat"

    with pytest.raises(SharedStorageError):
        type(document).decode(json.dumps(fields | {name: value}).encode())


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"dataset": ["d"]},
            {"size_bytes": 0},
            {"size_bytes": "7"},
            {"size_bytes": True},
            {"rows": "7"},
            {"rows": -1},
        ),
        *({"created_at": "yesterday"}, {"created_at": "2026-11-26T10:00:00"}, {"created_at": 7}, {"sha256": 7}),
        *({"source": None}, {"source_version": 7}, {"columns": [{"name": 7, "type": "INTEGER"}]}),
    ],
)
def test_a_snapshot_with_other_values_is_refused(change: dict[str, Any]) -> None:
    fields = json.loads(DOCUMENTS[0].encode())
    fields["snapshots"][0] |= change

    with pytest.raises(SharedStorageError):
        SharedManifest.decode(json.dumps(fields).encode())


@pytest.mark.parametrize("change", [{"dataset": "another"}, {"file": f"another-{_ONE}.duckdb"}])
def test_a_manifest_with_two_snapshots_of_one_dataset_or_file_is_refused(change: dict[str, Any]) -> None:
    fields = json.loads(DOCUMENTS[0].encode())
    fields["snapshots"].append(fields["snapshots"][0] | change)

    with pytest.raises(SharedStorageError):
        SharedManifest.decode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "change", [{"mode": "fast"}, {"jitter_max_s": -1}, {"jitter_max_s": "NaN"}, {"sql": 1}, {"caller": "x" * 1001}]
)
def test_a_request_with_other_values_is_refused(change: dict[str, Any]) -> None:
    fields = json.loads(DOCUMENTS[4].encode()) | change

    with pytest.raises(SharedStorageError):
        RefreshRequest.decode(json.dumps(fields).encode())
