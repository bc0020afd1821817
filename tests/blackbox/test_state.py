"""What a running runtime reports of itself, and what it keeps on the disk."""

import stat

from tests.system.harness import K1, K2, Server
from tests.system.processes import contents


def test_catalog_routes(server: Server) -> None:
    status = {row["name"]: (row["status"], row["endpoint"]) for row in server.listed("/v1/status")}
    is_serve = server.mode == "serve"
    (dataset,) = server.listed("/v1/datasets")

    assert {name: state for name, (state, _) in status.items()} == {
        **dict.fromkeys(("http", "engine", "refresh"), "Ready"),
        "flight": "Ready" if is_serve else "Disabled",
    }
    assert status["http"][1] == f"127.0.0.1:{server.port}"
    assert status["engine"][1] == ("unix:engine.sock" if is_serve else "in-process")
    assert status["refresh"][1] == ("unix:control.sock" if is_serve else "in-process")
    assert (dataset["name"], dataset["from"], dataset["rows"]) == ("orders", "file:orders.parquet", 1000)
    assert str(server.directory) not in f"{status}{dataset}"


def test_state_files_are_private_and_hold_no_key(serve: Server) -> None:
    state = serve.directory / ".runtime"

    for path, found, content in contents(state):
        assert stat.S_IMODE(found.st_mode) == (0o700 if stat.S_ISDIR(found.st_mode) else 0o600), path
        assert K1.encode() not in content
        assert K2.encode() not in content
    assert K1 not in serve.output()
