from pathlib import Path

from tests.cluster.clusters import Sail
from tests.runtime_site.doctor.examining import KEYED, examine, shown, write
from tests.system.harness import free_port


def on(directory: Path, port: int) -> Path:
    return write(directory, runtime=f"{KEYED}  engine: {{from: 'sc://127.0.0.1:{port}', max_running: 1}}\n")


def test_the_cluster_is_asked(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with Sail(directory) as cluster:
        (tmp_path / "runtime").mkdir()
        file = on(tmp_path / "runtime", cluster.port)

        assert shown(examine(file)[1], "cluster") == [f"ok cluster: sc://127.0.0.1:{cluster.port} takes the runtime."]


def test_a_cluster_that_is_gone_is_an_error(tmp_path: Path) -> None:
    port = free_port()

    code, found = examine(on(tmp_path, port))

    (line,) = shown(found, "cluster")
    assert code == 1
    assert line.startswith(f"error cluster: sc://127.0.0.1:{port}: The cluster cannot be reached")
    assert shown(examine(on(tmp_path, port), offline=True)[1], "cluster") == []
