"""
What DoAction asks for, and what it answers: bytes in, a plan out; results in, bytes out. Pure.

Flight SQL packs the bodies of its actions and results in an Any; those that Flight itself defines (CancelFlightInfo and
the session actions) are bare messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flightapi.commands import Plan


@dataclass(frozen=True, slots=True)
class CreatePrepared:
    """Prepare the text *sql*."""

    sql: str


@dataclass(frozen=True, slots=True)
class ClosePrepared:
    """Forget the prepared statement of *handle*; one that is not there is no error."""

    handle: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop what *target* (a ticket's plan) started; `action` is the form in which the caller asked."""

    target: Plan
    action: Literal["CancelFlightInfo", "CancelQuery"]


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End the session: there is none, so nothing has to be done."""


@dataclass(frozen=True, slots=True)
class GetSessionOptions:
    """Tell the options of the session."""


@dataclass(frozen=True, slots=True)
class SetSessionOptions:
    """
    Set options of the session: nothing can be changed.

    `errors` has a number of `SetSessionOptionsResult.ErrorValue` for each option that is not as it is anyway.
    """

    errors: tuple[tuple[str, int], ...]


ActionPlan = CreatePrepared | ClosePrepared | Cancel | CloseSession | GetSessionOptions | SetSessionOptions

CancelStatus = Literal["cancelled", "cancelling", "not_cancellable"]


def plan_action(data: bytes) -> ActionPlan:
    """
    Return what a serialised Action asks for.

    Raises:
        MalformedMessageError: It is no Action, or its body is not the message of its type.
        UnknownTicketError: The FlightInfo to cancel has a ticket that is not ours.
        UnsupportedError: The type is unknown, or one that the runtime does not have.
    """
    raise NotImplementedError


def action_types() -> tuple[bytes, ...]:
    """Return what ListActions answers: serialised ActionTypes."""
    raise NotImplementedError


def prepared_result(handle: bytes, dataset_schema: bytes, parameter_schema: bytes) -> bytes:
    """
    Return the serialised Result of CreatePreparedStatement.

    Args:
        handle: By which the caller names the statement from then on.
        dataset_schema: As `protocol.schemas.encapsulated` gives it.
        parameter_schema: The same of `protocol.schemas.parameter_schema`; b"" when the statement takes none.
    """
    raise NotImplementedError


def cancel_result(plan: Cancel, status: CancelStatus) -> bytes:
    """Return the serialised Result of a cancellation, in the form in which it was asked for."""
    raise NotImplementedError


def session_result(plan: CloseSession | GetSessionOptions | SetSessionOptions) -> bytes:
    """Return the serialised Result of an action on the session."""
    raise NotImplementedError
