"""`abfs:` sources, read from azurite; what it never does comes from a web server that answers byte for byte."""

import gzip
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.connectors.azure.azure_server import ACCOUNT, AZURITE, AzureServer, azure_server
from tests.datasources.sources import loads
from tests.datasources.sources.loads import declared, has_changed, version
from tests.web_server import File, WebServer, serving

CSV = b"a,b\n1,x\n"
ROWS = [(1, "x")]
SAS = "sv=2023-11-03&sp=rl&sig=canary-3bZ%3D"
_NUMBERS = itertools.count()

on_azurite = pytest.mark.skipif(AZURITE is None, reason="azurite is missing: npm install -g azurite")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with azure_server(tmp_path_factory.mktemp("azurite")) as running:
        yield running


class Store:
    """A container of the test's own."""

    def __init__(self, server: AzureServer, directory: Path) -> None:
        self.server, self.directory, self.name = server, directory, f"container-{next(_NUMBERS)}"
        server.create(self.name)

    def put(self, path: str, body: bytes = CSV) -> None:
        self.server.put(self.name, path, body)

    def load(self, path: str, scheme: str = "abfss", **params: str) -> list[tuple[Any, ...]]:
        return loads.loaded(self.directory, f"{scheme}://{self.name}/{path}", **(self.server.params | params))

    def refusal(self, path: str, **params: str) -> str:
        given = self.server.params | params
        sentence = loads.refused(self.directory, f"abfss://{self.name}/{path}", **given)
        assert given["abfs_access_key"] not in sentence
        return sentence.replace(self.name, "c")


@pytest.fixture
def store(server: AzureServer, tmp_path: Path) -> Store:
    return Store(server, tmp_path)


# --- azurite ----------------------------------------------------------------------------------------------------------


@on_azurite
@pytest.mark.exhaustive
def test_blobs_directories_and_globs_are_read(store: Store) -> None:
    store.put("d/a.csv")
    store.put("d/e/b+ü &=%.csv")
    store.put("d/_SUCCESS", b"")
    store.put("z.csv.gz", gzip.compress(CSV))

    assert [store.load("d/a.csv", scheme) for scheme in ("abfs", "abfss", "az")] == [ROWS] * 3
    assert store.load("d/e/b+ü &=%.csv") == ROWS
    assert store.load("d") == store.load("d/**/*.csv") == ROWS * 2
    assert store.load("z.csv.gz") == ROWS


@on_azurite
@pytest.mark.exhaustive
def test_refusals_name_the_cause(store: Store, server: AzureServer, tmp_path: Path) -> None:
    assert "'abfss://c/a.csv' does not exist" in store.refusal("a.csv")
    assert "does not allow it: see the credentials" in store.refusal("a.csv", abfs_access_key="d3Jvbmc=")
    missing = loads.refused(tmp_path, "abfss://no-container/a.csv", **server.params)
    assert "'abfss://no-container/a.csv': the container does not exist (status 404)" in missing


@on_azurite
@pytest.mark.exhaustive
def test_a_shared_access_signature_opens_what_it_is_for(store: Store, tmp_path: Path) -> None:
    store.put("a.csv")
    store.put("b.csv")
    params = {name: value for name, value in store.server.params.items() if name != "abfs_access_key"}
    params["abfs_sas_string"] = "?" + store.server.signature(store.name, "a.csv")

    assert loads.loaded(tmp_path, f"az://{store.name}/a.csv", **params) == ROWS
    assert "does not allow it" in loads.refused(tmp_path, f"az://{store.name}/b.csv", **params)


@on_azurite
@pytest.mark.exhaustive
def test_a_change_is_noticed(store: Store) -> None:
    store.put("a.csv")
    dataset = declared(store.directory, f"abfss://{store.name}/a.csv", store.server.params)
    known = version(store.directory, dataset)

    assert not has_changed(store.directory, dataset, known)
    store.put("a.csv", b"a,b\n2,y\n")
    assert has_changed(store.directory, dataset, known)


# --- what azurite never does ------------------------------------------------------------------------------------------


BLOB = "/devaccount/box/a.csv?" + SAS
LIST = "/devaccount/box?restype=container&comp=list&prefix=d%2F"


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving() as running:
        yield running


