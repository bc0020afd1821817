"""
A bucket of S3, or of a compatible server: its objects, and the bytes of one version of an object.

botocore signs the requests, and finds the credentials of the machine if the YAML allows it. The requests use the
connection of `http:` sources, so the same rules hold for time, redirects, certificates and proxies.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree as ET

import botocore.session
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials

from datasources.deadline import Deadline
from datasources.errors import SourceError
from datasources.sources.origin import Answer, Origin

_DEFAULT_REGION = "us-east-1"

#: A page of a list has at most 1,000 keys of 1,024 bytes, escaped.
_MAX_PAGE_BYTES = 8 * 1024 * 1024
#: The deepest nesting of elements in a page; those of an owner are the deepest.
_MAX_DEPTH = 8
_FED_LETTERS = 64 * 1024
_MAX_ERROR_BYTES = 64 * 1024

#: A longer ETag is not kept; those of S3 have about forty characters.
_MAX_TAG_LENGTH = 1000

#: Our reasons for the error codes of S3.
_CODES = {
    "NoSuchKey": "it does not exist",
    "NoSuchBucket": "the bucket does not exist",
    "InvalidAccessKeyId": "s3_key is not known there",
    "SignatureDoesNotMatch": "s3_secret does not belong to s3_key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "InvalidObjectState": "it is archived: restore it first",
    "SlowDown": "the server is rate limiting requests",
}
_STATUSES = {
    400: "the server does not understand the request, perhaps for a wrong s3_region or s3_url_style",
    401: "the server requires other credentials: see s3_key and s3_secret",
    403: "the server does not allow it: see s3_auth, s3_key and s3_secret",
    404: "it does not exist",
    407: "the proxy from the environment requires credentials",
    429: "the server is rate limiting requests",
}


@dataclass(frozen=True, slots=True, order=True)
class StoredObject:
    """
    An object of a bucket: its *key*, by which objects are sorted, and the ETag of its version, empty if there is none.

    *size* is in bytes, None if unknown. It is not compared: one version has one size.
    """

    key: str
    tag: str
    size: int | None = field(default=None, compare=False)


class Bucket(Origin):
    """
    The bucket *name*, for one load that ends with *deadline*. The owner closes it. *params* are `S3_PARAMS`.

    Raises:
        SourceError: There are no credentials, or the parameters do not allow a connection.
    """

    def __init__(self, name: str, params: Mapping[str, str], deadline: Deadline) -> None:
        self.name = name
        self._region = params.get("s3_region", _DEFAULT_REGION)
        self._credentials = _credentials(params)
        self._address, self._path = address_of(name, params)
        root_certificate_file = params.get("s3_tls_root_certificate_file")
        super().__init__(self._address, f"s3://{name}", deadline, params.get("client_timeout"), root_certificate_file)

    def shown(self, key: str) -> str:
        """Return *key* for use in errors: a key may contain any character."""
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in f"s3://{self.name}/{key}")

    def look(self, key: str) -> StoredObject | None:
        """
        Return the object *key*; None if there is none.

        Raises:
            SourceError: It cannot be looked up.
        """
        # A response to HEAD has no body: only GET tells whether the key or the bucket is missing.
        for method in ("HEAD", "GET"):
            with self._ask(method, key) as answer:
                if answer.status == 200:
                    return StoredObject(key, _tag(answer.headers.get("etag", "")), answer.length)
                if method == "GET":
                    code = _code_of(answer)
                    if answer.status != 404 or code == "NoSuchBucket":
                        raise self._refusal(answer, code, self.shown(key))
        return None

    def listed(self, prefix: str, delimiter: str = "") -> Iterator[StoredObject]:
        """
        Yield the objects whose keys begin with *prefix* and have no *delimiter* after it, in the order of the server.

        Raises:
            SourceError: They cannot be listed.
        """
        shown = self.shown(prefix)
        token: str | None = ""
        while token is not None:
            query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
            if delimiter:
                query["delimiter"] = delimiter
            if token:
                query["continuation-token"] = token
            with self._ask("GET", "", query) as answer:
                if answer.status != 200:
                    raise self._refusal(answer, _code_of(answer), shown)
                page = answer.beginning(_MAX_PAGE_BYTES + 1)
            objects, token = _page_of(page, shown)
            if not all(one.key.startswith(prefix) for one in objects):
                raise SourceError(f"'{shown}': the server lists objects that were not asked for.")
            yield from objects

    def read(self, found: StoredObject, start: int, count: int) -> bytes:
        """
        Return *count* bytes of an object from *start* on, in exactly the version that was *found*.

        Raises:
            SourceError: It was replaced or deleted, or cannot be read, or the server sends another part.
        """
        wanted = f"{start}-{start + count - 1}"
        with self.get(found, f"bytes={wanted}") as answer:
            # One more byte, so that the response is read to its end.
            content = answer.beginning(count + 1)
            part = answer.headers.get("content-range", "").partition("/")[0]
        if len(content) != count or part != f"bytes {wanted}":
            raise SourceError(f"'{self.shown(found.key)}': the server gives another part than the one asked for.")
        return content

    @contextmanager
    def get(self, found: StoredObject, part: str = "") -> Iterator[Answer]:
        """
        Request an object, or *part* of it (a `Range`), in exactly the version that was *found*.

        Raises:
            SourceError: It was replaced or deleted, or cannot be read.
        """
        status = 206 if part else 200
        # If-Match never matches a weak ETag (RFC 9110, 13.1.1); it is compared below.
        headers = {"If-Match": found.tag} if found.tag.startswith('"') else {}
        if part:
            headers["Range"] = part
        shown = self.shown(found.key)
        with self._ask("GET", found.key, headers=headers) as answer:
            # Not every server supports conditions.
            tag = _tag(answer.headers.get("etag", ""))
            is_other = bool(tag and found.tag) and tag.removeprefix("W/") != found.tag.removeprefix("W/")
            if answer.status == 412 or (answer.status == status and is_other):
                raise SourceError(f"'{shown}' changed while it was read; the next refresh reads it again.")
            if answer.status != status:
                raise self._refusal(answer, _code_of(answer), shown)
            yield answer

    @contextmanager
    def _ask(
        self, method: str, key: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Answer]:
        target = quote(f"{self._path}/{key}", safe="/-_.~")
        if query:
            target += "?" + "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in query.items())
        signed: dict[str, str] = {}
        if self._credentials is not None:
            request = AWSRequest(method=method, url=self._address + target)
            S3SigV4Auth(self._credentials, "s3", self._region).add_auth(request)
            signed = dict(request.headers.items())
        sent = {**signed, **(headers or {}), "Accept-Encoding": "identity", "User-Agent": "dataset-loader"}
        with self.request(target, sent.items(), method=method) as answer:
            yield answer

    def _refusal(self, answer: Answer, code: str, shown: str) -> SourceError:
        region = answer.headers.get("x-amz-bucket-region", self._region)
        if region != self._region and re.fullmatch(r"[a-z0-9-]{1,63}", region):
            return SourceError(f"'{shown}': the bucket is in the region {region}: set params.s3_region to it.")
        reason = _CODES.get(code) or _STATUSES.get(answer.status)
        if reason is None:
            reason = "the server failed" if answer.status >= 500 else "the server does not answer as S3 does"
        return SourceError(f"'{shown}': {reason} (status {answer.status}).")


def address_of(bucket: str, params: Mapping[str, str]) -> tuple[str, str]:
    """
    Return the origin of *bucket*, and the path of its keys.

    On Amazon's hosts the bucket is part of the host name, unless it contains a dot, which no certificate covers; on
    other servers it is part of the path.
    """
    region = params.get("s3_region", _DEFAULT_REGION)
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    origin = params.get("s3_endpoint", f"https://s3.{region}.{domain}")
    fits_host = re.fullmatch(r"[a-z0-9-]+", bucket) is not None
    style = params.get("s3_url_style", "vhost" if fits_host and "s3_endpoint" not in params else "path")
    if style == "path":
        return origin, f"/{bucket}"
    scheme, _, host = origin.partition("://")
    return f"{scheme}://{bucket}.{host}", ""


def _credentials(params: Mapping[str, str]) -> Credentials | ReadOnlyCredentials | None:
    """Return the credentials for signing, or None. Those of the environment are used only if the YAML says so."""
    if "s3_key" in params:
        return Credentials(params["s3_key"], params["s3_secret"], params.get("s3_session_token"))
    if params.get("s3_auth") != "iam_role":
        return None
    try:
        found = botocore.session.Session().get_credentials()
        frozen = found.get_frozen_credentials() if found is not None else None
    except MemoryError:
        raise
    except Exception as exc:
        # It reads files, runs programs and asks services; their output may contain a secret, so it is not shown.
        raise SourceError(f"The credentials of this machine cannot be read ({type(exc).__name__}).") from exc
    if frozen is None:
        raise SourceError("s3_auth is iam_role, but neither the environment nor the machine has credentials.")
    return frozen


def _tag(text: str) -> str:
    """Return *text* as an ETag (RFC 9110, 8.8.3), quoted if the server left the quotes out; empty if it is not one."""
    if len(text) > _MAX_TAG_LENGTH:
        return ""
    if re.fullmatch(r'(?:W/)?"[!#-~]*"', text) is not None:
        return text
    return f'"{text}"' if re.fullmatch(r"[!#-~]+", text) is not None else ""


def _code_of(answer: Answer) -> str:
    """Return the S3 error code in *answer*; empty if there is none."""
    code = re.search(rb"<Code>([A-Za-z0-9]{1,60})</Code>", answer.beginning(_MAX_ERROR_BYTES))
    return code[1].decode() if code is not None else ""


class _Page:
    """
    The parser target for one page of a list: it builds no tree, which could be far larger than the page.

    `fields` are those of the list; `objects` has a mapping for each object.
    """

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.objects: list[dict[str, str]] = []
        self._open: list[str] = []
        self._text: list[str] = []

    def start(self, tag: str, _attributes: Mapping[str, str]) -> None:
        """Begin an element; its namespace is ignored."""
        self._open.append(tag.rpartition("}")[2])
        self._text.clear()
        if self._open[0] != "ListBucketResult" or len(self._open) > _MAX_DEPTH:
            raise ET.ParseError
        if self._open[1:] == ["Contents"]:
            self.objects.append({})

    def data(self, text: str) -> None:
        self._text.append(text)

    def end(self, _tag: str) -> None:
        name = self._open.pop()
        if self._open == ["ListBucketResult"]:
            self.fields[name] = "".join(self._text)
        elif self._open == ["ListBucketResult", "Contents"]:
            self.objects[-1][name] = "".join(self._text)
        self._text.clear()


def _page_of(content: bytes, shown: str) -> tuple[list[StoredObject], str | None]:
    """Return the objects of one page of a list, and the token of the next page, None after the last."""
    strange = SourceError(f"'{shown}': the server does not list objects as S3 does.")
    # Entities could expand a short document into a very long one; no S3 server declares any.
    if len(content) > _MAX_PAGE_BYTES or b"<!DOCTYPE" in content:
        raise strange
    page = _Page()
    parser = ET.XMLParser(target=page)  # noqa: S314 (see above; another encoding does not decode)
    try:
        text = content.decode("utf-8")
        # In pieces: a refusal by the page takes effect after each.
        for start in range(0, len(text), _FED_LETTERS):
            parser.feed(text[start : start + _FED_LETTERS])
        parser.close()
    except (ET.ParseError, UnicodeDecodeError) as exc:
        raise strange from exc
    unescaped = unquote_plus if page.fields.get("EncodingType") == "url" else str
    objects = [StoredObject(unescaped(one.get("Key", "")), _tag(one.get("ETag", ""))) for one in page.objects]
    if page.fields.get("IsTruncated") != "true":
        return objects, None
    if not page.fields.get("NextContinuationToken"):
        raise strange
    return objects, page.fields["NextContinuationToken"]
