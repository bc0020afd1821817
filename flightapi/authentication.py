"""
Who calls, decided for every RPC in one place: before a message is read, and whether or not there is such a method.

A refused call gets a handler that reads nothing and ends it. Only a handshake without metadata is let through without
a key, because its key is in its message: `flightapi.handshake` then decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

import grpc

from authkeys import audit
from authkeys.access import Access
from authkeys.credentials import Absent, Malformed, Reason, from_handshake, from_metadata
from authkeys.principal import ANONYMOUS, Principal
from flightapi.calls import ERROR_CODE, REQUEST_ID, end_call, request_id_of
from flightapi.error_table import Refusal
from flightapi.protocol.messages import METHODS

HANDSHAKE = METHODS["Handshake"].path

#: How the audit log names this endpoint.
ROUTE = "flight"

_RPCS = {method.path: method.name for method in METHODS.values()}

#: What may hold a credential, in the order of the arguments of `from_metadata`.
_CREDENTIALS = ("authorization", "x-api-key", "auth-token-bin")

_SENTENCES = {
    audit.MISSING: "An API key is needed: send the metadata authorization: Bearer <key>.",
    audit.UNKNOWN: "The API key is not valid.",
    Reason.REPEATED.value: "Send one API key, in one authorization value.",
    Reason.SCHEME.value: "The only authorization scheme is Bearer: send authorization: Bearer <key>.",
    Reason.CONFLICTING.value: "Send one API key, as authorization: Bearer <key>: another credential beside it differs.",
    Reason.ENCODING.value: "The Basic credential is not user:password in Base64.",
}


@dataclass(frozen=True, slots=True)
class Refused:
    """A call without an accepted key; `reason` is a key of the sentences and the name in the audit log."""

    reason: str

    @property
    def sentence(self) -> str:
        """What the caller is told."""
        return _SENTENCES[self.reason]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call of *principal*. `presented` is the credential, "" for none: a handshake gives it back."""

    principal: Principal
    presented: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Undecided:
    """A handshake whose key, if any, is in its message."""


class CallDetails(NamedTuple):
    """What a generic handler is asked with: gRPC's fields, and what the interceptor has found."""

    method: str
    invocation_metadata: Any
    verdict: Accepted | Undecided


class Judge:
    """Decides by the metadata of a call whether *access* lets it pass."""

    def __init__(self, access: Access) -> None:
        self._key_set = access.key_set

    @property
    def is_open(self) -> bool:
        """Whether everybody may call."""
        return self._key_set is None

    def verdict(self, method: str, metadata: Sequence[tuple[str, str | bytes]]) -> Accepted | Undecided | Refused:
        """Decide about a call of the path *method*."""
        authorization, x_api_key, token = _values(metadata)
        if method == HANDSHAKE:
            credential = from_handshake(authorization, x_api_key)
            if isinstance(credential, Absent) and not authorization:
                return Undecided()
        else:
            credential = from_metadata(authorization, x_api_key, token)
        if self._key_set is None:
            return Accepted(ANONYMOUS, "" if isinstance(credential, Absent | Malformed) else credential.text)
        if isinstance(credential, Absent):
            return Refused(audit.MISSING)
        if isinstance(credential, Malformed):
            return Refused(credential.reason.value)
        return self.of_key(credential.text)

    def of_key(self, text: str) -> Accepted | Refused:
        """Decide about a key that came in any other way."""
        if self._key_set is None:
            return Accepted(ANONYMOUS, text)
        key = self._key_set.find(text)
        return Refused(audit.UNKNOWN) if key is None else Accepted(Principal.of(key), text)


class Authentication(grpc.ServerInterceptor):  # type: ignore[misc]
    """The interceptor: nothing passes it without a verdict."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of the call, or one that refuses it."""
        verdict = self._judge.verdict(details.method, details.invocation_metadata)
        if isinstance(verdict, Refused):
            method = _RPCS.get(details.method)

            # Its request is a stream, whatever the method: of a stream nothing is read that nobody asks for.
            def refuse(_: Any, context: Any) -> None:
                refuse_call(context, verdict, method)

            return grpc.stream_unary_rpc_method_handler(refuse)
        return continuation(CallDetails(details.method, details.invocation_metadata, verdict))


def refuse_call(context: Any, refused: Refused, method: str | None) -> NoReturn:
    """
    End a call, with its line in the audit log.

    Raises:
        CallEndedError: Always.
    """
    request_id = request_id_of(context)
    audit.log_failure(
        refused.reason,
        peer=_address(context.peer()),
        method=method,
        route=ROUTE,
        status=grpc.StatusCode.UNAUTHENTICATED.name,
        request_id=request_id,
    )
    code = "missing_key" if refused.reason == audit.MISSING else "invalid_key"
    context.set_trailing_metadata(((REQUEST_ID, request_id), (ERROR_CODE, code)))
    end_call(context, Refusal(status=grpc.StatusCode.UNAUTHENTICATED, code=code, message=refused.sentence))


def _values(metadata: Sequence[tuple[str, str | bytes]]) -> tuple[list[str], ...]:
    """Return the values of each metadata that may hold a credential."""
    found: dict[str, list[str]] = {name: [] for name in _CREDENTIALS}
    for key, value in metadata or ():
        if key in found:
            found[key].append(value if isinstance(value, str) else value.decode("utf-8", "surrogateescape"))
    return tuple(found.values())


def _address(peer: str) -> str:
    """Return the address in what gRPC calls a peer: `ipv4:127.0.0.1:5`, `ipv6:%5B::1%5D:5`."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") or rest
