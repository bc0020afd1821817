"""How the client connects: servers that do not respond, proxies, TLS."""

import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trustme

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import ConnectionFailedError, UsageError
from runtimeclient.http.results import CSV
from runtimeclient.http.timeouts import Timeouts
from tests.runtimeclient.calling import call
from tests.runtimeclient.http.raw_server import speaking
from tests.runtimeclient.remote import API_KEY, Remote, Reply, serve

IMPATIENT = Timeouts(connect_s=0.2, silence_s=0.2)


@pytest.mark.parametrize("is_up", [True, False])
def test_x09_a_server_that_is_down_or_silent(is_up: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Nothing listens on port 1.
        url = f"http://127.0.0.1:{server.getsockname()[1]}" if is_up else "http://127.0.0.1:1"
        said = r"did not respond within 0\.2 s" if is_up else "is the runtime running"
        with RuntimeClient(url, API_KEY, timeouts=IMPATIENT) as client:
            for call in (client.ping, client.status, lambda: client.sql("SELECT 1")):
                with pytest.raises(ConnectionFailedError, match=said):
                    call()


def test_x09_a_server_that_drops_packets() -> None:
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        # A full backlog: Linux ignores whoever comes next, like a firewall that drops packets.
        first.connect(server.getsockname())
        second.setblocking(False)
        second.connect_ex(server.getsockname())
        with (
            RuntimeClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeouts=IMPATIENT) as client,
            pytest.raises(ConnectionFailedError, match=r"No connection to .* within 0\.2 s"),
        ):
            client.ping()


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 200", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_x09_a_server_that_speaks_something_else(answer: bytes) -> None:
    with (
        speaking(answer) as url,
        RuntimeClient(url) as client,
    ):
        with pytest.raises(ConnectionFailedError, match="does it speak https"):
            client.status()
        client.ping()
        with pytest.raises(ConnectionFailedError, match="did the runtime stop"):
            client.status()


def test_x09_an_unknown_host_and_a_server_without_tls(remote: Remote) -> None:
    for url, said in (
        ("http://absent.invalid:8090", "cannot be resolved"),
        ("http://a..b:8090", "cannot be resolved"),
        (remote.url.replace("http", "https"), "does it speak plain http"),
    ):
        with RuntimeClient(url, API_KEY) as client, pytest.raises(ConnectionFailedError, match=said):
            client.ping()


def test_any_transport_will_do() -> None:
    def application(environ: dict[str, object], start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/csv")])
        return [b"a\n", b"1\n"]

    transport = httpx.WSGITransport(application)

    with (
        RuntimeClient("http://testserver", API_KEY, transport=transport) as client,
        client.sql("SELECT", CSV) as answer,
    ):
        assert "".join(answer.pieces()) == "a\n1\n"


# Proxies


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_loopback_requests_use_no_proxy(remote: Remote, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with serve(Remote()) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        remote.on("GET", "/v1/status", Reply(body=b"[]"))

        with RuntimeClient(remote.url, API_KEY) as client:
            client.status()

        assert proxy.requests == []


def test_a_proxy_of_the_environment_serves_other_hosts_and_may_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Remote()) as proxy:
        proxy.on("GET", "http://runtime.example:8090/v1/status", Reply(body=b"[]"))
        monkeypatch.setenv("ALL_PROXY", proxy.url)

        with RuntimeClient("http://runtime.example:8090", API_KEY) as client:
            assert client.status() == ()
        with (
            RuntimeClient("https://runtime.example:8090", API_KEY) as client,
            pytest.raises(ConnectionFailedError, match="proxy"),
        ):
            client.status()
        proxy.on("GET", "http://runtime.example:8090/v1/status", Reply(407, b"<html>", "text/html"))
        for url, said in (
            (proxy.url, r"responds \(407 "),
            ("http://127.0.0.1:1", "was refused"),
            ("http://absent.invalid", "cannot be resolved"),
        ):
            monkeypatch.setenv("ALL_PROXY", url)
            with (
                RuntimeClient("http://runtime.example:8090", API_KEY) as client,
                pytest.raises(ConnectionFailedError, match=rf":8090 \(through the proxy from the environment\) {said}"),
            ):
                client.status()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "gopher://127.0.0.1:1", "http://127.0.0.1:x"])
def test_a_proxy_that_cannot_be_used_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)

    with pytest.raises(UsageError, match="proxy"):
        RuntimeClient("http://runtime.example:8090", API_KEY)


# TLS


@contextmanager
def serve_tls(certificate: trustme.LeafCert) -> Iterator[Remote]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with serve(Remote(), context) as remote:
        remote.on("GET", "/v1/status", Reply(body=b"[]"))
        yield remote


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def root_file(authority: trustme.CA, tmp_path: Path) -> Path:
    file = tmp_path / "root.pem"
    authority.cert_pem.write_to_path(str(file))
    return file


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, even if the shell that runs the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_call_even_if_it_comes_just_before_the_client_waits(is_tls: bool, tmp_path: Path) -> None:
    has_arrived, may_answer = threading.Event(), threading.Event()

    def answer(_: object) -> Reply:
        has_arrived.set()
        may_answer.wait(60)
        return Reply()

    def press() -> None:
        has_arrived.wait(60)
        # A signal that another thread gets interrupts no wait of the main thread, as one that comes before it.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    authority = trustme.CA()
    roots = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(roots)
    with (
        serve_tls(authority.issue_cert("127.0.0.1")) if is_tls else serve(Remote()) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=roots if is_tls else None) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        remote.on_sql(answer)
        pressed = pool.submit(press)

        with pytest.raises(KeyboardInterrupt):
            client.sql("SELECT 1")

        pressed.result()
        assert not may_answer.is_set()
        may_answer.set()


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_call_in_progress_ends_when_another_thread_breaks_it_off(is_tls: bool, tmp_path: Path) -> None:
    has_arrived, may_answer = threading.Event(), threading.Event()

    def answer(_: object) -> Reply:
        has_arrived.set()
        may_answer.wait(60)
        return Reply()

    authority = trustme.CA()
    roots = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(roots)
    with (
        serve_tls(authority.issue_cert("127.0.0.1")) if is_tls else serve(Remote()) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=roots if is_tls else None) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        remote.on_sql(answer)
        call = pool.submit(client.sql, "SELECT 1")
        assert has_arrived.wait(60)

        client.break_off()

        with pytest.raises(ConnectionFailedError):
            call.result(60)
        with pytest.raises(ConnectionFailedError):
            client.ping()
        may_answer.set()


