"""Files of the state directory are deleted while it is in use."""

from contextlib import suppress
from pathlib import Path

import pytest

from datasources.errors import DatasetsUnavailableError
from datasources.refresh import control_socket
from datasources.refresh import service as module
from datasources.refresh.control_socket import SOCKET_NAME, ControlClient
from datasources.refresh.service import DatasetService
from system.lock import LOCK_NAME, StateLock
from tests.datasources.sources.test_files import put
from tests.datasources.support import configure, declare, served, wait_for


@pytest.mark.parametrize("exclusive", [True, False])
def test_deleted_files_of_the_state_directory_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    monkeypatch.setattr(control_socket, "_POLL_S", 0.05)
    put(tmp_path, "a.csv")
    state_dir = tmp_path / "state"
    service = DatasetService(configure(tmp_path, declare(tmp_path, "a.csv")), exclusive=exclusive)
    client = ControlClient(state_dir)
    service.start()
    wait_for(service.is_loaded, "the load")

    def is_whole() -> bool:
        with suppress(DatasetsUnavailableError):
            return all(state.rows for state in client.datasets()) and StateLock(state_dir).is_taken()
        return False

    for swept in (SOCKET_NAME, LOCK_NAME):
        (state_dir / swept).unlink()
        wait_for(is_whole, f"another {swept}")
        assert not StateLock(state_dir).acquire()
    (state_dir / SOCKET_NAME).unlink()
    (state_dir / SOCKET_NAME).mkdir()
    assert not is_whole()
    (state_dir / SOCKET_NAME).rmdir()
    wait_for(is_whole, "another socket")

    state_dir.rename(tmp_path / "gone")  # at once: `rmtree` would race with the files that come back

    wait_for(is_whole, "another state directory")
    assert served(tmp_path) == [(1, "x")]
    service.stop(30)