def shared(web: WebServer) -> dict[str, str]:
    return {"abfs_account": ACCOUNT, "abfs_endpoint": f"{web.url}/{ACCOUNT}", "abfs_sas_string": SAS}


def refused(web: WebServer, directory: Path, source: str = "abfss://box/a.csv", **params: str) -> str:
    sentence = loads.refused(directory, source, **(shared(web) | params))
    assert "canary" not in sentence
    return sentence


def test_a_signature_goes_to_no_other_server(web: WebServer, tmp_path: Path) -> None:
    with serving() as other:
        web.otherwise = File(status=302, headers={"Location": f"{other.url}/a.csv"})

        assert "the server redirects to another server" in refused(web, tmp_path)
        assert other.targets == []
    assert web.targets == [BLOB]


def test_a_blob_that_is_replaced_while_it_is_read_fails_the_load(web: WebServer, tmp_path: Path) -> None:
    web.files[BLOB] = File(CSV, status=412, head_status=200, tag='"1"')

    assert "'abfss://box/a.csv' changed while it was being read" in refused(web, tmp_path)
    assert web.requests[-1]["If-Match"] == '"1"'


def test_a_blob_that_is_cut_short_fails_the_load(web: WebServer, tmp_path: Path) -> None:
    cut = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n' + CSV
    web.files[BLOB] = File(take_over=lambda connection: connection.sendall(cut))

    assert "before all data had arrived" in refused(web, tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "AuthenticationFailed", "this machine's clock is wrong"),
        (403, "AuthorizationPermissionMismatch", "the server does not allow it"),
        (401, "NoAuthenticationInformation", "the server rejected the credentials"),
        (409, "PublicAccessNotPermitted", "the account has no public containers"),
        (503, "ServerBusy", "rate limiting"),
    ],
)
def test_refusals_by_code(web: WebServer, tmp_path: Path, status: int, code: str, reason: str) -> None:
    web.otherwise = File(f"<Error><Code>{code}</Code><Message>{SAS}</Message></Error>".encode(), status=status)

    assert reason in refused(web, tmp_path)


def test_a_server_that_hangs_is_left_at_the_deadline(web: WebServer, tmp_path: Path) -> None:
    def wait(connection: socket.socket) -> None:
        connection.recv(1)

    web.otherwise = File(take_over=wait)

    loads.time_out_repeatedly(tmp_path, declared(tmp_path, "abfss://box/a.csv", shared(web)), rounds=4)


def test_directories_of_data_lake_storage_are_no_files(web: WebServer, tmp_path: Path) -> None:
    entries = "".join(
        f"<Blob><Name>d/{name}</Name><Properties><Etag>0x1</Etag>{more}</Properties><Metadata><Etag>x</Etag></Metadata>"
        "</Blob>"
        for name, more in (("e.csv", "<ResourceType>directory</ResourceType>"), ("a.csv", ""))
    )
    pages = [f"\ufeff<EnumerationResults><Blobs>{entries}</Blobs><NextMarker>n/1</NextMarker></EnumerationResults>"]
    pages.append("<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>")
    web.files[f"{LIST}&{SAS}"] = File(pages[0].encode(), tag=None)
    web.files[f"{LIST}&marker=n%2F1&{SAS}"] = File(pages[1].encode(), tag=None)
    web.files[f"/devaccount/box/d/a.csv?{SAS}"] = File(CSV, tag='"0x1"')

    assert loads.loaded(tmp_path, "abfss://box/d/", **shared(web)) == ROWS


def test_a_list_that_could_mislead_is_refused(web: WebServer, tmp_path: Path) -> None:
    encoded = '<EnumerationResults><Blobs><Blob><Name Encoded="true">d%2Fa</Name></Blob></Blobs></EnumerationResults>'
    for page in (encoded, "<ListBucketResult />", "<!DOCTYPE a><EnumerationResults />"):
        web.files[f"{LIST}&{SAS}"] = File(page.encode(), tag=None)

        assert "'s object listing is not compatible with Azure Storage" in refused(web, tmp_path, "abfss://box/d/")


PRINCIPAL = {"abfs_tenant_id": "example.org", "abfs_client_id": "a-b", "abfs_client_secret": "canary&3bZ"}


