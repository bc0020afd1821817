import gzip
import itertools
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from datasources.errors import SnapshotError, SourceError
from datasources.refresh.loader import LoaderProcess
from datasources.snapshots.snapshot import Order
from runtimeconf.s3_params import S3Params
from tests.connectors.moto_server import KEYS_OF_A_PAGE, S3Server, s3_server
from tests.datasources.sources import loads
from tests.datasources.sources.loads import declared, has_changed, version
from tests.datasources.sources.test_excel import by_openpyxl
from tests.datasources.support import builder, deadline
from tests.web_server import File, WebServer, saying, serving

pytestmark = pytest.mark.usefixtures("no_credentials_of_this_machine")

CSV = b"a,b\n1,x\n"
ROWS = [(1, "x")]
SECRET = "canary-3bZ"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


class Store:
    """A bucket of the test's own."""

    def __init__(self, server: S3Server, client: Any, directory: Path) -> None:
        self.client = client
        self.name = f"bucket-{next(_NUMBERS)}"
        self.params = server.params
        self.directory = directory
        self.client.create_bucket(Bucket=self.name)

    def put(self, key: str, body: bytes = CSV, **more: Any) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body, **more)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def load(self, key: str, **params: Any) -> list[tuple[Any, ...]]:
        return loads.loaded(self.directory, f"s3://{self.name}/{key}", **(self.params | params))

    def refusal(self, key: str, **params: str) -> str:
        params = self.params | params
        sentence = loads.refused(self.directory, f"s3://{self.name}/{key}", **params)
        assert not any(params.get(name, SECRET) in sentence for name in ("s3_key", "s3_secret", "s3_session_token"))
        return sentence.replace(f"s3://{self.name}", "s3:/")


@pytest.fixture
def store(server: S3Server, tmp_path: Path) -> Iterator[Store]:
    with closing(server.client()) as client:
        yield Store(server, client, tmp_path)


LIST = (
    b"""<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</ListBucketResult>"""
)
ENTRY = b"<Contents><Key>d/%s</Key><ETag>%s</ETag><Size>8</Size></Contents>"


def listing(*entries: tuple[bytes, bytes]) -> File:
    return File(LIST % b"".join(ENTRY % entry for entry in entries), tag=None)


LIST_TARGET = "/bucket/?list-type=2&encoding-type=url&prefix=d%2F"


def refused(web: WebServer, directory: Path, source: str = "s3://bucket/d/", **params: str) -> str:
    return loads.refused(directory, source, s3_endpoint=web.url, **params)


# --- which objects ----------------------------------------------------------------------------------------------------


def test_objects_are_read_as_their_description_says(store: Store) -> None:
    odd = "title\na;b\n1,0;'ü'\n".encode("latin-1")
    description: dict[str, Any] = {"encoding": "latin-1", "skip_rows": 1, "csv_quote": "'", "decimal_separator": ","}
    for key in ("d/a.csv", "d/b.csv"):
        store.put(key, gzip.compress(odd), ContentEncoding="gzip")
    store.put("w.xlsx", by_openpyxl(("a", "b"), (1, "x")))

    assert store.load("d/", **description) == [(1.0, "ü")] * 2
    assert store.load("w.xlsx") == ROWS


def test_an_object_is_read_whatever_its_key(store: Store) -> None:
    keys = [
        "d/a b+c&d=e.csv",
        "ü/'\"$~!*(),:;@%41.csv",
        "d//a.csv",
        "/a.csv",
        "a/./b/../c.csv",
        "q?x=1#f.csv",
        "[1].csv",
    ]
    for number, key in enumerate(keys):
        store.put(key, b"a\n%d\n" % number)
    for other in ("qxx=1#f.csv", "1.csv"):
        store.put(other, b"a\n99\n")

    assert [store.load(key) for key in keys] == [[(number,)] for number in range(len(keys))]


