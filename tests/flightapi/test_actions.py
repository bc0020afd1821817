from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightapi import actions, commands
from flightapi.actions import (
    Cancel,
    ClosePrepared,
    CloseSession,
    CreatePrepared,
    GetSessionOptions,
    SetSessionOptions,
)
from flightapi.commands import GetCatalogs, Statement
from flightapi.errors import FlightApiError, MalformedMessageError, UnknownTicketError, UnsupportedError
from flightapi.protocol import messages
from flightapi.protocol.messages import pack

TICKET_ID = bytes(range(16))
DESCRIPTOR = messages.FlightDescriptor(type=2, cmd=b"SELECT 1").SerializeToString()
INFO = commands.flight_info(DESCRIPTOR, b"", commands.ticket(Statement("SELECT 1"), TICKET_ID))
CANCEL = messages.CancelFlightInfoRequest(info=messages.FlightInfo.FromString(INFO)).SerializeToString()


def action(name: str, body: bytes = b"") -> bytes:
    return bytes(messages.Action(type=name, body=body).SerializeToString())


def body_of(result: bytes) -> bytes:
    return bytes(messages.Result.FromString(result).body)


@pytest.mark.parametrize(
    ("data", "plan"),
    [
        pytest.param(
            action("CreatePreparedStatement", pack(messages.ActionCreatePreparedStatementRequest(query="SELECT 1"))),
            CreatePrepared("SELECT 1"),
            id="create",
        ),
        pytest.param(
            action(
                "ClosePreparedStatement",
                pack(messages.ActionClosePreparedStatementRequest(prepared_statement_handle=b"h")),
            ),
            ClosePrepared(b"h"),
            id="close",
        ),
        pytest.param(
            action("CancelFlightInfo", CANCEL),
            Cancel(Statement("SELECT 1", TICKET_ID), "CancelFlightInfo"),
            id="cancel",
        ),
        pytest.param(
            action("CancelQuery", pack(messages.ActionCancelQueryRequest(info=INFO))),
            Cancel(Statement("SELECT 1", TICKET_ID), "CancelQuery"),
            id="cancel, the older form",
        ),
        pytest.param(
            action(
                "CancelFlightInfo",
                messages.CancelFlightInfoRequest(
                    info={"endpoint": [{"ticket": {"ticket": pack(messages.CommandGetCatalogs())}}]}
                ).SerializeToString(),
            ),
            Cancel(GetCatalogs(), "CancelFlightInfo"),
            id="cancel metadata",
        ),
        pytest.param(action("CloseSession"), CloseSession(), id="close session"),
        pytest.param(action("GetSessionOptions"), GetSessionOptions(), id="get options"),
    ],
)
def test_an_action_becomes_a_plan(data: bytes, plan: actions.ActionPlan) -> None:
    assert actions.plan_action(data) == plan


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"\xff", MalformedMessageError, id="no action"),
        pytest.param(action("createpreparedstatement"), UnsupportedError, id="another case"),
        pytest.param(action(""), UnsupportedError, id="no name"),
        pytest.param(action("RenewFlightEndpoint"), UnsupportedError, id="renew"),
        pytest.param(action("BeginTransaction"), UnsupportedError, id="begin"),
        pytest.param(action("EndTransaction"), UnsupportedError, id="end"),
        pytest.param(action("BeginSavepoint"), UnsupportedError, id="savepoint"),
        pytest.param(action("EndSavepoint"), UnsupportedError, id="end of a savepoint"),
        pytest.param(action("CreatePreparedSubstraitPlan"), UnsupportedError, id="Substrait"),
        pytest.param(action("CreatePreparedStatement", b"SELECT 1"), MalformedMessageError, id="text as a body"),
        pytest.param(
            action("CreatePreparedStatement", pack(messages.CommandStatementQuery(query="SELECT 1"))),
            MalformedMessageError,
            id="another message",
        ),
        pytest.param(
            action(
                "CreatePreparedStatement",
                pack(messages.ActionCreatePreparedStatementRequest(query="SELECT 1", transaction_id=b"1")),
            ),
            UnsupportedError,
            id="in a transaction",
        ),
        pytest.param(action("CancelFlightInfo", b"\xff"), MalformedMessageError, id="cancel nothing"),
        pytest.param(action("CancelFlightInfo"), MalformedMessageError, id="cancel without an endpoint"),
        pytest.param(
            action(
                "CancelFlightInfo",
                messages.CancelFlightInfoRequest(
                    info={
                        "endpoint": [
                            {"ticket": {"ticket": pack(messages.TicketStatementQuery(statement_handle=b"theirs"))}}
                        ]
                    }
                ).SerializeToString(),
            ),
            UnknownTicketError,
            id="cancel a foreign ticket",
        ),
        pytest.param(action("CloseSession", b"\xff"), MalformedMessageError, id="close session with bytes"),
        pytest.param(
            action(
                "SetSessionOptions",
                messages.SetSessionOptionsRequest(
                    session_options={f"o{number}": {} for number in range(1001)}
                ).SerializeToString(),
            ),
            MalformedMessageError,
            id="many options",
        ),
    ],
)
def test_unsupported_actions_are_refused(data: bytes, error: type[FlightApiError]) -> None:
    with pytest.raises(error):
        actions.plan_action(data)


