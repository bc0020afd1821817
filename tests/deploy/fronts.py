"""The proxies of `deploy/` in front of a runtime, with their files as they are, but for names, ports and paths."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.clients.runtime import FlightServer
from tests.system.harness import KEYED, REPOSITORY, Program, clean_environ, free_port, wait_for

#: 300 MB as CSV.
LARGE = f"SELECT repeat('x', 999) AS text FROM range({300 * 1000})"
#: The oldest Caddy that breaks off a response whose upstream breaks off.
OLDEST_CADDY = (2, 8)
#: More than any buffer on the way holds.
STARTED = 1024 * 1024

NGINX = """daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/temporary;
    proxy_temp_path {directory}/temporary;
    fastcgi_temp_path {directory}/temporary;
    uwsgi_temp_path {directory}/temporary;
    scgi_temp_path {directory}/temporary;
    {server}
}}
"""


class Front(Program):
    """A proxy; `entry` is the runtime as callers of the proxy see it, and `/health` has the status `health` there."""

    health = 200

    def __init__(self, name: str, directory: Path, runtime: FlightServer, tls_files: tuple[Path, Path]) -> None:
        self.log = directory / "front.log"
        self.directory = directory
        certificate, key = tls_files
        port = free_port()
        self.entry = FlightServer(directory, port=port, flight_port=port, trust=certificate, key_file=key)
        changes = {"127.0.0.1:8090": f"127.0.0.1:{runtime.port}", "127.0.0.1:50051": f"127.0.0.1:{runtime.flight_port}"}
        if name == "nginx":
            changes |= {"listen 443": f"listen {port}", "    listen [::]:443 ssl http2;\n": ""}
            changes |= {"data.example.com": "localhost"}
            changes |= {"/etc/ssl/querykeep/fullchain.pem": str(certificate)}
            changes |= {"/etc/ssl/querykeep/privkey.pem": str(key)}
            text = NGINX.format(directory=directory, server=changed(REPOSITORY / "deploy/nginx.conf", changes))
            self.command = ["nginx", "-e", "stderr", "-c", str(directory / "conf")]
        else:
            changes |= {"data.example.com {\n": f"https://localhost:{port} {{\n\ttls {certificate} {key}\n"}
            changes |= {"{\n\tlog {": "{\n\tadmin off\n\tauto_https disable_redirects\n\tlog {"}
            text = changed(REPOSITORY / "deploy/Caddyfile", changes)
            self.command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(directory / "conf")]
        (directory / "conf").write_text(text)

    def __enter__(self) -> Self:
        self.run(self.command, clean_environ(HOME=str(self.directory), XDG_DATA_HOME=str(self.directory)))

        def answers() -> bool:
            assert self.process.poll() is None, self.output()
            try:
                return self.entry.get("/health", headers=KEYED).status_code == self.health
            except httpx.TransportError:
                return False

        wait_for(answers, "the proxy to answer")
        return self

    def written_bytes(self) -> int:
        """Return how many bytes the proxy has caused to be written to disk."""
        text = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(text.partition("\nwrite_bytes: ")[2].split()[0])


def changed(file: Path, changes: dict[str, str]) -> str:
    text = file.read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def need(name: str) -> None:
    """Skip the test on a machine without a proxy that is supported; CI installs it."""
    program = shutil.which(name)
    if program is None or (name == "caddy" and caddy_version(program) < OLDEST_CADDY):
        assert "CI" not in os.environ, f"{name} is missing or too old: .ci/run installs it"
        pytest.skip(f"needs {name}")


def caddy_version(program: str) -> tuple[int, ...]:
    """Return the first two numbers of the version of a Caddy."""
    printed = subprocess.run([program, "version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", printed)[:2]))


@contextmanager
def start_runtime(directory: Path, **http: object) -> Iterator[FlightServer]:
    runtime = FlightServer(directory)
    runtime.changes["runtime"]["http"] = {"bind": f"127.0.0.1:{runtime.port}", **http}
    runtime.changes["runtime"]["query"] = {"timeout": "5m"}  # for large answers, on any machine
    with runtime:
        yield runtime
