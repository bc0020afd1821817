"""JSON-RPC 2.0 messages: strict JSON in, compact JSON out."""

import json
import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from mcpapi.errors import INVALID_REQUEST, PARSE_ERROR, RpcError

RequestId = str | int | None


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or a notification, which has no `id` and gets no response."""

    method: str
    params: dict[str, Any]
    id: RequestId = None
    is_notification: bool = False


def parse(body: str | bytes) -> Any:
    """
    Return the JSON value in *body*.

    Raises:
        RpcError: It is not UTF-8 or not JSON, holds a name twice, NaN, an infinite number or a lone surrogate, or is
            nested too deep.
    """
    try:
        text = body if isinstance(body, str) else body.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_exact)
        # Only encoding finds the lone surrogates that escapes can produce.
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        message = f"Not valid JSON: {error.msg} at line {error.lineno} column {error.colno}."
        raise RpcError(PARSE_ERROR, message) from error
    except (ValueError, InvalidOperation, RecursionError) as error:
        message = "Not valid JSON: it is not UTF-8, is nested too deeply, repeats a name or has a number out of range."
        raise RpcError(PARSE_ERROR, message) from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):  # A proxy that checks the message might read the other one.
        raise ValueError
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _exact(text: str) -> float:
    number, written = float(text), Decimal(text)
    if math.isinf(number) or Decimal(f"{number:.{len(written.as_tuple().digits) - 1}e}") != written:
        raise ValueError(text)
    return number


def message_of(value: Any) -> Message | None:
    """
    Return the message in a JSON value; None for a response, of which this server expects none.

    Raises:
        RpcError: It is not a JSON-RPC message.
    """
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'A message must be a JSON object with "jsonrpc": "2.0".')
    if "method" not in value and ("result" in value or "error" in value):
        return None
    method, params, request_id = value.get("method"), value.get("params", {}), value.get("id")
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, 'A request needs a "method", a string.')
    is_notification = "id" not in value
    # A client must not send null as an id: it would be that of an error without a request.
    if not is_notification and (not isinstance(request_id, str | int) or isinstance(request_id, bool)):
        raise RpcError(INVALID_REQUEST, 'The "id" of a request must be a string or an integer.')
    if not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, 'The "params" of a message must be an object.')
    return Message(method, params, request_id, is_notification)


def id_of(value: Any) -> RequestId:
    """Return the id of a value that is not a valid message, if it has a usable one."""
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def cancelled_by(message: Message) -> RequestId:
    """Return the id of the request that a notification cancels; None for every other notification."""
    return id_of({"id": message.params.get("requestId")}) if message.method == "notifications/cancelled" else None


def result(request_id: RequestId, value: Any) -> dict[str, Any]:
    """Return the response with a result."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def failure(request_id: RequestId, error: RpcError) -> dict[str, Any]:
    """Return the response with an error."""
    described = {"code": error.code, "message": str(error)} | ({} if error.data is None else {"data": error.data})
    return {"jsonrpc": "2.0", "id": request_id, "error": described}


def encode(value: Any) -> bytes:
    """Return *value* as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
