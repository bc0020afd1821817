"""
`ftp:` sources: files on an FTP server, over explicit TLS (RFC 4217) unless the configuration file says otherwise.

The standard library's client opens data connections only to the address of the control connection.
"""

import ftplib
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from connectors.bucket import StoredObject
from connectors.file_locations import server_of
from connectors.file_server import Download, Entry, FileServer, FileServerSource
from connectors.ftp.params import FtpParams
from connectors.origin import tls_context
from datasources.deadline import Deadline
from datasources.errors import SourceError

_BLOCK_BYTES = 256 * 1024

#: Binary mode for files. The client turns it off for each list, which is text.
_AS_BYTES = "TYPE I"

#: The beginnings of the type of a symbolic link in lists (RFC 3659, 7.5.1.5).
_LINKS = ("os.unix=slink", "os.unix=symlink")

#: Replies for paths that are missing, not accessible (RFC 959, 4.2), or not a directory (RFC 3659, 7.2.1).
_NOT_THERE = ("450", "501", "550")


class FtpSource(FileServerSource[FtpParams]):
    """Files on an FTP server."""

    def _store(self, deadline: Deadline) -> "FtpServer":
        return FtpServer(f"ftp://{self._name}", self._params, deadline)


class _TlsClient(ftplib.FTP_TLS):
    """A client whose data connections resume the session of the control connection, as many servers require."""

    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        connection, size = ftplib.FTP.ntransfercmd(self, cmd, rest)  # noqa: S321 (TLS begins below)
        assert isinstance(self.sock, ssl.SSLSocket)  # noqa: S101 (`auth` has replaced it)
        return self.context.wrap_socket(connection, server_hostname=self.host, session=self.sock.session), size


class FtpServer(FileServer[FtpParams]):
    """The server at *url*; see `FileServer`. *params* are the dataset's."""

    errors = (*FileServer.errors, ftplib.Error, LookupError)

    def __init__(self, url: str, params: FtpParams, deadline: Deadline) -> None:
        super().__init__(url, params, deadline)
        self._host, self._port = server_of(url, params.ftp_port)
        self._has_mlsd = False
        self._client: Any = ftplib.FTP()  # noqa: S321 (only if the configuration file says so)
        if params.ftp_tls == "required":
            self._client = _TlsClient(context=tls_context(params.ftp_tls_root_certificate_file))

    @contextmanager
    def get(self, found: StoredObject) -> Iterator[Download]:
        """See `Store.get`."""
        shown = self.shown(found.key)
        with self._explained(f"'{shown}' cannot be read"):
            connection, _ = self._client.ntransfercmd(f"RETR /{found.key}")
        with connection:
            yield Download(found.size, self._blocks(connection, found.size, shown))

    def _blocks(self, connection: socket.socket, size: int | None, shown: str) -> Iterator[bytes]:
        count = 0
        with self._explained(f"'{shown}' cannot be read"):
            while block := connection.recv(_BLOCK_BYTES):
                count += len(block)
                yield block
            self._deadline.check()  # A connection that was cut off looks like the end of the file.
            if isinstance(connection, ssl.SSLSocket):
                with suppress(OSError):  # TLS may end without a close, but the size and the reply confirm completeness.
                    connection.unwrap()
            connection.close()
            self._client.voidresp()
        if count != size:
            raise SourceError(
                f"'{shown}' does not have the size that the server reported: it was cut short, or it changed."
            )

    def _connect(self, limit_s: float) -> None:
        self._open.callback(self._client.close)
        self._client.connect(self._host, self._port, timeout=limit_s)
        self._client.sock.settimeout(self._silence_s)
        self._client.timeout = self._silence_s  # for data connections
        if isinstance(self._client, _TlsClient):
            try:
                self._client.auth()
            except ftplib.Error:
                raise SourceError(
                    f"'{self._url}': the server has no TLS; ftp_tls: disabled sends the password and data unencrypted."
                ) from None
        try:
            self._client.login(self._params.ftp_user, self._params.ftp_pass)
        except ftplib.error_perm:
            raise SourceError(f"'{self._url}': the server rejected the user or password.") from None
        if isinstance(self._client, _TlsClient):
            self._client.prot_p()
        self._client.voidcmd(_AS_BYTES)
        with suppress(ftplib.error_perm):
            # Features are indented (RFC 2389, 3.2).
            features = self._client.sendcmd("FEAT").upper().splitlines()
            self._has_mlsd = any(line.split()[:1] == ["MLST"] for line in features)

    def _entry(self, path: str) -> Entry | None:
        with self._explained(f"'{self._url}{path}' cannot be looked up"):
            try:
                size = self._client.size(path)
            except ftplib.error_perm as error:
                if str(error).startswith(_NOT_THERE):
                    return None
                raise
            return Entry(path.rpartition("/")[2], size, self._modified_s(path))

    def _modified_s(self, path: str) -> float | None:
        try:
            return _time_of(self._client.sendcmd(f"MDTM {path}").partition(" ")[2])
        except ftplib.error_perm:
            return None

    def _entries(self, path: str) -> Sequence[Entry]:
        with self._explained(f"'{self._url}{path}' cannot be listed"):
            try:
                return self._facts(path) if self._has_mlsd else self._names(path)
            except (ftplib.error_perm, ftplib.error_temp) as error:
                if str(error).startswith(_NOT_THERE):
                    self._client.voidcmd(_AS_BYTES)
                    return ()
                raise

    def _facts(self, path: str) -> list[Entry]:
        """Return the entries, using MLSD (RFC 3659, 7)."""
        found, links = [], []
        for name, facts in self._client.mlsd(path):
            kind = facts.get("type", "").lower()
            if kind == "dir":
                found.append(Entry(name, None))
            elif kind == "file":
                modified_s = _time_of(facts["modify"]) if "modify" in facts else None
                found.append(Entry(name, int(facts["size"]), modified_s))
            elif kind.startswith(_LINKS):
                links.append(name)
        self._client.voidcmd(_AS_BYTES)
        # A link to a directory has no size.
        targets = (self._entry(f"{path.rstrip('/')}/{name}") for name in links)
        return [*found, *(target for target in targets if target is not None)]

    def _names(self, path: str) -> list[Entry]:
        """Return the entries, using NLST, which returns only names, with or without their directory."""
        found = []
        lines = self._client.nlst(path)
        self._client.voidcmd(_AS_BYTES)
        for line in lines:
            name = line.removeprefix(f"{path.rstrip('/')}/")
            if name not in {".", ".."}:
                inner = f"{path.rstrip('/')}/{name}"
                found.append(self._entry(inner) or Entry(name, None))
        return found

    def _is_ours(self, connection: socket.socket) -> bool:
        control = self._client.sock
        return control is not None and connection.getpeername()[0] == control.getpeername()[0]

    def _reason(self, error: Exception, what: str) -> str:
        if isinstance(error, ftplib.Error) and str(error)[:3].isdecimal():
            return f"{what}: the server refused it (reply {str(error)[:3]})"
        untrusted = getattr(error, "verify_message", None)
        return self._unreachable(error) or (
            f"'{self._url}': the certificate of the server is not trusted ({untrusted.rstrip('.')})"
            if untrusted
            else f"{what}: the connection broke, or the server does not speak a supported form of FTP"
        )


def _time_of(text: str) -> float | None:
    """Return the time (s since 1970) in a time-val such as `20260131235959.123` (RFC 3659, 2.3)."""
    try:
        return datetime.strptime(text.strip()[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
