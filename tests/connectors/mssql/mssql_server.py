"""
A server of Microsoft SQL Server's protocol on a port of loopback: MS-TDS 7.4, for the statements that `mssql:` sends.

It holds tables in memory and evaluates no SQL: it recognizes the statements of the source, and answers a query on a
table with the columns that are asked for and every row. Packets, TLS inside packets, the types of columns and values
are those of the specification ([MS-TDS], sections 2.2.5 to 2.2.7), so that the driver does all of its work.
"""

import re
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
import trustme

from runtimeconf.model import DatasetConfig
from tests.connectors.mssql.mssql_values import COLLATION, Codec, codec, time_text
from tests.datasources.sources import loads

USER, PASSWORD, DATABASE = "reader", "p@ss';--word€", "shop"

_BATCH, _REPLY, _ATTENTION, _LOGIN, _PRELOGIN = 1, 4, 6, 16, 18
_NOT_SUPPORTED, _ON, _OFF = 2, 1, 0
_PACKET_BYTES = 4096

_NAME = r"\[((?:[^\]]|\]\])*)\]"
_NAME = r"\[(?:[^\]]|\]\])*\]"
#: A column of a query: a cast of it, a time as text, perhaps in UTC, or its name alone; and its name.
_COLUMN = re.compile(
    rf"(?:CAST\({_NAME} AS ([a-z0-9(),]+)\)"
    rf"|CONVERT\((nvarchar\(\d+\)), (CAST\(SWITCHOFFSET\()?{_NAME}.*?, 121\)|{_NAME}) AS ({_NAME})"
)
#: Whether a time of a column is outside a range, and whether it has digits below microseconds.
_CHECK = re.compile(
    rf"MAX\(CASE WHEN ({_NAME}) < CAST\('(.{{19}})' AS \w+\) OR {_NAME} >= CAST\('(.{{19}})' AS \w+\) "
    r"THEN 1 ELSE 0 END\), "
    rf"MAX\(CASE WHEN DATEPART\(nanosecond, {_NAME}\) % 1000 > 0 THEN 1 ELSE 0 END\)"
)


@dataclass
class Table:
    """
    A table: *columns* are names and types as the server describes them, and *rows* their values.

    Before it sends row number *pause_at*, the server calls *pause*.
    """

    columns: Mapping[str, str]
    rows: Iterable[Sequence[Any]] = ()
    pause: Callable[[], object] = lambda: None
    pause_at: int = -1


class Refusal(Exception):  # noqa: N818 (what a server answers)
    """An error of the server: its number and its text."""

    def __init__(self, number: int, text: str = "text of the server") -> None:
        self.number, self.text = number, text


class Hangup(Exception):  # noqa: N818
    """Raised by `Table.pause`: the server ends the connection without a word."""


@dataclass
class MssqlServer:
    """What the server offers, and what it has seen: the `statements`, and the passwords of `logins`."""

    port: int
    tls: ssl.SSLContext | None = None
    tables: dict[str, Table] = field(default_factory=dict)
    has_snapshots: bool = True
    refusals: dict[str, Refusal] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    logins: list[tuple[str, str, str]] = field(default_factory=list)
    is_plain: bool = False  # the rows come without TLS

    @property
    def params(self) -> dict[str, str]:
        names = ("mssql_host", "mssql_port", "mssql_database", "mssql_username", "mssql_password")
        return dict(zip(names, ("localhost", str(self.port), DATABASE, USER, PASSWORD), strict=True))


