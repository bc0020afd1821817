import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from datasources.errors import SnapshotError
from datasources.sources.s3_bucket import address_of
from tests.datasources.sources import loads
from tests.datasources.sources.test_s3 import CSV, LIST, LIST_TARGET, ROWS, SECRET, listing, refused
from tests.datasources.sources.web_server import File, WebServer, saying, serving
from tests.datasources.support import deadline

pytestmark = pytest.mark.usefixtures("no_credentials_of_this_machine")

# --- servers that are not as they should be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(b"<html></html>", id="a web page"),
        pytest.param(b"no XML", id="no XML"),
        pytest.param(LIST % b"", id="not UTF-8"),
        pytest.param(b'<!DOCTYPE x [<!ENTITY a "b">]>' + LIST % b"<Name>&a;</Name>", id="entities"),
        pytest.param(LIST % b"<IsTruncated>true</IsTruncated>", id="cut without the rest"),
        pytest.param(LIST % (b"<a>" * 10), id="nested"),
        pytest.param(LIST % (b" " * 8 * 1024 * 1024), id="too long"),
    ],
)
def test_an_invalid_listing_is_refused(web: WebServer, tmp_path: Path, page: bytes, request: Any) -> None:
    body = page.decode().encode("utf-16") if "UTF-8" in request.node.callspec.id else page
    web.files[LIST_TARGET] = File(body, tag=None)

    assert refused(web, tmp_path) == "'s3://bucket/d/': the server does not list objects as S3 does."


@pytest.mark.parametrize(
    ("listed", "sent", "condition"),
    [("1", '"1"', '"1"'), ('W/"1"', 'W/"1"', None), ('"1"', 'W/"1"', '"1"'), ('"1"', None, '"1"')],
    ids=["listed without quotes", "weak", "weakened on the way", "not sent"],
)
def test_tags_are_compared_however_a_server_writes_them(
    web: WebServer, tmp_path: Path, listed: str, sent: str | None, condition: str | None
) -> None:
    web.files[LIST_TARGET] = listing((b"b.csv", listed.encode()), (b"a.csv", listed.encode()))
    web.files["/bucket/d/a.csv"] = web.files["/bucket/d/b.csv"] = File(CSV, tag=sent)

    assert loads.loaded(tmp_path, "s3://bucket/d/", s3_endpoint=web.url) == ROWS * 2
    assert web.targets[1:3] == ["/bucket/d/a.csv", "/bucket/d/b.csv"]
    assert web.requests[1].get("If-Match") == condition


def test_a_listing_that_the_deadline_cuts_off_is_not_one_of_a_bad_server(web: WebServer, tmp_path: Path) -> None:
    released = threading.Event()
    web.files[LIST_TARGET] = File(take_over=saying(b"HTTP/1.1 200 OK\r\n\r\n<ListBucketResult>", until=released))
    dataset = loads.declared(tmp_path, "s3://bucket/d/", {"s3_endpoint": web.url})

    with pytest.raises(SnapshotError, match="the refresh_timeout"):
        loads.build(tmp_path, dataset, deadline(0.5))
    released.set()


def test_objects_that_were_not_asked_for_are_refused(web: WebServer, tmp_path: Path) -> None:
    web.files[LIST_TARGET] = File(LIST % b"<Contents><Key>other/a.csv</Key></Contents>", tag=None)

    assert refused(web, tmp_path) == "'s3://bucket/d/': the server lists objects that were not asked for."


def test_get_replaces_head_where_that_is_not_supported(web: WebServer, tmp_path: Path) -> None:
    web.files["/bucket/a.csv"] = File(CSV, head_status=405)

    assert loads.loaded(tmp_path, "s3://bucket/a.csv", s3_endpoint=web.url) == ROWS


def test_keys_of_a_server_that_does_not_escape_them_are_taken_as_they_are(web: WebServer, tmp_path: Path) -> None:
    web.files[LIST_TARGET] = listing((b"a%2B+.csv", b'"1"'))
    web.files["/bucket/d/a%252B%2B.csv"] = File(CSV, tag='"1"')

    assert loads.loaded(tmp_path, "s3://bucket/d/", s3_endpoint=web.url) == ROWS


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (
            301,
            {"x-amz-bucket-region": "eu-central-1"},
            "the bucket is in the region eu-central-1: set params.s3_region",
        ),
        (301, {"x-amz-bucket-region": f"<{SECRET}>"}, "the server does not answer as S3 does (status 301)"),
        (
            307,
            {"Location": "http://127.0.0.1:1/x"},
            "redirects to another one, http://127.0.0.1:1, which is not followed",
        ),
        (400, {}, "the server does not understand the request"),
        (503, {}, "the server failed (status 503)"),
    ],
)
def test_a_response_without_an_object_is_refused(
    web: WebServer, tmp_path: Path, status: int, headers: dict[str, str], said: str
) -> None:
    web.files["/bucket/a.csv"] = File(b"<Error><Code>Strange</Code></Error>", status=status, headers=headers)

    sentence = refused(web, tmp_path, "s3://bucket/a.csv", s3_key="AKIA", s3_secret=SECRET, s3_session_token=SECRET)

    assert said in sentence
    assert SECRET not in sentence
    assert web.requests[0]["X-Amz-Security-Token"] == SECRET
    assert all(SECRET not in request.get("Authorization", "") for request in web.requests)


@pytest.mark.parametrize(
    ("bucket", "params", "place"),
    [
        ("b-1", {}, ("https://b-1.s3.us-east-1.amazonaws.com", "")),
        ("b-1", {"s3_region": "cn-north-1"}, ("https://b-1.s3.cn-north-1.amazonaws.com.cn", "")),
        ("b.1", {"s3_region": "eu-west-1"}, ("https://s3.eu-west-1.amazonaws.com", "/b.1")),
        ("b", {"s3_url_style": "path"}, ("https://s3.us-east-1.amazonaws.com", "/b")),
        ("b", {"s3_endpoint": "http://[::1]:9000"}, ("http://[::1]:9000", "/b")),
        ("b", {"s3_endpoint": "https://h:9000", "s3_url_style": "vhost"}, ("https://b.h:9000", "")),
    ],
)
def test_the_address_of_a_bucket(bucket: str, params: dict[str, str], place: tuple[str, str]) -> None:
    assert address_of(bucket, params) == place


def test_a_bucket_is_read_over_tls(tmp_path: Path, tls: ssl.SSLContext, root: str) -> None:
    with serving(tls) as secure:
        secure.files["/bucket/a.csv"] = File(CSV)
        endpoint = f"https://localhost:{secure.port}"

        found = loads.loaded(
            tmp_path, "s3://bucket/a.csv", s3_endpoint=endpoint, s3_tls_root_certificate_file=Path(root).name
        )
        untrusted = loads.refused(tmp_path, "s3://bucket/a.csv", s3_endpoint=endpoint)

    assert found == ROWS
    assert "the certificate of the server is not trusted" in untrusted
