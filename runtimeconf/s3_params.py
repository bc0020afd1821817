"""S3 locations and parameters, for connectors and shared snapshots on Amazon S3 and compatible servers."""

import re
from typing import Annotated, Final

from runtimeconf.connector import Package, Param, Params
from runtimeconf.fields import ChoiceField, InvalidValueError, ParsedField
from runtimeconf.network import (
    DEFAULT_CLIENT_TIMEOUT_S,
    AllowHttp,
    ClientTimeout,
    RootCertificateFile,
    lacks_tls,
    parse_server,
    parse_token,
)

_DEFAULT_REGION: Final = "us-east-1"

#: Compatible servers and old S3 buckets allow underscores and capitals.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")

#: The maximum length of a key in UTF-8.
_MAX_KEY_BYTES = 1024


def _parse_region(text: str) -> str:
    """Return a region name, which becomes part of host names."""
    if re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", text) is None:
        raise InvalidValueError
    return text


class S3Params(Params):
    """The server and credentials of a bucket."""

    s3_endpoint: Annotated[
        str | None,
        Param(ParsedField("a URL such as https://minio.example.org:9000", parse_server), is_hidden=True),
    ] = None
    s3_region: Annotated[str, Param(ParsedField("the region of the bucket, such as eu-central-1", _parse_region))] = (
        _DEFAULT_REGION
    )
    s3_url_style: Annotated[str | None, Param(ChoiceField("path", "vhost"))] = None
    s3_auth: Annotated[str | None, Param(ChoiceField("public", "key", "iam_role"))] = None
    s3_key: Annotated[str | None, Param(ParsedField("an access key id", parse_token), is_secret=True)] = None
    s3_secret: Annotated[str | None, Param(ParsedField("the secret access key", parse_token), is_secret=True)] = None
    s3_session_token: Annotated[str | None, Param(ParsedField("a session token", parse_token), is_secret=True)] = None
    allow_http: AllowHttp = False
    s3_tls_root_certificate_file: RootCertificateFile = None
    client_timeout: ClientTimeout = DEFAULT_CLIENT_TIMEOUT_S

    def problem(self, location: str) -> str | None:
        """Refuse inconsistent credentials and a server without TLS. See `Params.problem`."""
        if lacks_tls(self.s3_endpoint, allow_http=self.allow_http):
            return "has an s3_endpoint without TLS, so data would be sent unencrypted: set allow_http: true to allow it"
        has_key = self.s3_key is not None
        if has_key != (self.s3_secret is not None):
            return "has only one of s3_key and s3_secret"
        if self.s3_session_token is not None and not has_key:
            return "has s3_session_token but no s3_key and s3_secret"
        if self.s3_auth == "key" and not has_key:
            return "has s3_auth: key but no s3_key and s3_secret"
        if self.s3_auth in {"public", "iam_role"} and has_key:
            return f"has both s3_auth: {self.s3_auth} and s3_key: remove one"
        return None

    def address_of(self, bucket: str) -> tuple[str, str]:
        """
        Return the origin of *bucket* and the path prefix of its keys.

        On Amazon's hosts, the bucket is part of the host name unless it contains a dot, which no certificate covers. On
        other servers, it is part of the path.
        """
        domain = "amazonaws.com.cn" if self.s3_region.startswith("cn-") else "amazonaws.com"
        origin = self.s3_endpoint or f"https://s3.{self.s3_region}.{domain}"
        fits_host = re.fullmatch(r"[a-z0-9-]+", bucket) is not None
        style = self.s3_url_style or ("vhost" if fits_host and self.s3_endpoint is None else "path")
        if style == "path":
            return origin, f"/{bucket}"
        scheme, _, host = origin.partition("://")
        return f"{scheme}://{bucket}.{host}", ""


#: Signs requests and finds the machine's credentials.
SIGNER: Final = Package("botocore", "botocore~=1.44")


def parse_location(text: str) -> tuple[str, str]:
    """
    Split `//bucket/key` into the bucket and the key.

    Raises:
        InvalidValueError: *text* has another form. No message shows it because it may contain a password.
    """
    match = re.fullmatch(r"//([^/]*)/?(.*)", text)
    if match is None:
        raise InvalidValueError("write s3:// before the bucket")
    bucket, key = match.groups()
    if "@" in bucket or ":" in bucket:
        raise InvalidValueError(
            "write only the bucket name before the key: use s3_key, s3_secret and s3_endpoint for the rest"
        )
    if _BUCKET.fullmatch(bucket) is None or ".." in bucket:
        raise InvalidValueError("not a bucket name")
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise InvalidValueError(f"keys are limited to {_MAX_KEY_BYTES:,} bytes")
    return bucket, key
