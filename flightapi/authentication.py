"""
Authentication of every RPC in one place, before the message is read and even if the method does not exist.

A refused call gets a handler that ends the call without reading anything. Only a handshake without metadata passes
without a key, because its key is in the message. `flightapi.handshake` then authenticates the key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

import grpc

from authkeys import audit
from authkeys.access import Access
from authkeys.credentials import Credential, Reason, from_handshake, from_metadata
from authkeys.principal import Principal
from flightapi.calls import ERROR_CODE, REQUEST_ID, end_call, request_id_of, traceparents_of
from flightapi.error_table import Refusal
from flightapi.protocol.messages import PATHS
from system.client_address import client_address
from telemetry.trace_context import trace_of_caller

HANDSHAKE = PATHS["Handshake"]

#: RPC names by method path.
RPCS = {path: name for name, path in PATHS.items()}

#: The metadata that may contain a credential, in the order of the `from_metadata` arguments.
_CREDENTIALS = ("authorization", "x-api-key", "auth-token-bin")

_SENTENCES = {
    Reason.MISSING: "An API key is required: send the metadata authorization: Bearer <key>.",
    Reason.UNKNOWN: "The API key is not valid.",
    Reason.EXPIRED: "The API key is not valid.",
    Reason.REPEATED: "Send one API key, in one authorization value.",
    Reason.SCHEME: "Only the Bearer scheme is supported: send authorization: Bearer <key>.",
    Reason.CONFLICTING: "Send only one API key, as authorization: Bearer <key>. Another credential differs.",
    Reason.ENCODING: "The Basic credential must be user:password in Base64.",
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """
    A call by *principal*, a caller of *access*.

    `presented` is the credential, or "". The response to a handshake repeats it.
    """

    access: Access
    principal: Principal
    presented: str = field(default="", repr=False)


class CallDetails(NamedTuple):
    """
    The argument of a generic handler: gRPC's fields and the decision of the interceptor.

    `decision` is None for a handshake whose key, if any, is in its message.
    """

    method: str
    invocation_metadata: Any
    decision: Accepted | None


def authenticate_call(
    access: Access, method: str, metadata: Sequence[tuple[str, str | bytes]]
) -> Accepted | Reason | None:
    """Authenticate a call to the path *method*. None means the same as in `CallDetails`."""
    authorization, x_api_key, token = _values(metadata)
    if method != HANDSHAKE:
        return authenticate(access, from_metadata(authorization, x_api_key, token))
    credential = from_handshake(authorization, x_api_key)
    if credential is Reason.MISSING and not authorization:
        return None
    return authenticate(access, credential)


def authenticate(access: Access, credential: Credential) -> Accepted | Reason:
    """Accept the caller that presented *credential*, or return the reason why it is refused."""
    caller = access.authenticate(credential)
    if isinstance(caller, Reason):
        return caller
    return Accepted(access, caller, "" if isinstance(credential, Reason) else credential.reveal())


def accepted(access: Access, method: str, context: Any, trusted_proxies: tuple[str, ...]) -> Accepted:
    """
    Return the decision on a call to *method* (not a handshake), or refuse the call.

    See `refuse_call` for *trusted_proxies*.
    """
    decision = authenticate_call(access, method, context.invocation_metadata())
    if not isinstance(decision, Accepted):
        refuse_call(context, decision or Reason.MISSING, RPCS.get(method), trusted_proxies)
    return decision


class AuthenticationInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses every call that `access` does not accept. See `refuse_call` for *trusted_proxies*."""

    def __init__(self, access: Access, trusted_proxies: tuple[str, ...]) -> None:
        self.access = access
        self.trusted_proxies = trusted_proxies
        #: Called before each call is authenticated. It may replace both.
        self.before_call: Callable[[], None] = lambda: None

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of the call, or a handler that refuses it."""
        self.before_call()
        decision = authenticate_call(self.access, details.method, details.invocation_metadata)
        if isinstance(decision, Reason):
            method = RPCS.get(details.method)

            # Use a streaming handler for any method, because gRPC does not read a stream's messages until the handler
            # asks for them.
            def refuse(_: Any, context: Any) -> None:
                refuse_call(context, decision, method, self.trusted_proxies)

            return grpc.stream_unary_rpc_method_handler(refuse)
        return continuation(CallDetails(details.method, details.invocation_metadata, decision))


def refuse_call(context: Any, reason: Reason, method: str | None, trusted_proxies: tuple[str, ...]) -> NoReturn:
    """
    End a call with UNAUTHENTICATED and log it, with the client's address if a trusted proxy forwards it.

    Raises:
        CallEndedError: Always.
    """
    request_id = request_id_of(context)
    forwarded = [value for key, value in context.invocation_metadata() or () if key == "x-forwarded-for"]
    audit.log_failure(
        reason,
        peer=client_address(_address(context.peer()), ",".join(forwarded), trusted_proxies),
        method=method,
        route="flight",
        status=grpc.StatusCode.UNAUTHENTICATED.name,
        request_id=request_id,
        trace=trace_of_caller(traceparents_of(context)),
    )
    code = "missing_key" if reason is Reason.MISSING else "invalid_key"
    context.set_trailing_metadata(((REQUEST_ID, request_id), (ERROR_CODE, code)))
    end_call(context, Refusal(status=grpc.StatusCode.UNAUTHENTICATED, code=code, message=_SENTENCES[reason]))


def _values(metadata: Sequence[tuple[str, str | bytes]]) -> tuple[list[str], ...]:
    """Return the values of each metadata key that may contain a credential."""
    found: dict[str, list[str]] = {name: [] for name in _CREDENTIALS}
    for key, value in metadata or ():
        if key in found:
            found[key].append(value if isinstance(value, str) else value.decode("utf-8", "surrogateescape"))
    return tuple(found.values())


def _address(peer: str) -> str:
    """Return the address in a gRPC peer such as `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    _, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") or rest
