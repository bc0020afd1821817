"""`sftp:` sources: files on an SSH server whose host key is in the configuration file."""

import base64
import logging
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import paramiko

from connectors.bucket import StoredObject
from connectors.file_locations import server_of
from connectors.file_server import Download, Entry, FileServer, FileServerSource
from connectors.sftp.params import SftpParams, parse_host_keys
from datasources.deadline import Deadline
from datasources.errors import SourceError

_BLOCK_BYTES = 256 * 1024
#: The bytes of a file requested at once, and the number of concurrent requests.
_PART_BYTES = 16 * 1024 * 1024
_REQUESTS = 64

# paramiko's messages contain hosts and tracebacks. The load's error has the relevant information.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


class SftpSource(FileServerSource[SftpParams]):
    """Files on a server, read over SSH."""

    def _store(self, deadline: Deadline) -> "SftpServer":
        return SftpServer(f"sftp://{self._name}", self._params, deadline)


class SftpServer(FileServer[SftpParams]):
    """The server at *url*; see `FileServer`. *params* are the dataset's."""

    errors = (*FileServer.errors, paramiko.SSHException)

    def __init__(self, url: str, params: SftpParams, deadline: Deadline) -> None:
        super().__init__(url, params, deadline)
        self._server = server_of(url, params.sftp_port)
        self._client: paramiko.SFTPClient

    @contextmanager
    def get(self, found: StoredObject) -> Iterator[Download]:
        """See `Store.get`."""
        shown = self.shown(found.key)
        with self._explained(f"'{shown}' cannot be read"):
            file = self._client.open(f"/{found.key}", "rb", bufsize=0)
        with file:
            yield Download(found.size, self._blocks(file, found.size or 0, shown))

    def _blocks(self, file: paramiko.SFTPFile, size: int, shown: str) -> Iterator[bytes]:
        count = 0
        with self._explained(f"'{shown}' cannot be read"):
            for start in range(0, size, _PART_BYTES):
                end = min(start + _PART_BYTES, size)
                blocks = [(at, min(_BLOCK_BYTES, end - at)) for at in range(start, end, _BLOCK_BYTES)]
                for block in file.readv(blocks, max_concurrent_prefetch_requests=_REQUESTS):
                    count += len(block)
                    yield block
            file.seek(size)
            count += len(file.read(1))
        if count != size:
            raise SourceError(
                f"'{shown}' does not have the size that the server reported: it was cut short, or it changed."
            )

    def _connect(self, limit_s: float) -> None:
        connection = self._open.enter_context(socket.create_connection(self._server, timeout=limit_s))
        transport = paramiko.Transport(connection)
        self._open.callback(transport.close)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = limit_s
        given = self._params.sftp_host_key
        known = [] if given is None else parse_host_keys(given)
        if known:
            kinds = {kind for kind, _ in known}
            options = transport.get_security_options()
            # An RSA key has several signature algorithms.
            names = [name for name in options.key_types if name in kinds or ("rsa" in name and "ssh-rsa" in kinds)]
            if not names:
                raise SourceError("params.sftp_host_key has no key of a type that is considered secure.")
            options.key_types = names
        transport.start_client(timeout=limit_s)
        self._check_host_key(transport.get_remote_server_key(), known)
        self._authenticate(transport)
        client = paramiko.SFTPClient.from_transport(transport)
        if client is None:
            raise EOFError
        client.get_channel().settimeout(self._silence_s)
        self._client = client

    def _check_host_key(self, key: paramiko.PKey, known: Sequence[tuple[str, bytes]]) -> None:
        """Raise SourceError unless the server has proved possession of one of the keys in the configuration file."""
        if (key.get_name(), key.asbytes()) in known:
            return
        shown = f"{key.get_name()} {base64.b64encode(key.asbytes()).decode()}"
        if known:
            raise SourceError(f"'{self._url}': the server's key is not in params.sftp_host_key: {shown}.")
        raise SourceError(
            f"'{self._url}': params.sftp_host_key is required. The server presented the key '{shown}': verify it with "
            f"the server's administrator before you use it."
        )

    def _authenticate(self, transport: paramiko.Transport) -> None:
        user, password = self._params.sftp_user, self._params.sftp_pass
        try:
            if password is not None:
                transport.auth_password(user, password, fallback=False)
            else:
                transport.auth_publickey(user, self._key())
        except paramiko.AuthenticationException:
            raise SourceError(f"'{self._url}': the server rejected the user, password or key.") from None

    def _key(self) -> paramiko.PKey:
        phrase = self._params.sftp_private_key_passphrase
        try:
            return paramiko.PKey.from_path(str(self._params.sftp_private_key_file), phrase and phrase.encode())
        except MemoryError:
            raise
        except Exception as exc:  # noqa: BLE001 (its text may quote the key)
            why = exc.strerror if isinstance(exc, OSError) else "it is not a key, or the passphrase is wrong"
            raise SourceError(f"The file in sftp_private_key_file cannot be used: {why}.") from None

    def _entry(self, path: str) -> Entry | None:
        with self._explained(f"'{self._url}{path}' cannot be looked up"):
            try:
                return _entry_of(path.rpartition("/")[2], self._client.stat(path))
            except FileNotFoundError:
                return None

    def _entries(self, path: str) -> Sequence[Entry]:
        with self._explained(f"'{self._url}{path}' cannot be listed"):
            try:
                listed = self._client.listdir_attr(path)
            except FileNotFoundError:
                return ()
            found = []
            for one in listed:
                if stat.S_ISLNK(one.st_mode or 0):
                    # A link to a file counts as a file. A link to a directory may lead back to a parent.
                    target = self._entry(f"{path.rstrip('/')}/{one.filename}")
                    if target is not None and target.size is not None:
                        found.append(target)
                elif stat.S_ISREG(one.st_mode or 0) or stat.S_ISDIR(one.st_mode or 0):
                    found.append(_entry_of(one.filename, one))
            return found

    def _is_ours(self, connection: socket.socket) -> bool:
        return bool(connection.getpeername()[1] == self._server[1])

    def _reason(self, error: Exception, what: str) -> str:
        if isinstance(error, PermissionError):
            return f"{what}: the server does not allow it"
        if isinstance(error, paramiko.IncompatiblePeer):
            return f"'{self._url}': the server has no key of a type in params.sftp_host_key, or only old ciphers"
        return self._unreachable(error) or f"{what}: the connection broke, or the server does not speak SFTP"


def _entry_of(name: str, attributes: paramiko.SFTPAttributes) -> Entry:
    if stat.S_ISDIR(attributes.st_mode or 0):
        return Entry(name, None)
    modified = attributes.st_mtime
    return Entry(name, attributes.st_size or 0, None if modified is None else float(modified))