def test_formats_are_detected_as_for_files(store: Store) -> None:
    store.put("a.csv.gz", gzip.compress(CSV))
    store.put("table", CSV)
    store.put("encoded.csv", gzip.compress(CSV), ContentEncoding="gzip")
    store.put("chunked.csv", CSV, ContentEncoding="aws-chunked")

    assert store.load("a.csv.gz") == ROWS
    assert store.load("table", file_format="csv") == ROWS
    assert store.load("encoded.csv") == ROWS
    assert store.load("chunked.csv") == ROWS


def test_a_prefix_or_a_bucket_reads_the_objects_below_it_except_markers(store: Store) -> None:
    for key in ("d/1.csv", "d/year=2024/2.csv"):
        store.put(key)
    for key in ("d/", "d/_SUCCESS", "d/.hidden.csv", "d/_temporary/3.csv", "d/sub/", "dx/4.csv", "e.csv"):
        store.put(key, b"" if key.endswith("/") else b"a,b\n9,z\n")

    assert store.load("d/") == ROWS * 2
    assert store.load("d") == ROWS * 2
    for key in ("dx/4.csv", "e.csv"):
        store.delete(key)
    assert store.load("") == ROWS * 2
    assert loads.loaded(store.directory, f"s3://{store.name}", **store.params) == ROWS * 2


def test_a_glob_gives_the_objects_that_match_it(store: Store) -> None:
    keys = ["d/a.csv", "d/2023/b.csv", "d/2024/c.csv", "d/2024/x/d.csv", "d/5/_m.csv", "d/.h/e.csv", "d//f.csv"]
    for number, key in enumerate(keys, 1):
        store.put(key, b"a\n%d\n" % number)
    store.put("d/2024/x.tmp/", b"")
    matching = {
        "d/*.csv": [1],
        "d/*/*.csv": [2, 3, 5],
        "d/**/*.csv": [1, 2, 3, 4, 5],
        "d/20?3/*.csv": [2],
        "d/[x2]*/[!c]*": [2],
        "**/d.csv": [4],
        "d/2024/**": [3, 4],
        "d/.h/*": [6],
        "d//*.csv": [7],
    }

    found = {pattern: [row[0] for row in sorted(store.load(pattern))] for pattern in matching}

    assert found == matching


def test_matching_a_glob_takes_bounded_time(web: WebServer, tmp_path: Path) -> None:
    deep = b"/".join([b"a"] * 400)
    web.files["/bucket/?list-type=2&encoding-type=url&prefix="] = listing((deep, b'"1"'))

    assert "matches no object" in refused(web, tmp_path, "s3://bucket/" + "**/a/" * 150 + "b.csv")


def test_all_pages_of_a_listing_are_read(store: Store) -> None:
    for number in range(2 * KEYS_OF_A_PAGE + 1):
        store.put(f"d/{number} +.csv", b"a\n%d\n" % number)

    assert sorted(store.load("d/")) == [(number,) for number in range(2 * KEYS_OF_A_PAGE + 1)]


def test_objects_that_are_no_table_are_refused(store: Store) -> None:
    store.put("mixed/a.csv")
    store.put("mixed/b.json", b"{}")
    store.put("stored/a.csv")
    store.put("stored/b.csv", gzip.compress(CSV), ContentEncoding="gzip")
    store.put("other.csv", ContentEncoding="br")
    store.put("twice.parquet", ContentEncoding="gzip")
    store.put("bare")
    store.put("empty.csv", b"")
    store.put("bad.csv", b"a,b\n1\n")
    store.put("odd\u202e/x")
    said = {
        "absent.csv": "'s3://absent.csv' does not exist; to read the objects below it, write it with a slash",
        "absent": "'s3://absent' has no object below it.",
        "absent/": "'s3://absent/' has no object below it.",
        "*.txt": "'s3://*.txt' matches no object.",
        "mixed/": "'s3://mixed/' mixes formats, such as",
        "stored/": "'s3://stored/' mixes formats: only some of its objects are stored with gzip.",
        "other.csv": "'s3://other.csv' is stored with an encoding other than gzip.",
        "twice.parquet": "'s3://twice.parquet' is compressed twice",
        "bare": "The format of 's3://bare' cannot be determined from its name",
        "empty.csv": "'s3://empty.csv' is empty (0 bytes).",
        "bad.csv": "'s3://bad.csv', line 2: it has more or fewer fields than the header.",
        "odd*/x": "The format of 's3://odd\ufffd/x' cannot be determined from its name",
    }

    heard = {key: store.refusal(key) for key in said}

    assert {key: sentence for key, sentence in heard.items() if said[key] not in sentence} == {}


