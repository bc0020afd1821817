from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
import trustme

from datasources.refresh.loader import LoaderProcess
from datasources.refresh.service import DatasetService
from datasources.snapshots.snapshot import Order
from tests.datasources.sources.loads import configured, declared, loaded, refused
from tests.datasources.sources.test_http import CSV, ROWS, TOKEN, parquet
from tests.datasources.sources.web_server import File, WebServer, serving
from tests.datasources.support import builder, deadline, rows, wait_for

# --- TLS and proxies --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secure(authority: trustme.CA) -> Iterator[WebServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with serving(context) as server:
        server.files["/a.csv"] = File(CSV)
        yield server


@pytest.fixture
def root(authority: trustme.CA, tmp_path: Path) -> str:
    """The file of the trusted root certificate, beside the YAML."""
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    return "root.pem"


def test_https_is_read_when_the_certificate_is_trusted(secure: WebServer, tmp_path: Path, root: str) -> None:
    source = f"https://localhost:{secure.port}/a.csv"

    assert loaded(tmp_path, source, http_tls_root_certificate_file=root) == ROWS
    assert "the certificate of the server is not trusted (unable to get local issuer" in refused(tmp_path, source)
    by_address = refused(tmp_path, f"https://127.0.0.1:{secure.port}/a.csv", http_tls_root_certificate_file=root)
    assert "the certificate of the server is not trusted (IP address mismatch" in by_address


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), ("no certificate", "it is not a PEM certificate")]
)
def test_an_unusable_root_certificate_is_reported(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "root.pem").write_text(content)

    sentence = refused(tmp_path, "https://localhost/a.csv", http_tls_root_certificate_file="root.pem")

    assert sentence.startswith(f"The file of root certificates cannot be used: {said}")


def test_a_server_without_tls_is_refused(web: WebServer, tmp_path: Path) -> None:
    assert "does not speak TLS as this program does" in refused(tmp_path, f"https://localhost:{web.port}/a.csv")


def test_the_proxy_from_the_environment_is_used_except_for_loopback(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:{TOKEN}@127.0.0.1:{web.port}")
    web.files["http://data.example/a.csv"] = File(b"a\n7\n")

    assert loaded(tmp_path, "http://data.example/a.csv") == [(7,)]
    assert web.requests[0]["Proxy-Authorization"].startswith("Basic ")
    assert loaded(tmp_path, f"{web.url}/a.csv") == ROWS
    assert "Proxy-Authorization" not in web.requests[-1]
    monkeypatch.setenv("no_proxy", ".example")
    assert "cannot be resolved" in refused(tmp_path, "http://data.example/a.csv")


def test_an_unusable_proxy_is_reported_without_its_password(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"http://user:{TOKEN}@127.0.0.1:{web.port}")
    monkeypatch.setenv("http_proxy", f"socks5://user:{TOKEN}@127.0.0.1:1")

    no_tunnel = refused(tmp_path, "https://data.example/a.csv")
    no_url = refused(tmp_path, "http://data.example/a.csv")

    assert "the proxy from the environment refuses the connection" in no_tunnel
    assert no_url == "The proxy from the environment cannot be used: give an http:// or https:// URL."
    assert TOKEN not in no_tunnel + no_url


# --- in its place -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_large_file_is_downloaded_in_bounded_memory(web: WebServer, tmp_path: Path) -> None:
    table = pa.table({"a": range(1_000_000), "b": [index % 7 for index in range(1_000_000)]})
    web.files["/a.parquet"] = File(parquet(table))
    dataset = declared(tmp_path, f"{web.url}/a.parquet", {})
    with closing(LoaderProcess(builder(tmp_path, memory_mib=64))) as process:
        snapshot = process.build(Order(dataset), deadline())

    assert rows(tmp_path, snapshot, "SELECT count(*), sum(a), sum(b) FROM d") == [(1_000_000, 499999500000, 2999997)]


def test_a_service_refreshes_through_an_outage(web: WebServer, tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        f"{web.url}/a.csv",
        {"http_bearer_token": TOKEN, "client_timeout": "5s"},
        refresh_check_interval="100ms",
    )
    service = DatasetService(config, exclusive=True)
    service.start()

    def rows_served(expected: int) -> Callable[[], bool]:
        return lambda: service.datasets()[0].rows == expected

    try:
        wait_for(rows_served(1), "the first load")
        web.files["/a.csv"] = File(b"a,b\n1,x\n2,y\n")
        wait_for(rows_served(2), "the changed file")
        web.files["/a.csv"] = File(status=503)
        failed = wait_for(lambda: [run for run in service.history("d") if run.status == "failed"][2:], "three failures")
        state = service.datasets()[0]
        assert (state.rows, state.status) == (2, "Error")
        assert state.error == f"'{web.url}/a.csv': the server failed (status 503)."
        assert failed[0].error == state.error
        web.files["/a.csv"] = File(b"a,b\n1,x\n2,y\n3,z\n")
        wait_for(rows_served(3), "the source to be back")
        wait_for(lambda: service.datasets()[0].error is None, "the error to be gone")
    finally:
        service.stop(30)