def test_a_service_principal_gets_a_token_for_each_load(web: WebServer, tmp_path: Path) -> None:
    web.files["/example.org/oauth2/v2.0/token"] = File(b'{"access_token": "a.b"}', tag=None)
    web.files["/devaccount/box/a.csv"] = File(CSV, tag='"1"')
    given = {name: value for name, value in shared(web).items() if name != "abfs_sas_string"} | PRINCIPAL

    rows = loads.loaded(tmp_path, "abfs://box/a.csv", abfs_authority_host=web.url, **given)
    assert rows == ROWS
    assert web.requests[-1]["Authorization"] == "Bearer a.b"
    assert "canary" not in "".join(web.targets)


def test_a_cluster_vouches_for_a_service_principal(web: WebServer, tmp_path: Path) -> None:
    web.files["/example.org/oauth2/v2.0/token"] = File(b'{"access_token": "a.b", "expires_in": 3599}', tag=None)
    web.files["/devaccount/box/a.csv"] = File(CSV, tag='"1"')
    given = {name: value for name, value in shared(web).items() if name != "abfs_sas_string"}
    given |= {"abfs_tenant_id": "example.org", "abfs_client_id": "a-b", "abfs_authority_host": web.url}
    given["abfs_federated_token_file"] = "token"
    (tmp_path / "token").write_text("canary.header.signature\n")

    assert loads.loaded(tmp_path, "abfs://box/a.csv", **given) == ROWS
    assert parse_qs(web.bodies[0].decode()) == {
        "grant_type": ["client_credentials"],
        "client_id": ["a-b"],
        "scope": ["https://storage.azure.com/.default"],
        "client_assertion_type": ["urn:ietf:params:oauth:client-assertion-type:jwt-bearer"],
        "client_assertion": ["canary.header.signature"],
    }
    assert web.requests[-1]["Authorization"] == "Bearer a.b"
    for content in (b"", b"canary\nb", b"\xff"):
        (tmp_path / "token").write_bytes(content)
        assert "abfs_federated_token_file contains no token" in loads.refused(tmp_path, "abfs://box/a.csv", **given)


@pytest.mark.parametrize(("lasts", "requests"), [("3599", 1), ("30", 2)])
def test_a_managed_identity_gets_its_token_anew_before_it_expires(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts: str, requests: int
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    query = "api-version=2018-02-01&resource=https%3A%2F%2Fstorage.azure.com%2F&client_id=a-b"
    answer = File(f'{{"access_token": "a.b", "expires_in": "{lasts}"}}'.encode(), tag=None)
    web.files[f"/metadata/identity/oauth2/token?{query}"] = answer
    web.files["/devaccount/box/a.csv"] = File(CSV, tag='"1"')
    given = {name: value for name, value in shared(web).items() if name != "abfs_sas_string"}
    given |= {"abfs_msi_endpoint": f"{web.url}/metadata/identity/oauth2/token", "abfs_client_id": "a-b"}

    assert loads.loaded(tmp_path, "abfs://box/a.csv", **given) == ROWS
    asked = [sent for sent, target in zip(web.requests, web.targets, strict=True) if target.startswith("/metadata/")]
    assert [sent["Metadata"] for sent in asked] == ["true"] * requests
    assert web.requests[-1]["Authorization"] == "Bearer a.b"


@pytest.mark.parametrize(
    "answer",
    [
        File(b'{"access_token": "a.b", "expires_in": "soon"}'),
        File(b'{"error": "invalid_client", "error_description": "canary"}', status=401),
        File(b'{"access_token": "a\\r\\nb"}'),
        File(b"[]"),
        File(b'{"access_token": 1}'),
    ],
)
def test_without_a_token_the_load_fails(web: WebServer, tmp_path: Path, answer: File) -> None:
    web.otherwise = answer
    given = {name: value for name, value in shared(web).items() if name != "abfs_sas_string"} | PRINCIPAL

    sentence = loads.refused(tmp_path, "abfs://box/a.csv", abfs_authority_host=web.url, **given)
    assert "did not return a token" in sentence
    assert "canary" not in sentence
    assert len(web.targets) == 1