def test_session_options_cannot_be_changed() -> None:
    request = messages.SetSessionOptionsRequest(
        session_options={
            "catalog": {"string_value": "runtime"},
            "schema": {"string_value": "other"},
            "timezone": {"string_value": "UTC"},
        }
    )

    plan = actions.plan_action(action("SetSessionOptions", request.SerializeToString()))

    assert isinstance(plan, SetSessionOptions)
    result = messages.SetSessionOptionsResult.FromString(body_of(actions.session_result(plan)))
    names = messages.SetSessionOptionsResult.ErrorValue
    assert {name: names.Name(error.value) for name, error in result.errors.items()} == {
        "schema": "INVALID_VALUE",
        "timezone": "INVALID_NAME",
    }


def test_session_options_hold_catalog_and_schema() -> None:
    result = messages.GetSessionOptionsResult.FromString(body_of(actions.session_result(GetSessionOptions())))

    options = {name: option.string_value for name, option in result.session_options.items()}
    assert options == {"catalog": "runtime", "schema": "main"}


def test_a_session_is_closed_at_once() -> None:
    result = messages.CloseSessionResult.FromString(body_of(actions.session_result(CloseSession())))

    assert result.status == messages.CloseSessionResult.Status.Value("CLOSED")


def test_every_supported_action_is_listed() -> None:
    listed = [messages.ActionType.FromString(data) for data in actions.action_types()]

    assert {kind.type for kind in listed} == set(actions._READERS)
    assert all(kind.description for kind in listed)


def test_a_prepared_statement_reports_its_schemas_and_is_no_update() -> None:
    wrapped = messages.AnyMessage.FromString(body_of(actions.prepared_result(b"h", b"answer", b"parameters")))

    result = messages.ActionCreatePreparedStatementResult.FromString(wrapped.value)
    assert wrapped.type_url.endswith(".ActionCreatePreparedStatementResult")
    assert (result.prepared_statement_handle, result.dataset_schema, result.parameter_schema) == (
        b"h",
        b"answer",
        b"parameters",
    )
    assert result.HasField("is_update")
    assert not result.is_update


@pytest.mark.parametrize(("status", "number"), [("cancelled", 1), ("cancelling", 2), ("not_cancellable", 3)])
def test_a_cancellation_is_answered_in_the_form_of_its_request(status: actions.CancelStatus, number: int) -> None:
    bare = body_of(actions.cancel_result(Cancel(GetCatalogs(), "CancelFlightInfo"), status))
    packed = body_of(actions.cancel_result(Cancel(GetCatalogs(), "CancelQuery"), status))

    assert messages.CancelFlightInfoResult.FromString(bare).status == number
    wrapped = messages.AnyMessage.FromString(packed)
    assert messages.ActionCancelQueryResult.FromString(wrapped.value).result == number


@given(
    name=st.one_of(st.text(max_size=20), st.sampled_from([*actions._READERS, *actions._UNSUPPORTED])),
    body=st.binary(max_size=200),
)
def test_hostile_bytes_give_a_plan_or_our_own_error(name: str, body: bytes) -> None:
    for data in (body, action(name, body), action(name, messages.AnyMessage(value=body).SerializeToString())):
        with suppress(FlightApiError):
            assert actions.plan_action(data) is not None
