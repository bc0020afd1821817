"""
Parses DoAction requests into plans and serialises their results, without side effects.

Flight SQL packs the bodies of its actions and results in an Any. The actions that Flight itself defines
(CancelFlightInfo and the session actions) are bare messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

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

#: The most options that one SetSessionOptions may name.
MAX_OPTIONS = 1000


@dataclass(frozen=True, slots=True)
class CreatePrepared:
    """Prepare the text *sql*."""

    sql: str


@dataclass(frozen=True, slots=True)
class ClosePrepared:
    """Close the prepared statement *handle*. An unknown handle is not an error."""

    handle: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the statement of *target*, the plan of a ticket; `action` is the form of the request."""

    target: Plan
    action: Literal["CancelFlightInfo", "CancelQuery"]


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End the session. There are no sessions, so this does nothing."""


@dataclass(frozen=True, slots=True)
class GetSessionOptions:
    """Return the options of the session."""


@dataclass(frozen=True, slots=True)
class SetSessionOptions:
    """
    Set options of the session, which cannot be changed.

    `errors` holds a `SetSessionOptionsResult.ErrorValue` for each option whose requested value is not its fixed value.
    """

    errors: tuple[tuple[str, int], ...]


ActionPlan = CreatePrepared | ClosePrepared | Cancel | CloseSession | GetSessionOptions | SetSessionOptions

CancelStatus = Literal["cancelled", "cancelling", "not_cancellable"]

#: The actions in ListActions, with their descriptions.
_DESCRIPTIONS: Final = {
    "CreatePreparedStatement": "Prepare a statement. Takes ActionCreatePreparedStatementRequest.",
    "ClosePreparedStatement": "Close a prepared statement. Takes ActionClosePreparedStatementRequest.",
    "CancelFlightInfo": "Cancel a running statement. Takes CancelFlightInfoRequest.",
    "CancelQuery": "Cancel a running statement, older form. Takes ActionCancelQueryRequest.",
    "CloseSession": "End the session. Takes CloseSessionRequest.",
    "GetSessionOptions": "Return the catalog and schema. Takes GetSessionOptionsRequest.",
    "SetSessionOptions": "Options cannot be changed. Takes SetSessionOptionsRequest.",
}

#: Actions of the protocol that are not supported, and why.
_UNSUPPORTED: Final = {
    "BeginTransaction": NO_TRANSACTIONS,
    "EndTransaction": NO_TRANSACTIONS,
    "BeginSavepoint": NO_TRANSACTIONS,
    "EndSavepoint": NO_TRANSACTIONS,
    "CreatePreparedSubstraitPlan": NO_SUBSTRAIT,
    "RenewFlightEndpoint": "Endpoints of this runtime do not expire, so there is nothing to renew.",
}

#: The fixed options of every session, by the names that ADBC uses.
_OPTIONS: Final = {"catalog": CATALOG, "schema": SCHEMA}

_CANCEL_NUMBERS: Final[Mapping[CancelStatus, int]] = {"cancelled": 1, "cancelling": 2, "not_cancellable": 3}


def plan_action(data: bytes) -> ActionPlan:
    """
    Parse a serialised Action.

    Raises:
        MalformedMessageError: *data* is not an Action, or its body is not the message of its type.
        UnknownTicketError: This runtime did not issue the ticket of the FlightInfo to cancel.
        UnsupportedError: The type is unknown or not supported, or the request names a transaction.
        FlightApiError: As `commands.plan_ticket`, for the ticket of the FlightInfo to cancel.
    """
    action = parse(messages.Action, data)
    if action.type in _UNSUPPORTED:
        raise UnsupportedError(_UNSUPPORTED[action.type])
    if action.type not in _READERS:
        raise UnsupportedError(f"The runtime does not have the action {action.type[:100]!r}.")
    return _READERS[action.type](action.body)


def action_types() -> tuple[bytes, ...]:
    """Return the answer to ListActions: serialised ActionTypes."""
    return tuple(
        bytes(messages.ActionType(type=name, description=description).SerializeToString())
        for name, description in _DESCRIPTIONS.items()
    )


def prepared_result(handle: bytes, dataset_schema: bytes, parameter_schema: bytes) -> bytes:
    """
    Return the serialised Result of CreatePreparedStatement.

    Args:
        handle: Identifies the statement in later calls.
        dataset_schema: The schema of the result, from `protocol.schemas.encapsulated`.
        parameter_schema: The encapsulated `protocol.schemas.parameter_schema`; b"" without parameters.
    """
    return _result(
        pack(
            messages.ActionCreatePreparedStatementResult(
                prepared_statement_handle=handle,
                dataset_schema=dataset_schema,
                parameter_schema=parameter_schema,
                is_update=False,  # JDBC fetches rows only if this says that it is no update.
            )
        )
    )


def cancel_result(plan: Cancel, status: CancelStatus) -> bytes:
    """Return the serialised Result of a cancellation, in the form of the request."""
    number = _CANCEL_NUMBERS[status]
    if plan.action == "CancelQuery":
        return _result(pack(messages.ActionCancelQueryResult(result=number)))
    return _result(messages.CancelFlightInfoResult(status=number).SerializeToString())


def session_result(plan: CloseSession | GetSessionOptions | SetSessionOptions) -> bytes:
    """Return the serialised Result of a session action."""
    match plan:
        case CloseSession():
            closed = messages.CloseSessionResult.Status.Value("CLOSED")
            answer = messages.CloseSessionResult(status=closed)
        case GetSessionOptions():
            answer = messages.GetSessionOptionsResult()
            for name, value in _OPTIONS.items():
                answer.session_options[name].string_value = value
        case SetSessionOptions(errors=errors):
            answer = messages.SetSessionOptionsResult()
            for name, number in errors:
                answer.errors[name].value = number
    return _result(answer.SerializeToString())


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


def _close_session(body: bytes) -> CloseSession:
    parse(messages.CloseSessionRequest, body)
    return CloseSession()


def _get_session_options(body: bytes) -> GetSessionOptions:
    parse(messages.GetSessionOptionsRequest, body)
    return GetSessionOptions()


def _set_session_options(body: bytes) -> SetSessionOptions:
    options = parse(messages.SetSessionOptionsRequest, body).session_options
    if len(options) > MAX_OPTIONS:
        raise MalformedMessageError(f"A call sets more than {MAX_OPTIONS:,} options.")
    error_values = messages.SetSessionOptionsResult.ErrorValue
    errors = []
    for name in sorted(options):
        if name not in _OPTIONS:
            errors.append((name, error_values.Value("INVALID_NAME")))
        elif options[name].string_value != _OPTIONS[name]:
            errors.append((name, error_values.Value("INVALID_VALUE")))
    return SetSessionOptions(tuple(errors))


_READERS: Final[Mapping[str, Callable[[bytes], ActionPlan]]] = {
    "CreatePreparedStatement": _create_prepared,
    "ClosePreparedStatement": _close_prepared,
    "CancelFlightInfo": _cancel_flight_info,
    "CancelQuery": _cancel_query,
    "CloseSession": _close_session,
    "GetSessionOptions": _get_session_options,
    "SetSessionOptions": _set_session_options,
}
