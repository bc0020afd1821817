"""Access tokens that a load requests (RFC 6749, 5.1) from a cloud's or this machine's servers."""

import json
import math
import re
import time
from collections.abc import Mapping
from urllib.parse import urlencode

from msgspec import Struct

from connectors.origin import Origin
from datasources.deadline import Deadline
from datasources.errors import SourceError

_MAX_ANSWER_BYTES = 64 * 1024
#: Seconds before a token's expiry when the next one is requested.
_MARGIN_S = 60.0


class TokenRequest(Struct, frozen=True, kw_only=True):
    """
    A request for a token.

    Attributes:
        server: The origin of the server.
        target: The path on the server, with the query.
        shown: The parameter that names the server, for errors. The address may be confidential.
        see: What to check if the server returns no token.
        headers: Headers to send.
        form: Fields to send with POST, including secrets; None sends GET.
    """

    server: str
    target: str
    shown: str
    see: str
    headers: Mapping[str, str]
    form: Mapping[str, str] | None = None


class AccessToken:
    """
    A token that is requested when needed, and again shortly before it expires.

    Args:
        request: The request.
        deadline: The end of the load.
        client_timeout_s: See `Origin`.
    """

    def __init__(self, request: TokenRequest, deadline: Deadline, client_timeout_s: float) -> None:
        self._request, self._deadline, self._client_timeout_s = request, deadline, client_timeout_s
        self._token = ""
        self._ends = 0.0  # the `time.monotonic()` until which the token is used

    def current(self) -> str:
        """
        Return the token.

        Raises:
            SourceError: The server cannot be reached or returns no token.
            SnapshotError: The deadline has passed.
        """
        if not self._token or time.monotonic() >= self._ends:
            asked = time.monotonic()
            status, content = self._answer()
            try:
                fields = json.loads(content) if status == 200 else {}
                token, lasts_s = fields["access_token"], float(fields.get("expires_in", math.inf))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                token, lasts_s = "", 0.0
            # The response may quote the request, so it is not shown.
            if not isinstance(token, str) or re.fullmatch(r"[!-~]+", token) is None:
                raise SourceError(
                    f"'{self._request.shown}' did not return a token (status {status}): {self._request.see}."
                )
            self._token, self._ends = token, asked + lasts_s - _MARGIN_S
        return self._token

    def _answer(self) -> tuple[int, bytes]:
        request = self._request
        headers, body = dict(request.headers), None
        if request.form is not None:
            body = urlencode(request.form).encode()
            headers |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
        with (
            Origin(request.server, request.shown, self._deadline, self._client_timeout_s, None) as origin,
            origin.request(
                request.target, headers.items(), method="GET" if body is None else "POST", body=body
            ) as answer,
        ):
            return answer.status, answer.beginning(_MAX_ANSWER_BYTES)
