"""Servers of files: pyftpdlib, which speaks FTP with TLS, and the sshd of OpenSSH."""

import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

import trustme

from tests.cluster.clusters import is_open
from tests.system.harness import free_port, wait_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It uses asyncore where the standard library has it.
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.filesystems import AbstractedFS as AbstractedFS  # noqa: PLC0414 - for tests
    from pyftpdlib.handlers import FTPHandler, TLS_FTPHandler
    from pyftpdlib.ioloop import IOLoop
    from pyftpdlib.servers import FTPServer

#: The commands of a server that lists only names.
OLD_COMMANDS = {name: what for name, what in TLS_FTPHandler.proto_cmds.items() if name not in {"MLSD", "MLST"}}

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
PASSWORD = "canary-3bZ"


@dataclass(frozen=True, slots=True)
class FtpFiles:
    """A server with the files below `root`; `certificates` is the file of its authority."""

    root: Path
    port: int
    certificates: Path
    handler: Any

    @property
    def params(self) -> dict[str, str]:
        return {
            "ftp_port": str(self.port),
            "ftp_user": "reader",
            "ftp_pass": PASSWORD,
            "ftp_tls_root_certificate_file": str(self.certificates),
        }


@contextmanager
def ftp_server(directory: Path, *, tls: bool = True, **settings: Any) -> Iterator[FtpFiles]:
    """Run a server; *settings* replace attributes of its handler."""
    root = directory / "files"
    root.mkdir()
    authority = trustme.CA()
    certificates, own = directory / "ca.pem", directory / "own.pem"
    authority.cert_pem.write_to_path(str(certificates))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(own))
    users = DummyAuthorizer()
    users.add_user("reader", PASSWORD, str(root), perm="elr")
    users.add_anonymous(str(root), perm="elr")
    base = TLS_FTPHandler if tls else FTPHandler
    needs_tls = {"certfile": str(own), "tls_control_required": True, "tls_data_required": True} if tls else {}
    made = {"authorizer": users, "abstracted_fs": AbstractedFS, "auth_failed_timeout": 0, **needs_tls}
    handler: Any = type("Handler", (base,), made | settings)
    server = FTPServer(("127.0.0.1", 0), handler, ioloop=IOLoop())
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.serve_forever(timeout=0.02, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield FtpFiles(root, server.address[1], certificates, handler)
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class SshFiles:
    """A server with the files below `root`, for the user that runs the tests, who has the key `own_key`."""

    root: Path
    port: int
    host_key: str
    own_key: Path

    @property
    def params(self) -> dict[str, str]:
        return {
            "sftp_port": str(self.port),
            "sftp_user": getuser(),
            "sftp_private_key_file": str(self.own_key),
            "sftp_host_key": self.host_key,
        }


@contextmanager
def ssh_server(directory: Path) -> Iterator[SshFiles]:
    """Run sshd, with keys made for it. *directory* and those above it must belong to the user or to root."""
    assert SSHD is not None
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    (directory / "authorized_keys").write_text((directory / "own.pub").read_text())
    root = directory / "files"
    root.mkdir()
    port = free_port()
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": directory / "host",
        "AuthorizedKeysFile": directory / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "Subsystem": "sftp internal-sftp",
    }
    config = directory / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    Path("/run/sshd").mkdir(exist_ok=True)  # for the separation of privileges
    with subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=sys.stderr) as process:
        try:
            wait_for(lambda: is_open(port), "sshd")
            yield SshFiles(root, port, (directory / "host.pub").read_text().strip(), directory / "own")
        finally:
            process.kill()
