import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from connectors.origin import Origin
from datasources.errors import SnapshotError, SourceError
from runtimeconf.model import AccelerationConfig
from tests.datasources.sources.loads import (
    build,
    declared,
    has_changed,
    loaded,
    refused,
    time_out_repeatedly,
    version_of,
)
from tests.datasources.sources.test_excel import by_openpyxl
from tests.datasources.support import Start, connections_to, deadline, files_below, open_below, served, state
from tests.file_limit import file_limit
from tests.system.harness import free_port, wait_for
from tests.web_server import LONG_AGO, NOW, File, WebServer, saying, serving

CSV = b"a,b\n1,x\n"
ROWS = [(1, "x")]
TOKEN = "canary-3bZ"
EXCEL = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
#: The same rows in a file that needs to be described.
ODD = "title\na;b\n1,0;'x'\n".encode("utf-16")
DESCRIPTION = {"encoding": "utf-16", "skip_rows": 1, "csv_quote": "'", "decimal_separator": ","}


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set at the end of the test: what holds connections open lets them go."""
    event = threading.Event()
    yield event
    event.set()


# --- what is read -----------------------------------------------------------------------------------------------------


def parquet(table: pa.Table | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table or pa.table({"a": [1], "b": ["x"]}), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("target", "file", "params"),
    [
        pytest.param("/d/a.parquet", File(parquet()), {}, id="by name"),
        pytest.param("/a.csv.gz", File(gzip.compress(CSV)), {}, id="gzipped by name"),
        pytest.param("/A%2eCSV", File(CSV), {}, id="escaped name in capitals"),
        pytest.param("/", File(CSV, headers={"Content-Type": "Text/CSV; charset=utf-8"}), {}, id="by media type"),
        pytest.param("/j", File(b'{"a":1,"b":"x"}', headers={"Content-Type": "application/x-ndjson"}), {}, id="ndjson"),
        pytest.param("/t", File(CSV), {"file_format": "csv"}, id="by parameter"),
        pytest.param("/a.json", File(CSV), {"file_format": "csv"}, id="the parameter before the name"),
        pytest.param("/c.csv", File(CSV, chunk_bytes=3), {}, id="chunked"),
        pytest.param("/e.csv", File(gzip.compress(CSV), headers={"Content-Encoding": "gzip"}), {}, id="encoded"),
        pytest.param(
            "/e.csv.gz", File(gzip.compress(CSV), headers={"Content-Encoding": "x-gzip"}), {}, id="named and encoded"
        ),
        pytest.param("/i.csv", File(CSV, headers={"Content-Encoding": "identity"}), {}, id="encoded as it is"),
        pytest.param("/w", File(by_openpyxl(("a", "b"), (1, "x")), headers={"Content-Type": EXCEL}), {}, id="workbook"),
        pytest.param("/o.csv.zst", File(pa.compress(ODD, "zstd", asbytes=True)), DESCRIPTION, id="described"),
    ],
)
def test_a_file_is_read_in_its_format(
    web: WebServer, tmp_path: Path, target: str, file: File, params: dict[str, Any]
) -> None:
    web.files[target] = file

    assert loaded(tmp_path, web.url + target, **params) == ROWS


@pytest.mark.parametrize(
    ("written", "target"), [("/a b/ü'\".csv", "/a%20b/%C3%BC'%22.csv"), ("/a%20b.csv", "/a%20b.csv"), ("/@:*.csv",) * 2]
)
def test_names_are_url_encoded(web: WebServer, tmp_path: Path, written: str, target: str) -> None:
    web.files[target] = File(CSV)

    assert loaded(tmp_path, web.url + written) == ROWS
    assert web.targets == [target, target]


def test_one_connection_serves_all_requests_and_nothing_is_left(web: WebServer, tmp_path: Path) -> None:
    assert loaded(tmp_path, f"{web.url}/a.csv") == ROWS

    assert web.targets == ["/a.csv", "/a.csv"]
    assert len(set(web.clients)) == 1
    assert connections_to(web.port) == 0
    assert open_below(tmp_path) == []
    assert [name for name in files_below(tmp_path) if "refresh_tmp" in name] == []


def test_a_redirect_within_the_server_is_followed(web: WebServer, tmp_path: Path) -> None:
    web.files["/old.csv"] = File(b"moved", status=302, headers={"Location": f"{web.url}/a.csv#x"})
    web.files["/older.csv"] = File(status=301, headers={"Location": "old.csv"})

    assert loaded(tmp_path, f"{web.url}/older.csv") == ROWS
    assert web.targets == ["/older.csv", "/old.csv", "/a.csv"] * 2


def test_the_port_and_the_query_may_be_parameters(web: WebServer, tmp_path: Path) -> None:
    web.files[f"/a.csv?token={TOKEN}&x=%20"] = File(CSV)

    assert loaded(tmp_path, "http://127.0.0.1/a.csv", http_port=str(web.port)) == ROWS
    assert loaded(tmp_path, f"http://127.0.0.1:{web.port}/a.csv", http_port="1") == ROWS
    assert loaded(tmp_path, f"{web.url}/a.csv", http_query=f"token={TOKEN}&x= ") == ROWS
    assert TOKEN not in refused(tmp_path, f"{web.url}/absent.csv", http_query=f"token={TOKEN}")


# --- credentials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        ({"http_username": "u", "http_password": "p: w"}, "Authorization", "Basic dTpwOiB3"),
        ({"http_username": "key"}, "Authorization", "Basic a2V5Og=="),
        ({"http_username": "jürgen", "http_password": "ß€"}, "Authorization", "Basic asO8cmdlbjrDn+KCrA=="),
        ({"http_bearer_token": TOKEN}, "Authorization", f"Bearer {TOKEN}"),
        ({"http_headers": f"X-Token: {TOKEN}\nUser-Agent: mine\n"}, "X-Token", TOKEN),
        ({"http_headers": "User-Agent:mine"}, "User-Agent", "mine"),
    ],
)
def test_credentials_are_sent_with_each_request(
    web: WebServer, tmp_path: Path, params: dict[str, str], name: str, value: str
) -> None:
    assert loaded(tmp_path, f"{web.url}/a.csv", **params) == ROWS
    assert [request[name] for request in web.requests] == [value, value]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_credentials_go_to_no_other_origin(web: WebServer, tmp_path: Path, code: int) -> None:
    with serving() as other:
        other.files["/a.csv"] = File(CSV)
        elsewhere = f"http://127.0.0.1:{other.port}/a.csv?t={TOKEN}"
        web.files["/a.csv"] = File(status=code, headers={"Location": elsewhere})

        sentence = refused(tmp_path, f"{web.url}/a.csv", http_bearer_token=TOKEN)

    assert sentence == (
        f"'{web.url}/a.csv': the server redirects to another server, http://127.0.0.1:{other.port}. "
        "Redirects to other servers are not followed: if you trust that server, set it in the configuration."
    )
    assert other.requests == []


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("/loop.csv", "the server redirects too often"),
        ("https://127.0.0.1:{port}/a.csv", "redirects to another server"),
        ("http://127.0.0.1/a.csv", "redirects to another server, http://127.0.0.1. Redirects"),
        ("http://u:p@127.0.0.1:{port}/a.csv", "redirects to an address that is not a URL"),
        ("ftp://127.0.0.1/a.csv", "redirects to an address that is not a URL"),
        ("//[/a.csv", "redirects to an address that is not a URL"),
        ("/\xe4.csv", "redirects to an address that is not a URL"),
    ],
)
def test_other_redirects_are_refused(web: WebServer, tmp_path: Path, location: str, said: str) -> None:
    web.files["/loop.csv"] = File(status=302, headers={"Location": location.format(port=web.port)})

    assert said in refused(tmp_path, f"{web.url}/loop.csv")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (File(status=401), "the server rejected the credentials: see http_username"),
        (File(status=403), "the server does not allow it (status 403)"),
        (File(status=404), "it does not exist (status 404)"),
        (File(status=429), "the server is rate limiting requests (status 429)"),
        (File(status=503), "the server failed (status 503)"),
        (File(CSV, status=206), "the server did not return the file (status 206)"),
        (File(status=304), "the server did not return the file (status 304)"),
        (File(status=302), "the server did not return the file (status 302)"),
        (File(b"<html>", headers={"Content-Type": "text/html"}), "the server returned a web page"),
        (File(b""), "is empty (0 bytes)"),
        (File(b" \n"), "contains no data"),
        (File(CSV, headers={"Content-Encoding": "br"}), "the server uses a compression other than gzip"),
        (File(CSV, headers={"Content-Encoding": "gzip"}), "is damaged"),
        (File(b"a,b\n1\n"), "line 2: it has more or fewer fields than the header"),
    ],
)
def test_responses_without_a_valid_file_are_refused(web: WebServer, tmp_path: Path, file: File, said: str) -> None:
    web.files["/a.csv"] = file

    sentence = refused(tmp_path, f"{web.url}/a.csv", http_username="u", http_password=TOKEN)

    assert sentence.startswith(f"'{web.url}/a.csv'")
    assert said in sentence
    assert TOKEN not in sentence


def test_a_file_of_an_unknown_format_is_refused(web: WebServer, tmp_path: Path) -> None:
    web.files["/a"] = File(CSV, headers={"Content-Type": "application/octet-stream"})
    web.files["/a.parquet"] = File(gzip.compress(parquet()), headers={"Content-Encoding": "gzip"})

    assert "from its name or its media type: set params.file_format" in refused(tmp_path, f"{web.url}/a")
    assert "is compressed twice" in refused(tmp_path, f"{web.url}/a.parquet")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\n"


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        pytest.param("before all data had arrived", (HEAD, b"Content-Length: 9\r\n\r\n", CSV), id="cut"),
        pytest.param(
            "before all data had arrived", (HEAD, b"Transfer-Encoding: chunked\r\n\r\n8\r\n", CSV), id="cut chunks"
        ),
        pytest.param("neither the length of the file nor a chunked body", (HEAD, b"\r\n", CSV), id="no length"),
        pytest.param("before all data had arrived", (), id="no answer"),
        pytest.param("before all data had arrived", (b"220 ready\r\n",), id="not HTTP"),
        pytest.param("before all data had arrived", (HEAD, b"X: ", b"x" * 200_000), id="endless header"),
    ],
)
def test_a_truncated_response_is_refused(web: WebServer, tmp_path: Path, said: str, parts: tuple[bytes, ...]) -> None:
    web.files["/a.csv"] = File(take_over=saying(*parts))

    assert said in refused(tmp_path, f"{web.url}/a.csv")


@pytest.mark.parametrize("chunk_bytes", [0, 1000])
def test_more_bytes_than_allowed_are_refused(web: WebServer, tmp_path: Path, chunk_bytes: int) -> None:
    web.files["/a.csv"] = File(b"a\n" + b"1\n" * 10_000, chunk_bytes=chunk_bytes)
    web.files["/b.csv"] = File(b"a\n" + b"1\n" * 9 * 1024 * 1024, chunk_bytes=chunk_bytes * 1000)

    limited = refused(tmp_path, f"{web.url}/a.csv", max_download_size="20000B")

    assert limited == f"'{web.url}/a.csv' is larger than params.max_download_size allows."
    assert "larger than query.temp_directory_limit allows" in refused(tmp_path, f"{web.url}/b.csv")
    assert len(loaded(tmp_path, f"{web.url}/a.csv", max_download_size="20002B")) == 10_000

    # Chunks override a length (RFC 9112, 6.3).
    web.files["/a.csv"] = File(b"a\n" + b"1\n" * 10_000, chunk_bytes=1000, headers={"Content-Length": "5"})
    assert limited == refused(tmp_path, f"{web.url}/a.csv", max_download_size="9000")
    assert len(loaded(tmp_path, f"{web.url}/a.csv")) == 10_000


def test_a_full_disk_is_reported(web: WebServer, tmp_path: Path) -> None:
    web.files["/a.csv"] = File(b"a\n" + b"1\n" * 500_000)
    dataset = declared(tmp_path, f"{web.url}/a.csv", {})
    said = "cannot be written to the state directory: File too large"
    with file_limit(300_000), pytest.raises(SnapshotError, match=said):
        build(tmp_path, dataset)


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    unreachable = f"http://127.0.0.1:{free_port()}/a.csv"

    assert "the server cannot be reached (Connection refused)" in refused(tmp_path, unreachable)
    assert "the server's host name cannot be resolved" in refused(tmp_path, "http://absent.invalid/a.csv")


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_silent_server_ends_with_the_client_timeout(
    web: WebServer, tmp_path: Path, released: threading.Event
) -> None:
    web.files["/a.csv"] = File(take_over=saying(HEAD, b"Content-Length: 9\r\n\r\na", until=released))

    sentence = refused(tmp_path, f"{web.url}/a.csv", client_timeout="300ms")

    assert sentence == f"'{web.url}/a.csv': the server was silent for 0.3 s, the client_timeout."


def dripping(head: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Send a little all the time, for longer than any test."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(head)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            connection.sendall(drop)
            time.sleep(0.02)

    return drip


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(File(take_over=dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x")), id="headers"),
        pytest.param(File(take_over=dripping(HEAD + b"Content-Length: 99999\r\n\r\n", b"x")), id="body"),
        pytest.param(File(take_over=dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n")), id="informational answers"),
    ],
)
def test_a_server_that_trickles_bytes_is_cut_off_at_the_deadline(web: WebServer, tmp_path: Path, file: File) -> None:
    web.files["/a.csv"] = file
    began = time.monotonic()

    with pytest.raises(SnapshotError, match=r"stopped after 0\.5 s, the refresh_timeout"):
        build(tmp_path, declared(tmp_path, f"{web.url}/a.csv", {}), deadline(0.5))

    assert time.monotonic() - began < 30


def test_the_end_of_one_load_leaves_another_of_the_same_server_alone(web: WebServer, released: threading.Event) -> None:
    def outlast(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Content-Length: 8\r\n\r\na,b\n")
        released.wait(30)
        connection.sendall(b"1,x\n")

    endless = dripping(HEAD + b"Content-Length: 99999\r\n\r\n", b"x")
    web.files |= {"/endless": File(take_over=endless), "/a.csv": File(take_over=outlast)}
    with (
        Origin(web.url, "endless", deadline(0.5), 30.0, None) as one,
        Origin(web.url, "a.csv", deadline(), 30.0, None) as other,
        other.request("/a.csv", []) as answer,
    ):
        with pytest.raises(SnapshotError, match="the refresh_timeout"), one.request("/endless", []) as cut:
            list(cut.blocks())
        released.set()

        assert b"".join(answer.blocks()) == CSV


def test_servers_that_never_answer_leave_nothing(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as listener:
        dataset = declared(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}/a.csv", {})
        time_out_repeatedly(tmp_path, dataset, rounds=20, limit_s=0.05)


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows_conditions", [True, False])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"tag": "made"}, {"tag": "made"}, id="tag"),
        pytest.param({"tag": 'W/"1"'}, {"tag": 'W/"2"'}, id="weak tag"),
        pytest.param(
            {"tag": None, "headers": {"Last-Modified": LONG_AGO}},
            {"tag": None, "headers": {"Last-Modified": "Sat, 21 Nov 2026 11:59:59 GMT"}},
            id="time",
        ),
    ],
)
def test_a_changed_file_is_detected(
    web: WebServer,
    tmp_path: Path,
    first: dict[str, object],
    second: dict[str, object],
    knows_conditions: bool,
) -> None:
    web.files["/a.csv"] = File(CSV, knows_conditions=knows_conditions, **first)  # type: ignore[arg-type]
    version = version_of(tmp_path, f"{web.url}/a.csv")
    assert version is not None

    dataset = declared(tmp_path, f"{web.url}/a.csv", {})

    assert not has_changed(tmp_path, dataset, version)
    web.files["/a.csv"] = File(b"a\n2\n", knows_conditions=knows_conditions, **second)  # type: ignore[arg-type]
    assert has_changed(tmp_path, dataset, version)
    web.files["/a.csv"] = File(CSV, tag=None)
    assert has_changed(tmp_path, dataset, version)
    web.files["/a.csv"] = File(status=500)
    with pytest.raises(SourceError, match=r"the server failed \(status 500\)"):
        has_changed(tmp_path, dataset, version)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Last-Modified": NOW},
        {"Last-Modified": "soon"},
        {"Last-Modified": f"Fri, {'9' * 20} Nov 2026 12:00:00 GMT"},
        {"Last-Modified": f"Fri, 20 Nov 2026 12:00:00 +{'9' * 20}"},
        {"Last-Modified": "Fri, 20 Nov 2026 12:00:00 -0000"},
        {"ETag": '"' + "x" * 1000 + '"'},
    ],
    ids=["none", "in this second", "no date", "no year", "no such zone", "no zone", "too long"],
)
def test_validators_that_could_miss_a_change_give_no_version(
    web: WebServer, tmp_path: Path, headers: dict[str, str]
) -> None:
    web.files["/a.csv"] = File(CSV, tag=None, headers=headers)

    assert version_of(tmp_path, f"{web.url}/a.csv") is None


def test_r09_a_file_that_changes_while_it_is_sent_is_refused_unless_its_tag_is_weak(
    web: WebServer, tmp_path: Path
) -> None:
    def become(file: File) -> Callable[[], None]:
        return lambda: web.files.update({"/a.csv": file})

    web.files["/a.csv"] = File(CSV, after=become(File(b"a,b\n2,y\n")))
    assert refused(tmp_path, f"{web.url}/a.csv") == (
        f"'{web.url}/a.csv' changed while it was being read; the next refresh will read it again."
    )
    assert loaded(tmp_path, f"{web.url}/a.csv") == [(2, "y")]

    web.files["/a.csv"] = File(CSV, tag='W/"1"', after=become(File(CSV, tag='W/"2"')))
    assert loaded(tmp_path, f"{web.url}/a.csv") == ROWS


# --- TLS and proxies --------------------------------------------------------------------------------------------------


def test_https_is_read_when_the_certificate_is_trusted(
    tls: ssl.SSLContext, web: WebServer, tmp_path: Path, root: str
) -> None:
    with serving(tls) as secure:
        secure.files["/a.csv"] = File(CSV)
        source = f"https://localhost:{secure.port}/a.csv"

        # A relative path is taken from the directory of the YAML.
        assert loaded(tmp_path, source, http_tls_root_certificate_file=Path(root).name) == ROWS
        assert "the certificate of the server is not trusted (unable to get local issuer" in refused(tmp_path, source)
        by_address = refused(tmp_path, f"https://127.0.0.1:{secure.port}/a.csv", http_tls_root_certificate_file=root)
        assert "the certificate of the server is not trusted (IP address mismatch" in by_address
    assert "uses an incompatible version of TLS" in refused(tmp_path, f"https://localhost:{web.port}/a.csv")


def test_an_unusable_root_certificate_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.pem").write_text("no certificate")

    cases = {"absent.pem": "No such file", "text.pem": "it is not a PEM certificate", ".": "Is a directory"}
    for name, said in cases.items():
        for_source = refused(tmp_path, "https://localhost/a.csv", http_tls_root_certificate_file=name)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
        for_all = refused(tmp_path, "https://localhost/a.csv")
        assert for_source.startswith(f"The file of root certificates cannot be used: {said}")
        assert f"named by SSL_CERT_FILE in the environment of the runtime, cannot be used: {said}" in for_all


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


def test_an_unusable_proxy_hides_its_password(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", f"http://user:{TOKEN}@127.0.0.1:{web.port}")
    monkeypatch.setenv("http_proxy", f"socks5://user:{TOKEN}@127.0.0.1:1")

    no_tunnel, no_url = (refused(tmp_path, f"{scheme}://data.example/a.csv") for scheme in ("https", "http"))

    assert "the proxy from the environment refused the connection" in no_tunnel
    assert no_url == "The proxy from the environment cannot be used: use an http:// or https:// URL."
    assert TOKEN not in no_tunnel + no_url


# --- in its place -----------------------------------------------------------------------------------------------------


def test_a_dataset_follows_its_file_and_outlives_its_server(web: WebServer, tmp_path: Path, start: Start) -> None:
    params = {"http_bearer_token": TOKEN, "client_timeout": "5s"}
    often = AccelerationConfig(refresh_check_interval_s=0.2)
    refresher = start(replace(declared(tmp_path, f"{web.url}/a.csv", params), acceleration=often))
    wait_for(lambda: state(refresher).rows == 1, "the first load")

    web.files["/a.csv"] = File(CSV + b"2,y\n")
    wait_for(lambda: state(refresher).rows == 2, "the change")
    web.files["/a.csv"] = File(status=503)
    wait_for(lambda: sum(run.status == "failed" for run in refresher.history("d")) >= 3, "three failures")
    assert (state(refresher).status, state(refresher).rows) == ("Error", 2)
    web.files["/a.csv"] = File(b"a,b\n7,z\n")
    wait_for(lambda: served(tmp_path) == [(7, "z")], "the server that is back")
