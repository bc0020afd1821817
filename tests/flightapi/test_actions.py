from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightapi import actions, commands
from flightapi.actions import Cancel, ClosePrepared, CreatePrepared, SessionAction
from flightapi.commands import MetadataCommand, Statement
from flightapi.errors import FlightApiError, MalformedMessageError, UnknownTicketError, UnsupportedError
from flightapi.protocol import messages
from flightapi.protocol.messages import pack
from tests.flightapi.endpoint import action, schema_of, unpacked

TICKET_ID = bytes(range(16))
DESCRIPTOR = messages.FlightDescriptor(type=2, cmd=b"SELECT 1").SerializeToString()
INFO = commands.flight_info(DESCRIPTOR, b"", commands.ticket(Statement("SELECT 1"), TICKET_ID))
CATALOGS = messages.CommandGetCatalogs()


def cancel(info: bytes) -> bytes:
    request = messages.CancelFlightInfoRequest(info=messages.FlightInfo.FromString(info))
    return action("CancelFlightInfo", request.SerializeToString())


def info_of(ticket: bytes) -> bytes:
    return bytes(messages.FlightInfo(endpoint=[{"ticket": {"ticket": ticket}}]).SerializeToString())


def create(**fields: Any) -> bytes:
    return action("CreatePreparedStatement", pack(messages.ActionCreatePreparedStatementRequest(**fields)))


def body_of(result: bytes) -> bytes:
    return bytes(messages.Result.FromString(result).body)


@pytest.mark.parametrize(
    ("data", "plan"),
    [
        pytest.param(create(query="SELECT 1"), CreatePrepared("SELECT 1"), id="create"),
        pytest.param(
            action(
                "ClosePreparedStatement",
                pack(messages.ActionClosePreparedStatementRequest(prepared_statement_handle=b"h")),
            ),
            ClosePrepared(b"h"),
            id="close",
        ),
        pytest.param(cancel(INFO), Cancel(Statement("SELECT 1", TICKET_ID), "CancelFlightInfo"), id="cancel"),
        pytest.param(
            action("CancelQuery", pack(messages.ActionCancelQueryRequest(info=INFO))),
            Cancel(Statement("SELECT 1", TICKET_ID), "CancelQuery"),
            id="cancel, the older form",
        ),
        pytest.param(
            cancel(info_of(pack(CATALOGS))), Cancel(MetadataCommand(CATALOGS), "CancelFlightInfo"), id="cancel metadata"
        ),
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
        *(pytest.param(action(name), UnsupportedError, id=name) for name in actions._UNSUPPORTED),
        pytest.param(action("CreatePreparedStatement", b"SELECT 1"), MalformedMessageError, id="text as a body"),
        pytest.param(
            action("CreatePreparedStatement", pack(messages.CommandStatementQuery(query="SELECT 1"))),
            MalformedMessageError,
            id="another message",
        ),
        pytest.param(create(query="SELECT 1", transaction_id=b"1"), UnsupportedError, id="in a transaction"),
        pytest.param(action("CancelFlightInfo", b"\xff"), MalformedMessageError, id="cancel nothing"),
        pytest.param(action("CancelFlightInfo"), MalformedMessageError, id="cancel without an endpoint"),
        pytest.param(
            cancel(info_of(pack(messages.TicketStatementQuery(statement_handle=b"theirs")))),
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


OPTIONS = {
    "catalog": {"string_value": "runtime"},
    "schema": {"string_value": "other"},
    "timezone": {"string_value": "UTC"},
}


@pytest.mark.parametrize(
    ("name", "body", "answer"),
    [
        pytest.param("CloseSession", b"", messages.CloseSessionResult(status=1), id="close at once"),
        pytest.param(
            "GetSessionOptions",
            b"",
            messages.GetSessionOptionsResult(
                session_options={"catalog": {"string_value": "runtime"}, "schema": {"string_value": "main"}}
            ),
            id="catalog and schema",
        ),
        pytest.param(
            "SetSessionOptions",
            messages.SetSessionOptionsRequest(session_options=OPTIONS).SerializeToString(),
            messages.SetSessionOptionsResult(errors={"schema": {"value": 2}, "timezone": {"value": 1}}),
            id="options cannot be changed",
        ),
    ],
)
def test_a_session_action_has_a_fixed_answer(name: str, body: bytes, answer: Any) -> None:
    plan = actions.plan_action(action(name, body))

    assert isinstance(plan, SessionAction)
    assert type(answer).FromString(body_of(plan.answer)) == answer


def test_every_supported_action_is_listed() -> None:
    listed = {kind.type: kind.description for kind in map(messages.ActionType.FromString, actions.action_types())}

    assert listed == {name: description for name, (description, _) in actions._READERS.items()}


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        pytest.param({"10", "2", "1"}, ["$1", "$2", "$10"], id="numbered"),
        pytest.param({"b", "a"}, ["a", "b"], id="named"),
    ],
)
def test_a_prepared_statement_reports_its_schemas_and_is_no_update(parameters: set[str], fields: list[str]) -> None:
    result = unpacked(
        messages.ActionCreatePreparedStatementResult, actions.prepared_result(b"h", b"schema", parameters)
    )

    assert (result.prepared_statement_handle, result.dataset_schema) == (b"h", b"schema")
    assert schema_of(result.parameter_schema) == pa.schema([pa.field(name, pa.null()) for name in fields])
    assert result.HasField("is_update")
    assert not result.is_update


@pytest.mark.parametrize(("is_cancelled", "number"), [(True, 1), (False, 3)])
def test_a_cancellation_is_answered_in_the_form_of_its_request(is_cancelled: bool, number: int) -> None:
    target = MetadataCommand(CATALOGS)
    bare = actions.cancel_result(Cancel(target, "CancelFlightInfo"), is_cancelled=is_cancelled)
    packed = actions.cancel_result(Cancel(target, "CancelQuery"), is_cancelled=is_cancelled)

    assert messages.CancelFlightInfoResult.FromString(body_of(bare)).status == number
    assert unpacked(messages.ActionCancelQueryResult, packed).result == number


@given(
    name=st.one_of(st.text(max_size=20), st.sampled_from([*actions._READERS, *actions._UNSUPPORTED])),
    body=st.binary(max_size=200),
)
def test_hostile_bytes_give_a_plan_or_our_own_error(name: str, body: bytes) -> None:
    for data in (body, action(name, body), action(name, messages.AnyMessage(value=body).SerializeToString())):
        with suppress(FlightApiError):
            assert actions.plan_action(data) is not None
