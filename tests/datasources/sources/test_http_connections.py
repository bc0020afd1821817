import ssl
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.datasources.sources.loads import declared, load_in_process, loaded, outlive, refused
from tests.datasources.sources.test_http import CSV, ROWS, TOKEN, parquet
from tests.datasources.sources.web_server import File, WebServer, serving

# --- TLS and proxies --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tls: ssl.SSLContext) -> Iterator[WebServer]:
    with serving(tls) as server:
        server.files["/a.csv"] = File(CSV)
        yield server


def test_https_is_read_when_the_certificate_is_trusted(
    secure: WebServer, web: WebServer, tmp_path: Path, root: str
) -> None:
    source = f"https://localhost:{secure.port}/a.csv"

    # A relative path is taken from the directory of the YAML.
    assert loaded(tmp_path, source, http_tls_root_certificate_file=Path(root).name) == ROWS
    assert "the certificate of the server is not trusted (unable to get local issuer" in refused(tmp_path, source)
    by_address = refused(tmp_path, f"https://127.0.0.1:{secure.port}/a.csv", http_tls_root_certificate_file=root)
    assert "the certificate of the server is not trusted (IP address mismatch" in by_address
    assert "does not speak TLS as this program does" in refused(tmp_path, f"https://localhost:{web.port}/a.csv")


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), ("no certificate", "it is not a PEM certificate")]
)
def test_an_unusable_root_certificate_is_reported(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "root.pem").write_text(content)

    sentence = refused(tmp_path, "https://localhost/a.csv", http_tls_root_certificate_file="root.pem")

    assert sentence.startswith(f"The file of root certificates cannot be used: {said}")


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

    found = load_in_process(tmp_path, dataset, "SELECT count(*), sum(a), sum(b) FROM d")

    assert found == [(1_000_000, 499999500000, 2999997)]


def test_a_dataset_follows_its_file_and_outlives_its_server(web: WebServer, tmp_path: Path) -> None:
    def answer(more: bytes = b"", status: int = 200) -> None:
        web.files["/a.csv"] = File(web.files["/a.csv"].body + more, status)

    outlive(
        tmp_path,
        declared(tmp_path, f"{web.url}/a.csv", {"http_bearer_token": TOKEN, "client_timeout": "5s"}),
        change=lambda: answer(b"2,y\n"),
        stop=lambda: answer(status=503),
        start=answer,
    )