@pytest.mark.parametrize("is_named", [True, False])
def test_x08_a_root_comes_from_the_option_or_the_environment(
    authority: trustme.CA, root_file: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    if not is_named:
        monkeypatch.setenv("SSL_CERT_FILE", str(root_file))

    with (
        serve_tls(authority.issue_cert("127.0.0.1")) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=root_file if is_named else None) as client,
    ):
        assert client.status() == ()

    assert remote.requests[0].headers["X-API-Key"] == API_KEY


@pytest.mark.parametrize(
    ("host", "days", "root", "reason"),
    [
        pytest.param("127.0.0.2", 1, "root.pem", "IP address mismatch", id="X08 wrong address"),
        pytest.param("localhost", 1, "root.pem", "IP address mismatch", id="X08 a name where an address is asked for"),
        pytest.param("127.0.0.1", -1, "root.pem", "certificate has expired", id="X08 expired"),
        pytest.param("127.0.0.1", 1, "other.pem", "unable to get local issuer", id="X08 another root"),
        pytest.param("127.0.0.1", 1, None, "unable to get local issuer", id="X08 only the default roots"),
    ],
)
def test_x08_an_invalid_certificate_is_refused(
    authority: trustme.CA, root_file: Path, host: str, days: int, *, root: str | None, reason: str
) -> None:
    trustme.CA().cert_pem.write_to_path(str(root_file.with_name("other.pem")))
    until = datetime.now(UTC) + timedelta(days=days)
    certificate = authority.issue_cert(host, not_before=until - timedelta(days=3), not_after=until)
    roots = None if root is None else root_file.with_name(root)

    with (
        serve_tls(certificate) as remote,
        RuntimeClient(remote.url, API_KEY, tls_root_certificate_file=roots) as client,
        pytest.raises(ConnectionFailedError, match=f"cannot be trusted: .*{reason}.*--tls-root-certificate-file"),
    ):
        client.status()

    assert remote.requests == []


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_a_root_file_that_cannot_be_used_is_a_usage_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "root.pem"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(UsageError, match=r"root certificate file .*root\.pem cannot be used"):
        RuntimeClient("https://127.0.0.1:8090", tls_root_certificate_file=file)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SSL_CERT_FILE", "absent", "The root certificate file {}, named by SSL_CERT_FILE, cannot be used: No such"),
        ("SSL_CERT_FILE", ".", "The root certificate file {}, named by SSL_CERT_FILE, cannot be used: Is a dir"),
        (
            "SSL_CERT_FILE",
            "text",
            "The root certificate file {}, named by SSL_CERT_FILE, cannot be used: it is not a PEM",
        ),
        ("SSL_CERT_DIR", "absent", "SSL_CERT_DIR cannot be used: {} is not a directory."),
        ("SSL_CERT_DIR", "text", "SSL_CERT_DIR cannot be used: {} is not a directory."),
        ("SSLKEYLOGFILE", "absent/log", "The file {}, named by SSLKEYLOGFILE, cannot be written: No such file"),
        ("SSLKEYLOGFILE", ".", "The file {}, named by SSLKEYLOGFILE, cannot be written: Is a directory"),
    ],
)
def test_a_tls_variable_that_cannot_be_used_is_a_usage_error_of_each_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    (tmp_path / "text").write_text("no certificate")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / value))
    connection = ("--api-key", API_KEY, "--http-endpoint", "https://127.0.0.1:1")

    for command in (("status",), ("login",)):  # The others connect as `status` does.
        called = call(*command, *connection)

        assert (called.status, called.out) == (2, "")
        assert called.err.startswith(f"Error: {said.format(tmp_path / value)}")
        assert called.err.count("\n") == 1


def test_a_tls_variable_does_not_matter_where_it_is_not_used(
    remote: Remote, authority: trustme.CA, root_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    remote.on("GET", "/v1/status", Reply(body=b"[]"))

    with RuntimeClient(remote.url, API_KEY) as client:
        assert client.status() == ()
    with (
        serve_tls(authority.issue_cert("127.0.0.1")) as secure,
        RuntimeClient(secure.url, API_KEY, tls_root_certificate_file=root_file) as client,
    ):
        assert client.status() == ()


def test_x08_a_directory_of_roots_from_the_environment(
    authority: trustme.CA, root_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name under which OpenSSL looks for a certificate.
    subject = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", str(root_file)], capture_output=True, text=True, check=True
    ).stdout.strip()
    root_file.rename(root_file.with_name(f"{subject}.0"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", f"/nonexistent:{root_file.parent}")

    with serve_tls(authority.issue_cert("127.0.0.1")) as remote, RuntimeClient(remote.url, API_KEY) as client:
        assert client.status() == ()
