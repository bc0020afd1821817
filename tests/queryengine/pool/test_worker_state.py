import os

import pytest

from queryengine.pool.worker import WorkerState, read_state, write_state


@pytest.mark.parametrize(
    ("state", "read"),
    [
        pytest.param(WorkerState(), WorkerState(), id="booting"),
        pytest.param(WorkerState(phase="idle"), WorkerState(phase="idle"), id="idle"),
        pytest.param(
            WorkerState(phase="busy", deadline=1234.5, query_id="é" + "x" * 40),
            WorkerState(phase="busy", deadline=1234.5, query_id="?" + "x" * 31),
            id="busy, with a long id",
        ),
    ],
)
def test_a_written_state_is_read(heartbeat: int, state: WorkerState, read: WorkerState) -> None:
    write_state(heartbeat, WorkerState(phase="busy", deadline=9.0, query_id="x" * 32))

    write_state(heartbeat, state)

    assert read_state(heartbeat) == read


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="cut"),
        pytest.param(b"\x07" + bytes(40), id="unknown phase"),
        pytest.param(b"\x01" + bytes(8) + b"\xff" * 32, id="not ASCII"),
    ],
)
def test_an_unreadable_record_or_file_is_booting(heartbeat: int, content: bytes) -> None:
    os.write(heartbeat, content)

    assert read_state(heartbeat) == read_state(-1) == WorkerState()
