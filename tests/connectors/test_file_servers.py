"""`ftp:` sources, read from pyftpdlib, and `sftp:` sources, read from OpenSSH."""

import errno
import gzip
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from connectors import file_server
from datasources.errors import SourceError
from tests.connectors.file_servers import (
    OLD_COMMANDS,
    PASSWORD,
    SSHD,
    AbstractedFS,
    FtpFiles,
    SshFiles,
    ftp_server,
    ssh_server,
)
from tests.datasources.sources import loads
from tests.datasources.sources.loads import declared, has_changed, load_in_process, version, version_of

CSV = b"a,b\n1,x\n"
ROWS = [(1, "x")]

on_openssh = pytest.mark.skipif(
    SSHD is None and "CI" not in os.environ, reason="sshd is missing: apt install openssh-server"
)


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[FtpFiles]:
    with ftp_server(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshFiles]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as running:
        yield running


@pytest.fixture(params=["ftp", pytest.param("sftp", marks=[on_openssh, pytest.mark.exhaustive])])
def files(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Files"]:
    if request.param == "ftp":
        with ftp_server(tmp_path) as running:
            yield Files(tmp_path, "ftp://localhost", running.root, running.params)
    else:
        with ssh_server(tmp_path_factory.mktemp("server")) as server:
            yield Files(tmp_path, f"sftp://127.0.0.1{server.root}", server.root, server.params)


class Files:
    """The files of a server, and how they are read."""

    def __init__(self, directory: Path, url: str, root: Path, params: dict[str, str]) -> None:
        self.directory, self.url, self.root, self.params = directory, url, root, params

    def put(self, path: str, body: bytes = CSV, age_s: float = 1000) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
        moment = target.stat().st_mtime - age_s
        os.utime(target, (moment, moment))

    def load(self, path: str, **params: str) -> list[tuple[Any, ...]]:
        return loads.loaded(self.directory, f"{self.url}/{path}", **(self.params | params))

    def refusal(self, path: str, **params: str) -> str:
        with pytest.raises(SourceError) as caught:
            loads.loaded(self.directory, f"{self.url}/{path}", **(self.params | params))
        assert PASSWORD not in str(caught.value)
        return str(caught.value)


def test_files_directories_and_globs_are_read(files: Files) -> None:
    files.put("d/a.csv")
    files.put("d/e/b ü+ %.csv")
    files.put("d/_SUCCESS", b"")
    files.put("z.csv.gz", gzip.compress(CSV))
    (files.root / "link.csv").symlink_to(files.root / "d" / "a.csv")

    assert files.load("d/a.csv") == files.load("d/e/b ü+ %.csv") == files.load("z.csv.gz") == ROWS
    assert files.load("link.csv") == ROWS
    assert files.load("d/**/b*.csv") == ROWS
    assert files.load("d/e/") == ROWS
    assert "does not exist" in files.refusal("none.csv")
    assert "has no object below it" in files.refusal("nowhere/")
    # Where it cannot be told from a directory, a link to one above would give its files again and again.
    (files.root / "d" / "loop").symlink_to(files.root / "d")
    if files.url.startswith("sftp:"):
        assert files.load("d/**/b*.csv") == ROWS
    else:
        assert "is there a link to a parent directory?" in files.refusal("d/**/b*.csv")


def test_many_bytes_arrive_whole_or_not_at_all(files: Files) -> None:
    files.put("many.csv", b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(1_000_000)))
    dataset = declared(files.directory, f"{files.url}/many.csv", files.params)

    found = load_in_process(files.directory, dataset, "SELECT count(*), sum(a), max(b) FROM d")
    assert found == [(1_000_000, 499_999_500_000, "x")]
    assert "larger than params.max_download_size allows" in files.refusal("many.csv", max_download_size="1MiB")


def test_a_change_is_noticed(files: Files) -> None:
    files.put("a.csv")
    dataset = declared(files.directory, f"{files.url}/a.csv", files.params)
    known = version(files.directory, dataset)

    assert not has_changed(files.directory, dataset, known)
    files.put("a.csv", age_s=500)
    assert has_changed(files.directory, dataset, known)
    # A file that was written just now may be written to again in the same second.
    files.put("a.csv", age_s=0)
    assert version_of(files.directory, f"{files.url}/a.csv", **files.params) is None


