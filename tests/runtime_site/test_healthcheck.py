"""`manage.py healthcheck` follows the address and the TLS of the YAML, and needs no key."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

import runtimeconf.state
from tests.system.harness import K1, Server, free_port


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CONFIG", "")
    monkeypatch.setattr(runtimeconf.state, "_outcome", None)


def write(directory: Path, bind: str, **runtime: Any) -> Path:
    file = directory / "health.yaml"
    auth = {"api-key": {"enabled": True, "keys": [K1]}}
    file.write_text(yaml.safe_dump({"runtime": {"auth": auth, "http": {"bind": bind}, **runtime}}))
    return file


def test_it_follows_the_yaml(tmp_path: Path, tls_files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    certificate, key = tls_files
    tls = {"enabled": True, "certificate_file": str(certificate), "key_file": str(key)}

    with Server(tmp_path, mode="gunicorn", trust=certificate, changes={"runtime": {"tls": tls}}) as server:
        for host in ("127.0.0.1", "0.0.0.0"):
            call_command("healthcheck", config=write(tmp_path, f"{host}:{server.port}", tls=tls))
        assert capsys.readouterr().out == "ok\nok\n"

        with pytest.raises(CommandError, match=r"does not respond to http://127\.0\.0\.1"):
            call_command("healthcheck", config=write(tmp_path, f"127.0.0.1:{server.port}"))


def test_nothing_answers(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"does not respond to http://\[::1\]:"):
        call_command("healthcheck", config=write(tmp_path, f"[::]:{free_port()}"))


def test_a_faulty_yaml(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="must be an address"):
        call_command("healthcheck", config=write(tmp_path, "8090"))
