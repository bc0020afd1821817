"""
`gs:` sources. moto serves the protocol that Google's XML API shares with S3; it looks at no token.

A web server that answers byte for byte shows what is sent, and covers what moto never does.
"""

import base64
import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from moto.server import ThreadedMotoServer

from tests.datasources.sources import loads
from tests.datasources.sources.loads import declared, has_changed, version
from tests.web_server import File, WebServer, serving

CSV = b"a,b\n1,x\n"
ROWS = [(1, "x")]
OBJECT = "/box/a.csv"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def key() -> str:
    """Return the key of a service account as Google's console writes it."""
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "client_email": "reader@project.iam.gserviceaccount.com",
            "private_key_id": "1",
            "private_key": private.decode(),
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving() as running:
        yield running


def load(directory: Path, web: WebServer, source: str = "gs://box/a.csv", **params: str) -> list[tuple[Any, ...]]:
    return loads.loaded(directory, source, gcs_endpoint=web.url, **params)


def refused(directory: Path, web: WebServer, source: str = "gs://box/a.csv", **params: str) -> str:
    return loads.refused(directory, source, gcs_endpoint=web.url, **params)


def test_objects_prefixes_and_globs_are_read(moto: str, tmp_path: Path) -> None:
    name = f"google-{next(_NUMBERS)}"  # servers of moto in one process share their buckets
    client = boto3.client(
        "s3",
        endpoint_url=moto,
        aws_access_key_id="any",
        aws_secret_access_key="any",
        region_name="us-east-1",
        config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )
    client.create_bucket(Bucket=name, ACL="public-read")
    for path, body in {"d/a.csv": CSV, "d/e/b ü+.csv": CSV, "d/_SUCCESS": b"", "z.csv.gz": gzip.compress(CSV)}.items():
        client.put_object(Bucket=name, Key=path, Body=body, ACL="public-read")
    params = {"gcs_endpoint": moto}

    def read(path: str, scheme: str = "gs") -> list[tuple[Any, ...]]:
        return loads.loaded(tmp_path, f"{scheme}://{name}/{path}", **params)

    assert read("d/a.csv") == read("d/e/b ü+.csv", "gcs") == read("z.csv.gz") == ROWS
    assert read("d") == read("d/**/*.csv") == ROWS * 2
    assert f"'gs://{name}/none.csv' does not exist" in loads.refused(tmp_path, f"gs://{name}/none.csv", **params)

    dataset = declared(tmp_path, f"gs://{name}/d/a.csv", params)
    known = version(tmp_path, dataset)
    assert not has_changed(tmp_path, dataset, known)
    client.put_object(Bucket=name, Key="d/a.csv", Body=b"a,b\n2,y\n")
    assert has_changed(tmp_path, dataset, known)
    client.close()


@pytest.mark.parametrize("form", ["gcs_service_account_key", "gcs_service_account_path"])
def test_a_service_account_signs_its_own_token(web: WebServer, tmp_path: Path, key: str, form: str) -> None:
    web.files[OBJECT] = File(CSV)
    (tmp_path / "key.json").write_text(key)
    (tmp_path / "key.json").chmod(0o600)

    assert load(tmp_path, web, **{form: key if form.endswith("key") else "key.json"}) == ROWS
    scheme, _, token = web.requests[-1]["Authorization"].partition(" ")
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert scheme == "Bearer"
    assert claims["iss"] == claims["sub"] == "reader@project.iam.gserviceaccount.com"
    assert claims["scope"] == "https://www.googleapis.com/auth/devstorage.read_only"
    assert web.requests[-1]["If-Match"] == web.files[OBJECT].all_headers["ETag"]


def test_the_metadata_server_gives_a_token(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{web.port}")
    scope = "https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fdevstorage.read_only"
    target = f"/computeMetadata/v1/instance/service-accounts/default/token?scopes={scope}"
    web.files[OBJECT] = File(CSV)

    sentence = refused(tmp_path, web, gcs_use_metadata_server="true")
    assert "'gcs_use_metadata_server' did not return a token (status 404)" in sentence
    web.files[target] = File(b'{"access_token": "a.b", "expires_in": 3599, "token_type": "Bearer"}', tag=None)
    assert load(tmp_path, web, gcs_use_metadata_server="true") == ROWS
    assert [sent.get("Metadata-Flavor") for sent in web.requests] == ["Google", "Google", None, None]
    assert web.requests[-1]["Authorization"] == "Bearer a.b"


def test_an_object_stored_with_gzip_is_sent_so(web: WebServer, tmp_path: Path) -> None:
    web.files[OBJECT] = File(gzip.compress(CSV), headers={"Content-Encoding": "gzip"})
    web.otherwise = File(CSV)

    assert load(tmp_path, web) == ROWS
    assert web.requests[-1]["Accept-Encoding"] == "gzip"
    assert "'s object listing is not compatible with Google Cloud Storage" in refused(tmp_path, web, "gs://box/d/")
    assert web.requests[-1]["Accept-Encoding"] == "identity"


def test_a_token_goes_to_no_other_server(web: WebServer, tmp_path: Path, key: str) -> None:
    with serving() as other:
        web.otherwise = File(status=307, headers={"Location": f"{other.url}/a.csv"})

        assert "the server redirects to another server" in refused(tmp_path, web, gcs_service_account_key=key)
        assert other.targets == []


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (401, "AuthenticationRequired", "rejected the credentials, or this machine's clock is wrong"),
        (403, "AccessDenied", "whose account needs Storage Object Viewer"),
        (404, "NoSuchBucket", "the bucket does not exist"),
        (429, "SlowDown", "rate limiting"),
        (503, "", "the server failed"),
    ],
)
def test_refusals_name_the_cause(web: WebServer, tmp_path: Path, status: int, code: str, reason: str) -> None:
    web.otherwise = File(f"<Error><Code>{code}</Code></Error>".encode(), status=status)

    assert reason in refused(tmp_path, web)


def test_an_object_that_is_replaced_while_it_is_read_fails_the_load(web: WebServer, tmp_path: Path) -> None:
    web.files[OBJECT] = File(CSV, status=412, head_status=200)

    assert "'gs://box/a.csv' changed while it was being read" in refused(tmp_path, web)


def test_a_key_that_cannot_be_used_is_not_shown(web: WebServer, tmp_path: Path, key: str) -> None:
    broken = json.dumps(json.loads(key) | {"private_key": "canary"})

    sentence = refused(tmp_path, web, gcs_service_account_key=broken)
    assert "The key of the service account cannot be used" in sentence
    assert "canary" not in sentence