def test_all_objects_together_have_the_allowed_size_at_most(store: Store) -> None:
    store.put("d/1.csv", b"a\n" + b"1\n" * 600)
    store.put("d/2.csv", b"a\n" + b"1\n" * 600)

    assert len(store.load("d/", max_download_size="2404")) == 1200
    assert "2.csv' is larger than params.max_download_size allows" in store.refusal("d/", max_download_size="2403")


# --- credentials ------------------------------------------------------------------------------------------------------


def test_wrong_credentials_and_a_missing_bucket_are_distinguished(server: S3Server, store: Store) -> None:
    store.put("a.csv")

    assert "s3_secret does not match s3_key (status 403)" in store.refusal("a.csv", s3_secret="wrong" + SECRET)
    assert "s3_key is unknown to the server" in store.refusal("a.csv", s3_key="AKIA" + SECRET)
    for key in ("a.csv", ""):
        said = store.refusal(key, s3_key=server.other_key, s3_secret=server.other_secret)
        assert "the server does not allow it: see s3_auth" in said

    store.name = "absent-bucket"
    assert "the bucket does not exist" in store.refusal("d/")
    assert "the bucket does not exist" in store.refusal("a.csv")


def test_credentials_of_the_environment_are_used_only_on_request(
    server: S3Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a.csv")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    store.params = {"s3_endpoint": server.url}

    assert store.load("a.csv", s3_auth="iam_role") == ROWS
    assert "the server does not allow it" in store.refusal("a.csv")
    assert "the server does not allow it" in store.refusal("a.csv", s3_auth="public")
    monkeypatch.setenv("AWS_PROFILE", "absent")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert store.refusal("a.csv", s3_auth="iam_role").startswith("The credentials of this machine cannot be read (")
    monkeypatch.delenv("AWS_PROFILE")
    assert "there are no credentials in the environment or on this machine" in store.refusal(
        "a.csv", s3_auth="iam_role"
    )


def test_a_failed_search_for_credentials_shows_no_secret(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.directory / "config").write_text(f"[default]\ncredential_process = sh -c 'echo {SECRET}'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(store.directory / "config"))
    store.params = {"s3_endpoint": store.params["s3_endpoint"]}

    sentence = store.refusal("a.csv", s3_auth="iam_role")

    assert sentence.startswith("The credentials of this machine cannot be read (")
    assert SECRET not in sentence


def test_a_bucket_in_the_host_is_signed_for_that_host(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", store.params["s3_endpoint"])
    monkeypatch.setenv("no_proxy", "")
    store.put("a b.csv")

    found = store.load(
        "a b.csv", s3_endpoint="http://s3.us-east-1.amazonaws.com", allow_http="true", s3_url_style="vhost"
    )

    assert found == ROWS


# --- versions and generations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["d/a.csv", "d/", "d/*.csv"])
def test_a_changed_object_is_detected(store: Store, tmp_path: Path, key: str) -> None:
    store.put("d/a.csv")
    dataset = declared(tmp_path, f"s3://{store.name}/{key}", store.params)
    first = version(tmp_path, dataset)

    assert not has_changed(tmp_path, dataset, first)
    store.put("d/a.csv", b"a,b\n2,y\n")
    assert has_changed(tmp_path, dataset, first)
    store.put("d/a.csv")
    assert not has_changed(tmp_path, dataset, first)
    store.put("d/b.csv")
    assert has_changed(tmp_path, dataset, first) is (key != "d/a.csv")


def test_r09_an_object_that_is_replaced_before_it_is_read_is_refused(web: WebServer, tmp_path: Path) -> None:
    web.files[LIST_TARGET] = listing((b"a.csv", b'"1"'))
    web.files["/bucket/d/a.csv"] = File(CSV, tag='"2"')
    said = "'s3://bucket/d/a.csv' changed while it was being read; the next refresh will read it again."

    assert refused(web, tmp_path) == said
    web.files["/bucket/d/a.csv"] = File(status=412, tag=None)
    assert refused(web, tmp_path) == said
    assert web.requests[-1]["If-Match"] == '"1"'


def test_r09_a_prefix_in_which_an_object_comes_while_it_is_read_is_refused(web: WebServer, tmp_path: Path) -> None:
    def come() -> None:
        web.files[LIST_TARGET] = listing((b"a.csv", b'"1"'), (b"b.csv", b'"2"'))

    web.files[LIST_TARGET] = listing((b"a.csv", b'"1"'))
    web.files["/bucket/d/a.csv"] = File(CSV, tag='"1"', after=come)

    assert refused(web, tmp_path) == (
        "The objects of 's3://bucket/d/' changed during the read; the next refresh will retry."
    )


@pytest.mark.parametrize("tag", [None, '"\u00e9"', '"' + "x" * 1000])
def test_an_object_without_a_tag_that_can_be_sent_has_no_version(
    web: WebServer, tmp_path: Path, tag: str | None
) -> None:
    web.files["/bucket/a.csv"] = File(CSV, tag=tag)

    assert loads.version_of(tmp_path, "s3://bucket/a.csv", s3_endpoint=web.url) is None


# --- in its place -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_load_may_have_the_credentials_of_the_machine(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken in the process of a load, which has an environment of its own."""
    role = {"Code": "Success", "AccessKeyId": server.key, "SecretAccessKey": server.secret}
    role |= {"Token": SECRET, "Expiration": "2099-01-01T00:00:00Z"}
    place = "/latest/meta-data/iam/security-credentials/"
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    dataset = declared(tmp_path, "s3://bucket/a.csv", {"s3_endpoint": server.url, "s3_auth": "iam_role"})
    with serving() as machine:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url)
        machine.files["/latest/api/token"] = File(b"a token")
        machine.files[place] = File(b"a-role")
        machine.files[f"{place}a-role"] = File(json.dumps(role).encode())
        with closing(LoaderProcess(builder(tmp_path))) as process, pytest.raises(SourceError) as caught:
            process.build(Order(dataset), deadline())

    # They came, and were sent: this server knows the key, but not the token of a role.
    assert "the session token is not valid" in str(caught.value)


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

    assert refused(web, tmp_path) == "'s3://bucket/d/': the server's object listing is not compatible with S3."


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

    assert refused(web, tmp_path) == "'s3://bucket/d/': the server listed objects that were not requested."


def test_a_server_without_head_or_escaped_keys_is_read(web: WebServer, tmp_path: Path) -> None:
    web.files["/bucket/a.csv"] = File(CSV, head_status=405)
    web.files[LIST_TARGET] = listing((b"a%2B+.csv", b'"1"'))
    web.files["/bucket/d/a%252B%2B.csv"] = File(CSV, tag='"1"')

    for source in ("s3://bucket/a.csv", "s3://bucket/d/"):
        assert loads.loaded(tmp_path, source, s3_endpoint=web.url) == ROWS


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (
            301,
            {"x-amz-bucket-region": "eu-central-1"},
            "the bucket is in the region eu-central-1: set params.s3_region",
        ),
        (301, {"x-amz-bucket-region": f"<{SECRET}>"}, "the server's response is not compatible with S3 (status 301)"),
        (
            307,
            {"Location": "http://127.0.0.1:1/x"},
            "redirects to another server, http://127.0.0.1:1. Redirects",
        ),
        (400, {}, "the server cannot process the request"),
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
    assert S3Params.of(params).address_of(bucket) == place


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
