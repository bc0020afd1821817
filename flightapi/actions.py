"""
Parses DoAction requests into plans and serialises their results, without side effects.

Flight SQL packs the bodies of its actions and results in an Any. The actions that Flight itself defines
(CancelFlightInfo and the session actions) are bare messages.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

import pyarrow as pa
from msgspec import Struct

from flightapi.commands import (
    CATALOG,
    NO_SUBSTRAIT,
    NO_TRANSACTIONS,
    SCHEMA,
    Plan,
    checked_handle,
    plan_ticket_bytes,
    refuse_transaction,
    unwrap,
)
from flightapi.errors import MalformedMessageError, UnsupportedError
from flightapi.protocol import messages
from flightapi.protocol.messages import pack, parse

#: The maximum number of options in one SetSessionOptions.
MAX_OPTIONS = 1000


class CreatePrepared(Struct, frozen=True):
    """Prepare the statement *sql*."""

    sql: str


class ClosePrepared(Struct, frozen=True):
    """Close the prepared statement *handle*. An unknown handle is not an error."""

    handle: bytes


class Cancel(Struct, frozen=True):
    """Cancel the statement of *target*, the plan of a ticket. `action` is the form of the request."""

    target: Plan
    action: Literal["CancelFlightInfo", "CancelQuery"]


class SessionAction(Struct, frozen=True):
    """Return the serialised Result *answer*. There are no sessions, so every session action gets the same response."""

    answer: bytes


ActionPlan = CreatePrepared | ClosePrepared | Cancel | SessionAction

#: Protocol actions that are not supported, with the reasons.
_UNSUPPORTED: Final = {
    "BeginTransaction": NO_TRANSACTIONS,
    "EndTransaction": NO_TRANSACTIONS,
    "BeginSavepoint": NO_TRANSACTIONS,
    "EndSavepoint": NO_TRANSACTIONS,
    "CreatePreparedSubstraitPlan": NO_SUBSTRAIT,
    "RenewFlightEndpoint": "Endpoints of this runtime never expire, so they need no renewal.",
}

#: The fixed options of every session, by the names that ADBC uses.
_OPTIONS: Final = {"catalog": CATALOG, "schema": SCHEMA}


def plan_action(data: bytes) -> ActionPlan:
    """
    Parse a serialised Action.

    Raises:
        MalformedMessageError: *data* is not an Action, or its body is not the message of its type.
        UnknownTicketError: This runtime did not issue the ticket of the FlightInfo to cancel.
        UnsupportedError: The type is unknown or not supported, or the request names a transaction.
        FlightApiError: See `commands.plan_ticket`, for the ticket of the FlightInfo to cancel.
    """
    action = parse(messages.Action, data)
    if action.type in _UNSUPPORTED:
        raise UnsupportedError(_UNSUPPORTED[action.type])
    if action.type not in _READERS:
        raise UnsupportedError(f"The runtime does not support the action {action.type[:100]!r}.")
    _, read = _READERS[action.type]
    return read(action.body)


def action_types() -> tuple[bytes, ...]:
    """Return the response to ListActions: serialised ActionTypes."""
    return tuple(
        bytes(messages.ActionType(type=name, description=description).SerializeToString())
        for name, (description, _) in _READERS.items()
    )


def prepared_result(handle: bytes, dataset_schema: bytes, parameters: Collection[str]) -> bytes:
    """
    Return the serialised Result of CreatePreparedStatement.

    Args:
        handle: Identifies the statement in later calls.
        dataset_schema: The schema of the result as an encapsulated IPC message; b"" if it is unknown.
        parameters: The names of the parameters, as in `GatedStatement.parameters`.
    """
    return _result(
        pack(
            messages.ActionCreatePreparedStatementResult(
                prepared_statement_handle=handle,
                dataset_schema=dataset_schema,
                parameter_schema=_parameter_schema(parameters),
                is_update=False,  # JDBC fetches rows only if the schema shows that the statement is not an update.
            )
        )
    )


def _parameter_schema(names: Collection[str]) -> bytes:
    """Return the schema of the parameter row. Types are null because they are unknown until values are bound."""
    if not names:
        return b""
    numbered = all(name.isdecimal() for name in names)
    ordered = sorted(names, key=int) if numbered else sorted(names)
    schema = pa.schema([pa.field(f"${name}" if numbered else name, pa.null()) for name in ordered])
    return bytes(schema.serialize())


def cancel_result(plan: Cancel, *, is_cancelled: bool) -> bytes:
    """Return the serialised Result of a cancellation, in the form of the request."""
    status = "CANCELLED" if is_cancelled else "NOT_CANCELLABLE"
    if plan.action == "CancelQuery":
        return _result(pack(messages.ActionCancelQueryResult(result=f"CANCEL_RESULT_{status}")))
    return _result(messages.CancelFlightInfoResult(status=f"CANCEL_STATUS_{status}").SerializeToString())


def _result(body: bytes) -> bytes:
    return bytes(messages.Result(body=body).SerializeToString())


def _create_prepared(body: bytes) -> CreatePrepared:
    request = unwrap(messages.ActionCreatePreparedStatementRequest, body)
    refuse_transaction(request)
    return CreatePrepared(request.query)


def _close_prepared(body: bytes) -> ClosePrepared:
    request = unwrap(messages.ActionClosePreparedStatementRequest, body)
    return ClosePrepared(checked_handle(request.prepared_statement_handle))


def _cancel_flight_info(body: bytes) -> Cancel:
    return Cancel(_target(parse(messages.CancelFlightInfoRequest, body).info), "CancelFlightInfo")


def _cancel_query(body: bytes) -> Cancel:
    request = unwrap(messages.ActionCancelQueryRequest, body)
    return Cancel(_target(parse(messages.FlightInfo, request.info)), "CancelQuery")


def _target(info: Any) -> Plan:
    """Return the plan of the ticket in a FlightInfo of this runtime, which has one endpoint."""
    if len(info.endpoint) != 1:
        raise MalformedMessageError("The FlightInfo to cancel must have exactly one endpoint.")
    return plan_ticket_bytes(info.endpoint[0].ticket.ticket)


def _close_session(body: bytes) -> SessionAction:
    parse(messages.CloseSessionRequest, body)
    return SessionAction(_result(messages.CloseSessionResult(status="CLOSED").SerializeToString()))


def _get_session_options(body: bytes) -> SessionAction:
    parse(messages.GetSessionOptionsRequest, body)
    options = {name: {"string_value": value} for name, value in _OPTIONS.items()}
    return SessionAction(_result(messages.GetSessionOptionsResult(session_options=options).SerializeToString()))


def _set_session_options(body: bytes) -> SessionAction:
    options = parse(messages.SetSessionOptionsRequest, body).session_options
    if len(options) > MAX_OPTIONS:
        raise MalformedMessageError(f"The request sets more than {MAX_OPTIONS:,} options.")
    errors = {
        name: {"value": "INVALID_VALUE" if name in _OPTIONS else "INVALID_NAME"}
        for name, value in options.items()
        if value.string_value != _OPTIONS.get(name)
    }
    return SessionAction(_result(messages.SetSessionOptionsResult(errors=errors).SerializeToString()))


#: The supported actions, with their descriptions in ListActions and the functions that turn them into plans.
_READERS: Final[Mapping[str, tuple[str, Callable[[bytes], ActionPlan]]]] = {
    "CreatePreparedStatement": ("Prepare a statement. Expects ActionCreatePreparedStatementRequest.", _create_prepared),
    "ClosePreparedStatement": (
        "Close a prepared statement. Expects ActionClosePreparedStatementRequest.",
        _close_prepared,
    ),
    "CancelFlightInfo": ("Cancel a running statement. Expects CancelFlightInfoRequest.", _cancel_flight_info),
    "CancelQuery": ("Cancel a running statement (older form). Expects ActionCancelQueryRequest.", _cancel_query),
    "CloseSession": ("End the session. Expects CloseSessionRequest.", _close_session),
    "GetSessionOptions": ("Return the catalog and schema. Expects GetSessionOptionsRequest.", _get_session_options),
    "SetSessionOptions": ("Reject changes to session options. Expects SetSessionOptionsRequest.", _set_session_options),
}