@contextmanager
def mssql_server(tls: ssl.SSLContext | None, port: int = 0) -> Iterator[MssqlServer]:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError, EOFError, Hangup):
                _Session(self.request, served).run()

    class Server(ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        served = MssqlServer(server.server_address[1], tls)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def context(authority: trustme.CA, host: str) -> ssl.SSLContext:
    """Return the context of a server with a certificate for *host*; SQL Server has TLS 1.2 in this protocol."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    authority.issue_cert(host).configure_cert(made)
    return made


Declare = Callable[..., DatasetConfig]


@pytest.fixture
def mssql(authority: trustme.CA) -> Iterator[MssqlServer]:
    with mssql_server(context(authority, "localhost")) as running:
        yield running


@pytest.fixture
def mssql_table(mssql: MssqlServer, root: str, tmp_path: Path) -> Declare:
    """Declare a dataset of the server; keywords are params, and None leaves one out."""

    def declare(location: str, **params: str | None) -> DatasetConfig:
        found = {**mssql.params, "mssql_sslrootcert": root, **params}
        return loads.table(tmp_path, f"mssql:{location}", **{key: value for key, value in found.items() if value})

    return declare


class _Session:
    """One connection."""

    def __init__(self, connection: Any, server: MssqlServer) -> None:
        self._socket, self._server = connection, server
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def run(self) -> None:
        _, prelogin = self._message()
        wanted = _encryption(prelogin)
        agreed = _NOT_SUPPORTED if self._server.tls is None or wanted == _NOT_SUPPORTED else wanted
        options = ((0, bytes(6)), (1, bytes([agreed])), (2, b"\0"), (3, b""), (4, b"\0"))
        offset, head, body = 5 * len(options) + 1, b"", b""
        for number, value in options:
            head += struct.pack(">BHH", number, offset + len(body), len(value))
            body += value
        self._send(_REPLY, head + b"\xff" + body)
        if agreed != _NOT_SUPPORTED:
            self._start_tls()
        _, login = self._message()
        if agreed == _OFF:
            self._tls = None
        self._server.is_plain = self._tls is None
        self._log_in(login)
        while True:
            kind, message = self._message()
            if kind == _ATTENTION:
                self._send(_REPLY, _done(0x20))
                continue
            (headers,) = struct.unpack("<I", message[:4])
            try:
                self._answer(message[headers:].decode("utf-16-le"))
            except Refusal as refusal:
                self._send(_REPLY, _error(refusal) + _done(2))

    # --- packets ------------------------------------------------------------------------------------------------------

    def _exactly(self, size: int) -> bytes:
        """Return the next *size* bytes, decrypted."""
        data = b""
        while len(data) < size:
            if self._tls is not None:
                with suppress(ssl.SSLWantReadError):
                    data += self._tls.read(size - len(data))
                    continue
            if not (received := self._socket.recv(size - len(data) if self._tls is None else 65536)):
                raise EOFError
            if self._tls is None:
                data += received
            else:
                self._incoming.write(received)
        return data

    def _message(self) -> tuple[int, bytes]:
        """Return the type of the next message, and what its packets contain."""
        body, is_last = b"", False
        while not is_last:
            kind, status, length = struct.unpack(">BBH4x", self._exactly(8))
            body += self._exactly(length - 8)
            is_last = bool(status & 1)
        return kind, body

    def _send(self, kind: int, body: bytes, *, is_last: bool = True) -> bytes:
        """Send *body* in packets; unless it *is_last*, return the rest that fills none."""
        size = _PACKET_BYTES - 8
        count = max(1, -(-len(body) // size)) if is_last else len(body) // size
        packets = bytearray()
        for index in range(count):
            part = body[index * size : (index + 1) * size]
            packets += struct.pack(">BBHHBB", kind, is_last and index == count - 1, len(part) + 8, 0, index % 256, 0)
            packets += part
        if self._tls is not None and packets:
            self._tls.write(packets)
            packets = bytearray(self._outgoing.read())
        self._socket.sendall(packets)
        return body[count * size :]

    def _start_tls(self) -> None:
        assert self._server.tls is not None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._server.tls.wrap_bio(self._incoming, self._outgoing, server_side=True)
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                if answer := self._outgoing.read():
                    self._send(_PRELOGIN, answer)
                self._incoming.write(self._message()[1])
            except ssl.SSLError:
                self._send(_PRELOGIN, self._outgoing.read())  # the alert
                raise EOFError from None
            else:
                self._send(_PRELOGIN, self._outgoing.read())
                self._tls = session
                return

    # --- messages -----------------------------------------------------------------------------------------------------

    def _log_in(self, login: bytes) -> None:
        def text(offset: int, *, is_password: bool = False) -> str:
            start, length = struct.unpack_from("<HH", login, offset)
            data = login[start : start + 2 * length]
            if is_password:
                data = bytes((byte ^ 0xA5) >> 4 | ((byte ^ 0xA5) << 4 & 0xF0) for byte in data)
            return data.decode("utf-16-le")

        user, password, database = text(40), text(44, is_password=True), text(68)
        self._server.logins.append((user, password, database))
        refusal = self._server.refusals.get("login")
        if (user, password) != (USER, PASSWORD):
            refusal = Refusal(18456, f"Login failed for user '{user}'.")
        if refusal is not None:
            self._send(_REPLY, _error(refusal) + _done(2))
            raise EOFError
        collation = b"\x07\x05" + COLLATION + b"\0"
        size = b"\x04" + _short_text(str(_PACKET_BYTES)) * 2
        changes = b"".join(b"\xe3" + struct.pack("<H", len(change)) + change for change in (collation, size))
        acknowledged = b"\x01" + bytes.fromhex("74000004") + _short_text("Microsoft SQL Server") + bytes(4)
        acknowledgement = b"\xad" + struct.pack("<H", len(acknowledged)) + acknowledged
        self._send(_REPLY, _CONTEXT + changes + acknowledgement + _done())

    def _answer(self, statement: str) -> None:
        self._server.statements.append(statement)
        for pattern, refusal in self._server.refusals.items():
            if re.search(pattern, statement):
                raise refusal
        if "snapshot_isolation_state" in statement:
            self._rows([codec("tinyint")], ["state"], Table({}, [(int(self._server.has_snapshots),)]))
        elif described := re.search(r"first_result_set\(N'SELECT \* FROM (.*)', NULL", statement):
            self._describe(self._table(described[1].replace("''", "'")))
        elif probed := re.fullmatch(r"SELECT TOP \(0\) 1 AS one FROM (.*)", statement):
            self._table(probed[1])
            self._rows([codec("int")], ["one"], Table({}))
        elif checked := re.fullmatch(r"SELECT (MAX.*) FROM (\[.*\])", statement):
            table = self._table(checked[2])
            results = [result for check in _CHECK.findall(checked[1]) for result in _checked(table, *check)]
            self._rows([codec("int")] * len(results), [""] * len(results), Table({}, [results]), range(len(results)))
        elif asked := re.match(r"SELECT (.*?) FROM (\[.*\])(?: WHERE .*)?$", statement):
            table = self._table(asked[2])
            columns = [(*found, _unquoted(name)) for *found, name in _COLUMN.findall(asked[1])]
            codecs = []
            for cast, text, in_utc, name in columns:
                info, encode = codec(cast or text or table.columns[name])
                codecs.append((info, encode if not text else _of_text(encode, is_in_utc=bool(in_utc))))
            names = [name for *_, name in columns]
            self._rows(codecs, names, table, [list(table.columns).index(name) for name in names])
        else:
            assert statement.startswith(("SET ", "use ", "BEGIN ")), statement
            self._send(_REPLY, (_CONTEXT if statement.startswith("use ") else b"") + _done())

    def _table(self, quoted: str) -> Table:
        if quoted not in self._server.tables:
            raise Refusal(208, f"Invalid object name '{quoted}'.")
        return self._server.tables[quoted]

    def _describe(self, table: Table) -> None:
        described = [
            (name, None, kind, None) if kind.startswith(("geo", "hierarchy")) else (name, kind, None, None)
            for name, kind in table.columns.items()
        ]
        codecs = [codec(kind) for kind in ("nvarchar(128)", "nvarchar(256)", "nvarchar(128)", "int")]
        self._rows(codecs, ["name", "system_type_name", "user_type_name", "error_number"], Table({}, described))

    def _rows(
        self, codecs: Sequence[Codec], names: Sequence[str], table: Table, places: Sequence[int] = range(4)
    ) -> None:
        body = b"\x81" + struct.pack("<H", len(names))
        for name, (info, _) in zip(names, codecs, strict=True):
            body += struct.pack("<IH", 0, 1) + info + _short_text(name)
        encoders = [(place, encode) for place, (_, encode) in zip(places, codecs, strict=False)]
        places = [place for place, _ in encoders]
        for number, row in enumerate(table.rows):
            if number == table.pause_at:
                body = self._send(_REPLY, body, is_last=False)
                try:
                    table.pause()
                except Refusal as refusal:
                    self._send(_REPLY, body + _error(refusal) + _done(2))
                    return
            if None in row:  # as NBCROW, which has a bit for each null
                nulls = sum((row[place] is None) << bit for bit, place in enumerate(places))
                body += b"\xd2" + nulls.to_bytes(-(-len(encoders) // 8), "little")
                body += b"".join([encode(row[place]) for place, encode in encoders if row[place] is not None])
            else:
                body += b"\xd1" + b"".join([encode(row[place]) for place, encode in encoders])
            if len(body) > 16 * _PACKET_BYTES:
                body = self._send(_REPLY, body, is_last=False)
        self._send(_REPLY, body + _done())


def _encryption(prelogin: bytes) -> int:
    """Return what the option ENCRYPTION says; its number is 1, and 255 ends the options."""
    ends = next(at for at in range(0, len(prelogin), 5) if prelogin[at] == 0xFF)
    offset: int = next(struct.unpack_from(">H", prelogin, at + 1)[0] for at in range(0, ends, 5) if prelogin[at] == 1)
    return prelogin[offset]


def _unquoted(name: str) -> str:
    return name[1:-1].replace("]]", "]")


def _checked(table: Table, quoted: str, first: str, end: str) -> tuple[int, int]:
    """Return the results of `_CHECK` for all rows."""
    place = list(table.columns).index(_unquoted(quoted))
    texts = [time_text(row[place], is_in_utc=True) for row in table.rows if row[place] is not None]
    first, end = first.replace("T", " "), end.replace("T", " ")
    return int(any(not first <= text < end for text in texts)), int(any(text[26] > "0" for text in texts))


def _of_text(encode: Callable[[Any], bytes], *, is_in_utc: bool) -> Callable[[Any], bytes]:
    return lambda value: encode(time_text(value, is_in_utc=is_in_utc))


def _short_text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("utf-16-le")


def _done(status: int = 0) -> bytes:
    return b"\xfd" + struct.pack("<HHQ", status, 0, 0)


def _error(refusal: Refusal, token: bytes = b"\xaa", severity: int = 16) -> bytes:
    text = struct.pack("<H", len(refusal.text)) + refusal.text.encode("utf-16-le")
    body = struct.pack("<IBB", refusal.number, 1, severity) + text + _short_text("server") + _short_text("") + bytes(4)
    return token + struct.pack("<H", len(body)) + body


#: What the server says after each change of the database: a message, not an error.
_CONTEXT = _error(Refusal(5701, "Changed database context."), b"\xab", 0)
