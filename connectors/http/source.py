"""
`http:` and `https:` sources: one file on a web server, downloaded by one request and then read as a local file.

The ETag and Last-Modified headers identify the version (RFC 9110, 8.8). If they identify bytes, the server is asked
again after the download whether it still has that version, because a file that is overwritten while the server sends it
arrives as a mix of two versions.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

from connectors.http.params import HttpParams
from connectors.origin import Answer, Downloads, Origin
from datasources.errors import SourceError
from datasources.sources.format_detection import DetectedFormat, compressed, format_named
from datasources.sources.formats import FileFormat
from datasources.sources.scratch_files import ScratchSpace
from datasources.sources.source import Load
from runtimeconf.file_formats import KINDS, split_extension
from runtimeconf.model import DatasetConfig

#: Formats by media type.
_MEDIA_TYPES = {
    "text/csv": "csv",
    "application/csv": "csv",
    "text/tab-separated-values": "tsv",
    "application/json": "json",
    "text/json": "json",
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "jsonl",
    "application/x-jsonlines": "jsonl",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}

_WEB_PAGES = frozenset({"text/html", "application/xhtml+xml"})

_STATUSES = {
    401: "the server rejected the credentials: see http_username, http_bearer_token and http_headers",
    403: "the server does not allow it",
    404: "it does not exist",
    407: "the proxy from the environment requires credentials",
    410: "it no longer exists",
    429: "the server is rate limiting requests",
}

#: Longer validators are not kept, and the version is then unknown.
_MAX_VALIDATOR_LENGTH = 1000


class HttpSource:
    """A file on a web server."""

    def __init__(self, dataset: DatasetConfig, params: HttpParams) -> None:
        self._shown = dataset.from_
        self._params = params
        parts = urlsplit(dataset.location)
        port = f":{params.http_port}" if params.http_port is not None and parts.port is None else ""
        self._origin = f"{parts.scheme}://{parts.netloc}{port}"
        self._path = parts.path
        self._target = self._path + (f"?{params.http_query}" if params.http_query is not None else "")
        self._headers = _request_headers(params)

    @contextmanager
    def open(self, load: Load) -> Iterator[FileFormat]:
        """Download the file; see `Source.open`."""
        with ExitStack() as stack:
            space = ScratchSpace(load, stack)
            with self._connection(load) as server:
                with server.request(self._target, self._headers) as answer:
                    self._refuse(answer)
                    detected = self._format(answer)
                    version = version_of(answer)
                    downloads = Downloads(space, self._params.max_download_size)
                    file = downloads.save(answer, self._shown)
                # Equal weak ETags do not mean equal bytes (RFC 9110, 8.8.1).
                is_strong = version is not None and not json.loads(version)[0].startswith("W/")
                if is_strong and self._is_other(server, str(version)):
                    raise SourceError(
                        f"'{self._shown}' changed while it was being read; the next refresh will read it again."
                    )
            yield detected.format(
                [file], self._shown, space, self._params, compression=detected.compression, version=version
            )

    def has_changed(self, version: str, load: Load) -> bool:
        """Send a conditional request for the file."""
        with self._connection(load) as server:
            return self._is_other(server, version)

    def _connection(self, load: Load) -> Origin:
        roots = self._params.http_tls_root_certificate_file
        return Origin(self._origin, self._shown, load.deadline, self._params.client_timeout, roots)

    def _is_other(self, server: Origin, version: str) -> bool:
        tag, changed_at = json.loads(version)
        conditions = [("If-None-Match", tag)] if tag else [("If-Modified-Since", changed_at)]
        with server.request(self._target, [*self._headers, *conditions]) as answer:
            if answer.status == 304:
                return False
            self._refuse(answer)
            # Not every server supports conditions. The body is left unread.
            return version_of(answer) != version

    def _refuse(self, answer: Answer) -> None:
        """Raise SourceError unless *answer* contains the whole file."""
        status = answer.status
        if status != 200:
            said = _STATUSES.get(status)
            if said is None:
                said = "the server failed" if status >= 500 else "the server did not return the file"
            raise SourceError(f"'{self._shown}': {said} (status {status}).")
        if _media_type(answer) in _WEB_PAGES:
            raise SourceError(
                f"'{self._shown}': the server returned a web page, such as a login page, instead of a file."
            )

    def _format(self, answer: Answer) -> DetectedFormat:
        named, compression = split_extension(unquote(self._path))
        name = self._params.file_format or (named if named in KINDS else _MEDIA_TYPES.get(_media_type(answer)))
        if name is None:
            raise SourceError(
                f"The format of '{self._shown}' cannot be determined from its name or its media type: set "
                "params.file_format to parquet, csv, json or xlsx."
            )
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        if encoding in {"gzip", "x-gzip"}:
            # Servers often also label a .gz file as encoded, but it is compressed only once.
            compression = "GZIP"
        elif encoding not in {"identity", ""}:
            raise SourceError(f"'{self._shown}': the server uses a compression other than gzip.")
        return compressed(format_named(name), compression, self._params, self._shown)


def version_of(answer: Answer) -> str | None:
    """
    Return the validators of a response as a string; None if no validator shows every change.

    Last-Modified counts in seconds, so it shows every change only after a second has passed (RFC 9110, 8.8.2.2).
    """
    tag = answer.headers.get("etag", "")
    changed_at = answer.headers.get("last-modified", "")
    if len(tag) > _MAX_VALIDATOR_LENGTH or not (tag or _is_settled(changed_at, answer.headers.get("date", ""))):
        return None
    return json.dumps([tag, "" if tag else changed_at])


def _is_settled(changed_at: str, now: str) -> bool:
    try:
        return (parsedate_to_datetime(now) - parsedate_to_datetime(changed_at)).total_seconds() >= 1
    except (ValueError, OverflowError, TypeError):  # A date is missing, invalid, or has no time zone.
        return False


def _media_type(answer: Answer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _request_headers(params: HttpParams) -> list[tuple[str, str]]:
    headers = list(params.http_headers)
    names = {name.lower() for name, _ in headers}
    defaults = {"User-Agent": "dataset-loader", "Accept": "*/*"}
    headers += [(name, value) for name, value in defaults.items() if name.lower() not in names]
    # Request the stored bytes, so that the length is known and nothing has to be decompressed.
    headers.append(("Accept-Encoding", "identity"))
    if params.http_bearer_token is not None:
        headers.append(("Authorization", f"Bearer {params.http_bearer_token}"))
    if params.http_username is not None:
        pair = f"{params.http_username}:{params.http_password or ''}"
        headers.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
    return headers
