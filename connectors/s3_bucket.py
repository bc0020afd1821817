"""
A bucket on S3 or a compatible server.

botocore signs the requests, and finds the machine's credentials if the configuration file allows it.
"""

import re
from collections.abc import Mapping

import botocore.session
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials

from connectors.bucket import Bucket
from connectors.origin import Answer
from datasources.deadline import Deadline
from datasources.errors import SourceError
from runtimeconf.s3_params import S3Params

#: Our reasons for S3 error codes.
_CODES = {
    "NoSuchKey": "it does not exist",
    "NoSuchBucket": "the bucket does not exist",
    "InvalidAccessKeyId": "s3_key is unknown to the server",
    "SignatureDoesNotMatch": "s3_secret does not match s3_key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "InvalidObjectState": "it is archived: restore it first",
    "SlowDown": "the server is rate limiting requests",
}
_STATUSES = {
    400: "the server cannot process the request; check s3_region and s3_url_style",
    401: "the server rejected the credentials: see s3_key and s3_secret",
    403: "the server does not allow it: see s3_auth, s3_key and s3_secret",
    404: "it does not exist",
    407: "the proxy from the environment requires credentials",
    429: "the server is rate limiting requests",
}


class S3Bucket(Bucket):
    """
    The bucket *name*, for one load that ends at *deadline*. The owner closes it.

    Raises:
        SourceError: There are no credentials, or the parameters do not allow a connection.
    """

    _service = "S3"
    _codes = _CODES
    _statuses = _STATUSES

    def __init__(self, name: str, params: S3Params, deadline: Deadline) -> None:
        self.name = name
        self._region = params.s3_region
        self._credentials = _credentials(params)
        roots = params.s3_tls_root_certificate_file
        super().__init__(f"s3://{name}", params.address_of(name), deadline, params.client_timeout, roots)

    def _authorized(self, method: str, target: str, _headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        if self._credentials is None:
            return target, {}
        request = AWSRequest(method=method, url=self._address + target)
        S3SigV4Auth(self._credentials, "s3", self._region).add_auth(request)
        return target, dict(request.headers.items())

    def _refusal(self, answer: Answer, code: str, shown: str) -> SourceError:
        region = answer.headers.get("x-amz-bucket-region", self._region)
        if region != self._region and re.fullmatch(r"[a-z0-9-]{1,63}", region):
            return SourceError(f"'{shown}': the bucket is in the region {region}: set params.s3_region to it.")
        return super()._refusal(answer, code, shown)


def _credentials(params: S3Params) -> Credentials | ReadOnlyCredentials | None:
    """
    Return the credentials for signing, or None.

    The environment's credentials are used only if the configuration file allows it.
    """
    if params.s3_key is not None:
        return Credentials(params.s3_key, params.s3_secret, params.s3_session_token)
    if params.s3_auth != "iam_role":
        return None
    try:
        found = botocore.session.Session().get_credentials()
        frozen = found.get_frozen_credentials() if found is not None else None
    except MemoryError:
        raise
    except Exception as exc:
        # botocore reads files, runs programs and queries services. Their output may contain a secret, so it is not
        # shown.
        raise SourceError(f"The credentials of this machine cannot be read ({type(exc).__name__}).") from exc
    if frozen is None:
        raise SourceError("s3_auth is iam_role, but there are no credentials in the environment or on this machine.")
    return frozen