def test_a_file_that_is_replaced_while_it_is_read_fails_the_load(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put("a.csv")
    whole = file_server.Download.blocks

    def replacing(self: file_server.Download) -> Iterator[bytes]:
        yield from whole(self)
        files.put("a.csv", b"a,b\n2,y\n", age_s=10)

    monkeypatch.setattr(file_server.Download, "blocks", replacing)

    assert "changed during the read" in files.refusal("a.csv")


def test_a_server_that_is_silent_is_left_at_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        dataset = declared(tmp_path, "ftp://127.0.0.1/a.csv", {"ftp_port": port})
        loads.time_out_repeatedly(tmp_path, dataset, rounds=4)
        dataset = declared(
            tmp_path, "sftp://127.0.0.1/a.csv", {"sftp_port": port, "sftp_user": "u", "sftp_pass": PASSWORD}
        )
        loads.time_out_repeatedly(tmp_path, dataset, rounds=4)
        sentence = loads.refused(tmp_path, f"ftp://127.0.0.1:{port}/a.csv", client_timeout="100ms")
        assert "the server was silent for 0.1 s, the client_timeout" in sentence


@pytest.mark.parametrize("scheme", ["ftp", "sftp"])
@pytest.mark.parametrize("greeting", [b"+OK POP3 ready\r\n", b"\x00\xff\r\n", b"", b"x" * 100_000])
def test_a_server_of_another_protocol_is_refused(tmp_path: Path, scheme: str, greeting: bytes) -> None:
    params = {"sftp_user": "u", "sftp_pass": PASSWORD} if scheme == "sftp" else {}

    def greet() -> None:
        with server.accept()[0] as client, suppress(OSError):
            client.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        port = server.getsockname()[1]
        pool.submit(greet)
        sentence = loads.refused(tmp_path, f"{scheme}://127.0.0.1:{port}/a.csv", **params)
    assert "does not speak" in sentence or "cannot be reached (Connection reset by peer)" in sentence
    assert "cannot be reached (Connection refused)" in loads.refused(
        tmp_path, f"{scheme}://127.0.0.1:{port}/a.csv", **params
    )


# --- FTP --------------------------------------------------------------------------------------------------------------


def refusal(directory: Path, files: FtpFiles, path: str = "a.csv", **params: str) -> str:
    sentence = loads.refused(directory, f"ftp://localhost/{path}", **(files.params | params))
    assert PASSWORD not in sentence
    return sentence


def test_no_password_goes_to_a_server_without_tls_or_with_a_certificate_that_is_not_trusted(
    ftp: FtpFiles, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    said: list[str] = []
    ftp.handler.ftp_USER = lambda _self, line: said.append(line)

    assert "is not trusted" in refusal(tmp_path, ftp, ftp_tls_root_certificate_file=str(other))
    by_address = loads.refused(tmp_path, "ftp://127.0.0.1/a.csv", **ftp.params)
    assert "is not trusted" in by_address
    (tmp_path / "plain").mkdir()
    with ftp_server(tmp_path / "plain", tls=False) as plain:
        plain.handler.ftp_USER = ftp.handler.ftp_USER
        assert "the server has no TLS; ftp_tls: disabled sends the password" in refusal(tmp_path, plain)
    assert said == []


def test_without_tls_if_the_yaml_says_so(tmp_path: Path) -> None:
    with ftp_server(tmp_path, tls=False) as plain:
        (plain.root / "a.csv").write_bytes(CSV)
        params = {"ftp_port": str(plain.port), "ftp_tls": "disabled"}

        assert loads.loaded(tmp_path, "ftp://localhost/a.csv", **params) == ROWS
        assert loads.loaded(tmp_path, "ftp://localhost/", ftp_user="reader", ftp_pass=PASSWORD, **params) == ROWS


def test_a_server_that_lists_only_names_is_read(tmp_path: Path) -> None:
    with ftp_server(tmp_path, proto_cmds=OLD_COMMANDS) as old:
        (old.root / "d" / "e").mkdir(parents=True)
        (old.root / "d" / "a.csv").write_bytes(CSV)
        (old.root / "d" / "e" / "b.csv").write_bytes(CSV)

        assert loads.loaded(tmp_path, "ftp://localhost/d/", **old.params) == ROWS * 2


@pytest.mark.parametrize("settings", [{"proto_cmds": OLD_COMMANDS}, {}])
def test_a_refused_list_does_not_change_how_files_are_sent(tmp_path: Path, settings: dict[str, Any]) -> None:
    class Refusing(AbstractedFS):  # type: ignore[misc] # pyftpdlib has no types
        def listdir(self, path: str) -> Any:
            if path.endswith("z-empty"):
                raise OSError(errno.ENOENT, "No files found")
            return super().listdir(path)

    with ftp_server(tmp_path, abstracted_fs=Refusing, **settings) as server:
        (server.root / "z-empty").mkdir()
        (server.root / "a.csv").write_bytes(CSV)

        assert loads.loaded(tmp_path, "ftp://localhost/", **server.params) == ROWS


def test_links_to_files_are_read_if_the_server_calls_them_links(ftp: FtpFiles, tmp_path: Path) -> None:
    class WithLinks(AbstractedFS):  # type: ignore[misc] # pyftpdlib has no types
        def format_mlsx(self, *_: Any, **__: Any) -> Iterator[bytes]:
            yield b"type=file;size=8;modify=20260101000000; a.csv\r\n"
            yield b"type=OS.unix=slink:/a.csv;modify=20260101000000; b.csv\r\n"
            yield b"type=OS.unix=symlink; d\r\n"

    (ftp.root / "a.csv").write_bytes(CSV)
    (ftp.root / "b.csv").symlink_to(ftp.root / "a.csv")
    (ftp.root / "d").mkdir()
    ftp.handler.abstracted_fs = WithLinks

    assert loads.loaded(tmp_path, "ftp://localhost/", **ftp.params) == ROWS * 2


def test_refusals_of_a_server(ftp: FtpFiles, tmp_path: Path) -> None:
    (ftp.root / "a.csv").write_bytes(CSV)

    assert "rejected the user or password" in refusal(tmp_path, ftp, ftp_pass="another")
    assert "cannot be resolved" in loads.refused(tmp_path, "ftp://no-such-host.invalid/a.csv")


@pytest.mark.parametrize("name", ["../a.csv", "a/../../b.csv", "", "..", "x\0.csv"])
def test_names_that_lead_elsewhere_are_refused(ftp: FtpFiles, tmp_path: Path, name: str) -> None:
    class Hostile(AbstractedFS):  # type: ignore[misc] # pyftpdlib has no types
        def format_mlsx(self, *_: Any, **__: Any) -> Iterator[bytes]:
            yield f"type=file;size=8;modify=20260101000000; {name}\r\n".encode()

    ftp.handler.abstracted_fs = Hostile

    assert "has an entry with an invalid name" in refusal(tmp_path, ftp, "")


def test_data_that_is_cut_short_fails_the_load(ftp: FtpFiles, tmp_path: Path) -> None:
    class Lying(AbstractedFS):  # type: ignore[misc] # as above
        def getsize(self, path: str) -> int:
            return int(super().getsize(path)) + 1

    (ftp.root / "a.csv").write_bytes(CSV)
    ftp.handler.abstracted_fs = Lying

    assert "does not have the size that the server reported" in refusal(tmp_path, ftp)
    ftp.handler.abstracted_fs = AbstractedFS
    assert loads.loaded(tmp_path, "ftp://localhost/a.csv", **ftp.params) == ROWS


# --- SFTP -------------------------------------------------------------------------------------------------------------


@on_openssh
@pytest.mark.exhaustive
def test_only_the_server_with_the_key_of_the_yaml_is_asked(ssh: SshFiles, tmp_path: Path) -> None:
    (ssh.root / "a.csv").write_bytes(CSV)
    url = f"sftp://127.0.0.1{ssh.root}/a.csv"
    kind, key, *_ = ssh.host_key.split()
    unknown = {name: value for name, value in ssh.params.items() if name != "sftp_host_key"}

    shown = loads.refused(tmp_path, url, **unknown)
    assert f"The server presented the key '{kind} {key}'" in shown
    other = f"{kind} {key[:-8]}{'A' * 8}"
    assert "the server's key is not in params.sftp_host_key" in loads.refused(
        tmp_path, url, **unknown, sftp_host_key=other
    )
    assert loads.loaded(tmp_path, url, **unknown, sftp_host_key=f"{other}\n{kind} {key}") == ROWS


@on_openssh
@pytest.mark.exhaustive
def test_refusals_of_a_server_over_ssh(ssh: SshFiles, tmp_path: Path) -> None:
    (ssh.root / "a.csv").write_bytes(CSV)
    url = f"sftp://127.0.0.1{ssh.root}/a.csv"
    known = {name: ssh.params[name] for name in ("sftp_port", "sftp_host_key", "sftp_user")}

    for params in ({"sftp_pass": PASSWORD}, {"sftp_private_key_file": str(ssh.root.parent / "host")}):
        assert "rejected the user, password or key" in loads.refused(tmp_path, url, **known, **params)
    for file, reason in ((ssh.root / "a.csv", "it is not a key"), (tmp_path / "none", "No such file")):
        assert reason in loads.refused(tmp_path, url, **known, sftp_private_key_file=str(file))
