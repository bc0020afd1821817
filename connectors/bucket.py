"""
A bucket in object storage: its objects, and the bytes of one version of an object.

Each service has a subclass that adds credentials. Requests use the connection of `http:` sources, so the same rules
apply for timeouts, redirects, certificates and proxies.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree as ET

from connectors.origin import Answer, Origin
from datasources.deadline import Deadline
from datasources.errors import SourceError

#: The maximum bytes of a list page: 1,000 keys of 1,024 bytes, escaped.
_MAX_PAGE_BYTES = 8 * 1024 * 1024
#: The deepest nesting of elements in a page. The elements of an owner are the deepest.
_MAX_DEPTH = 8
_FED_LETTERS = 64 * 1024
_MAX_ERROR_BYTES = 64 * 1024

#: Longer ETags are not kept. S3 ETags have about forty characters.
_MAX_TAG_LENGTH = 1000


@dataclass(frozen=True, slots=True, order=True)
class StoredObject:
    """
    An object in a bucket: its *key* (the sort order), and the ETag of its version, or empty.

    *size* is in bytes, None if unknown. It is not compared, because one version has one size.
    """

    key: str
    tag: str
    size: int | None = field(default=None, compare=False)


class Bucket(Origin):
    """
    A bucket for one load that ends at *deadline*. The owner closes it.

    Args:
        url: The bucket's name in errors, such as `s3://bucket`.
        server: The origin of the server, and the path of the keys on it.
        deadline: The end of the load.
        client_timeout_s: See `Origin`.
        roots: The `root_certificate_file` of `Origin`.

    Raises:
        SourceError: The parameters do not allow a connection.
    """

    #: The service's name in errors, and our reasons for its error codes and statuses.
    _service: ClassVar[str]
    _codes: ClassVar[Mapping[str, str]]
    _statuses: ClassVar[Mapping[int, str]]
    #: The service's error code for a missing bucket.
    _no_bucket: ClassVar[str] = "NoSuchBucket"
    is_pinned: ClassVar[bool] = True
    #: The encodings in which the service may send an object.
    _encoding: ClassVar[str] = "identity"

    def __init__(
        self, url: str, server: tuple[str, str], deadline: Deadline, client_timeout_s: float, roots: Path | None
    ) -> None:
        address, path = server
        self._shown_root = url
        self._address, self._path = address, path
        super().__init__(address, url, deadline, client_timeout_s, roots)

    def shown(self, key: str) -> str:
        """Return *key* for use in errors. A key may contain any character."""
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in f"{self._shown_root}/{key}")

    def look(self, key: str) -> StoredObject | None:
        """
        Return the object *key*; None if there is none.

        Raises:
            SourceError: The object cannot be looked up.
        """
        # A HEAD response has no body, so only GET shows whether the key or the bucket is missing.
        for method in ("HEAD", "GET"):
            with self._ask(method, key) as answer:
                if answer.status == 200:
                    if self._is_folder(answer):
                        return None
                    return StoredObject(key, tag_of(answer.headers.get("etag", "")), answer.length)
                if method == "GET":
                    code = _code_of(answer)
                    if answer.status != 404 or code == self._no_bucket:
                        raise self._refusal(answer, code, self.shown(key))
        return None

    def listed(self, prefix: str, delimiter: str = "") -> Iterator[StoredObject]:
        """
        Yield the objects whose keys begin with *prefix* and have no *delimiter* after it, in server order.

        Raises:
            SourceError: The objects cannot be listed.
        """
        shown = self.shown(prefix)
        token: str | None = ""
        while token is not None:
            with self._ask("GET", *self._list_request(prefix, delimiter, token)) as answer:
                if answer.status != 200:
                    raise self._refusal(answer, _code_of(answer), shown)
                page = answer.beginning(_MAX_PAGE_BYTES + 1)
            objects, token = self._page_of(page, shown)
            if not all(one.key.startswith(prefix) for one in objects):
                raise SourceError(f"'{shown}': the server listed objects that were not requested.")
            yield from objects

    def read(self, found: StoredObject, start: int, count: int) -> bytes:
        """
        Return *count* bytes of an object from *start*, in exactly the version that was *found*.

        Raises:
            SourceError: The object was replaced or deleted, or cannot be read, or the server sends a different range.
        """
        wanted = f"{start}-{start + count - 1}"
        with self.get(found, f"bytes={wanted}") as answer:
            # Request one more byte, so that the response is read to its end.
            content = answer.beginning(count + 1)
            part = answer.headers.get("content-range", "").partition("/")[0]
        if len(content) != count or part != f"bytes {wanted}":
            raise SourceError(
                f"'{self.shown(found.key)}': the server returned a different part than the one requested."
            )
        return content

    @contextmanager
    def get(self, found: StoredObject, part: str = "") -> Iterator[Answer]:
        """
        Request an object, or *part* of it (a `Range`), in exactly the version that was *found*.

        Raises:
            SourceError: The object was replaced or deleted, or cannot be read.
        """
        status = 206 if part else 200
        # If-Match never matches a weak ETag (RFC 9110, 13.1.1), so the ETag is compared below.
        headers = {"If-Match": found.tag} if found.tag.startswith('"') else {}
        if part:
            headers["Range"] = part
        shown = self.shown(found.key)
        with self._ask("GET", found.key, headers=headers) as answer:
            # Not every server supports conditions.
            tag = tag_of(answer.headers.get("etag", ""))
            is_other = bool(tag and found.tag) and tag.removeprefix("W/") != found.tag.removeprefix("W/")
            if answer.status == 412 or (answer.status == status and is_other):
                raise SourceError(f"'{shown}' changed while it was being read; the next refresh will read it again.")
            if answer.status != status:
                raise self._refusal(answer, _code_of(answer), shown)
            yield answer

    @contextmanager
    def _ask(
        self,
        method: str,
        key: str | None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Answer]:
        target = quote(self._path if key is None else f"{self._path}/{key}", safe="/-_.~")
        if query:
            target += "?" + "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in query.items())
        target, authorized = self._authorized(method, target, headers or {})
        # A list is not decompressed, so it must arrive unencoded.
        own = {"Accept-Encoding": self._encoding if key else "identity", "User-Agent": "dataset-loader"}
        sent = {**authorized, **(headers or {}), **own}
        with self.request(target, sent.items(), method=method) as answer:
            yield answer

    def _list_request(self, prefix: str, delimiter: str, token: str) -> tuple[str | None, Mapping[str, str]]:
        """Return the key (None for the bucket itself) and the query string for requesting a page of the object list."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
        if delimiter:
            query["delimiter"] = delimiter
        if token:
            query["continuation-token"] = token
        return "", query

    def _is_folder(self, _answer: Answer) -> bool:
        """Return whether the response is for a folder, which some services store as an object."""
        return False

    def _authorized(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """Return the target and the headers of a request with any credentials added."""
        raise NotImplementedError

    def _page_of(self, content: bytes, shown: str) -> tuple[list[StoredObject], str | None]:
        """Return the objects on one list page, and the token of the next page (None after the last)."""
        fields, entries = self._parsed(content, shown, "ListBucketResult", ["Contents"])
        unescaped = unquote_plus if fields.get("EncodingType") == "url" else str
        objects = [StoredObject(unescaped(one.get("Key", "")), tag_of(one.get("ETag", ""))) for one in entries]
        if fields.get("IsTruncated") != "true":
            return objects, None
        if not fields.get("NextContinuationToken"):
            raise self._strange(shown)
        return objects, fields["NextContinuationToken"]

    def _parsed(
        self, content: bytes, shown: str, root: str, entry: list[str]
    ) -> tuple[Mapping[str, str], Sequence[Mapping[str, str]]]:
        """Return the fields of a page whose outermost element is *root*, and the fields of each element at *entry*."""
        # Entities could expand a short document into a very long one. No server declares entities.
        if len(content) > _MAX_PAGE_BYTES or b"<!DOCTYPE" in content:
            raise self._strange(shown)
        page = _Page(root, entry)
        parser = ET.XMLParser(target=page)  # noqa: S314 (see above; another encoding does not decode)
        try:
            text = content.decode("utf-8-sig")
            # Feed the parser in chunks, because a refusal takes effect after each chunk.
            for start in range(0, len(text), _FED_LETTERS):
                parser.feed(text[start : start + _FED_LETTERS])
            parser.close()
        except (ET.ParseError, UnicodeDecodeError) as exc:
            raise self._strange(shown) from exc
        return page.fields, page.objects

    def _strange(self, shown: str) -> SourceError:
        return SourceError(f"'{shown}': the server's object listing is not compatible with {self._service}.")

    def _refusal(self, answer: Answer, code: str, shown: str) -> SourceError:
        """Return the error for *answer* with the service's error *code*."""
        reason = self._codes.get(code) or self._statuses.get(answer.status)
        if reason is None:
            failed = answer.status >= 500
            reason = "the server failed" if failed else f"the server's response is not compatible with {self._service}"
        return SourceError(f"'{shown}': {reason} (status {answer.status}).")


def tag_of(text: str) -> str:
    """Return *text* as an ETag (RFC 9110, 8.8.3), adding missing quotes; empty if it is not an ETag."""
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
    The parser target for one list page. It does not build a tree, which could be far larger than the page.

    `fields` are the list's fields. `objects` has a mapping for each object, including the fields of its `Properties`.
    """

    def __init__(self, root: str, entry: list[str]) -> None:
        self.fields: dict[str, str] = {}
        self.objects: list[dict[str, str]] = []
        self._root = root
        self._entry = [root, *entry]
        self._open: list[str] = []
        self._text: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element, ignoring its namespace."""
        self._open.append(tag.rpartition("}")[2])
        self._text.clear()
        # Azure encodes names that XML cannot contain.
        if self._open[0] != self._root or len(self._open) > _MAX_DEPTH or attributes.get("Encoded") == "true":
            raise ET.ParseError
        if self._open == self._entry:
            self.objects.append({})

    def data(self, text: str) -> None:
        self._text.append(text)

    def end(self, _tag: str) -> None:
        name = self._open.pop()
        if self._open == [self._root]:
            self.fields[name] = "".join(self._text)
        elif self._open in (self._entry, [*self._entry, "Properties"]):
            self.objects[-1][name] = "".join(self._text)
        self._text.clear()
