from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from flightapi import commands
from flightapi.commands import (
    BindParameters,
    GetCatalogs,
    GetDbSchemas,
    GetKeys,
    GetSqlInfo,
    GetTables,
    GetTableTypes,
    GetXdbcTypeInfo,
    Plan,
    PreparedExecution,
    Statement,
)
from flightapi.errors import (
    FlightApiError,
    InvalidSqlTextError,
    MalformedMessageError,
    ReadOnlyError,
    UnknownPreparedStatementError,
    UnknownTicketError,
    UnsupportedError,
)
from flightapi.protocol import messages
from flightapi.protocol.messages import pack

TICKET_ID = bytes(range(16))

COMMANDS = [
    pytest.param(messages.CommandStatementQuery(query="SELECT 1"), Statement("SELECT 1"), id="statement"),
    pytest.param(
        messages.CommandStatementQuery(query="SELECT 1", transaction_id=b""), Statement("SELECT 1"), id="no transaction"
    ),
    pytest.param(
        messages.CommandPreparedStatementQuery(prepared_statement_handle=b"\0h"),
        PreparedExecution(b"\0h"),
        id="prepared",
    ),
    pytest.param(messages.CommandGetCatalogs(), GetCatalogs(), id="catalogs"),
    pytest.param(messages.CommandGetDbSchemas(), GetDbSchemas(), id="schemas"),
    pytest.param(
        messages.CommandGetDbSchemas(catalog="", db_schema_filter_pattern="m%"), GetDbSchemas("", "m%"), id="of none"
    ),
    pytest.param(messages.CommandGetTables(), GetTables(), id="tables"),
    pytest.param(
        messages.CommandGetTables(
            catalog="c",
            db_schema_filter_pattern="s",
            table_name_filter_pattern="",
            table_types=["VIEW", "TABLE", "VIEW"],
            include_schema=True,
        ),
        GetTables("c", "s", "", ("VIEW", "TABLE"), include_schema=True),
        id="tables with everything",
    ),
    pytest.param(messages.CommandGetTableTypes(), GetTableTypes(), id="table types"),
    pytest.param(messages.CommandGetSqlInfo(), GetSqlInfo(), id="facts"),
    pytest.param(messages.CommandGetSqlInfo(info=[8, 0, 8]), GetSqlInfo((8, 0)), id="some facts"),
    pytest.param(messages.CommandGetXdbcTypeInfo(), GetXdbcTypeInfo(), id="types"),
    pytest.param(messages.CommandGetXdbcTypeInfo(data_type=0), GetXdbcTypeInfo(0), id="type 0"),
    pytest.param(messages.CommandGetPrimaryKeys(table="t"), GetKeys("primary"), id="primary keys"),
    pytest.param(messages.CommandGetExportedKeys(table="t"), GetKeys("exported"), id="exported keys"),
    pytest.param(messages.CommandGetImportedKeys(table="t"), GetKeys("imported"), id="imported keys"),
    pytest.param(messages.CommandGetCrossReference(pk_table="t"), GetKeys("cross"), id="cross reference"),
]

REFUSED = [
    pytest.param(messages.CommandStatementUpdate(query="DELETE FROM t"), ReadOnlyError, id="update"),
    pytest.param(messages.CommandPreparedStatementUpdate(), ReadOnlyError, id="prepared update"),
    pytest.param(messages.CommandStatementIngest(table="t"), ReadOnlyError, id="ingestion"),
    pytest.param(messages.CommandStatementSubstraitPlan(), UnsupportedError, id="Substrait"),
    pytest.param(messages.ActionClosePreparedStatementRequest(), UnsupportedError, id="no command"),
    pytest.param(messages.CommandStatementQuery(transaction_id=b"1"), UnsupportedError, id="transaction"),
    pytest.param(
        messages.CommandPreparedStatementQuery(prepared_statement_handle=bytes(2000)),
        UnknownPreparedStatementError,
        id="a long handle",
    ),
    pytest.param(messages.CommandGetTables(catalog="x" * 10_001), MalformedMessageError, id="a long name"),
    pytest.param(messages.CommandGetSqlInfo(info=range(10_001)), MalformedMessageError, id="many facts"),
    pytest.param(messages.CommandGetTables(table_types=["x"] * 10_001), MalformedMessageError, id="many types"),
]


def descriptor(content: bytes, kind: str = "CMD") -> bytes:
    number = messages.FlightDescriptor.DescriptorType.Value(kind)
    return bytes(messages.FlightDescriptor(type=number, cmd=content).SerializeToString())


def serialised_ticket(content: bytes) -> bytes:
    return bytes(messages.Ticket(ticket=content).SerializeToString())


def put(message: Any) -> bytes:
    described = messages.FlightDescriptor(type=2, cmd=pack(message))
    return bytes(messages.FlightData(flight_descriptor=described, data_header=b"x").SerializeToString())


@pytest.mark.parametrize(("message", "plan"), COMMANDS)
def test_a_command_becomes_a_plan_in_a_descriptor_and_as_a_ticket(message: Any, plan: Plan) -> None:
    assert commands.plan_descriptor(descriptor(pack(message))) == plan
    assert commands.plan_ticket(serialised_ticket(pack(message))) == plan


@pytest.mark.parametrize(("message", "error"), REFUSED)
def test_unsupported_commands_are_refused(message: Any, error: type[FlightApiError]) -> None:
    with pytest.raises(error):
        commands.plan_descriptor(descriptor(pack(message)))
    with pytest.raises(error):
        commands.plan_ticket(serialised_ticket(pack(message)))


def test_a_descriptor_made_by_pyarrow_is_read() -> None:
    made = flight.FlightDescriptor.for_command("SELECT 1").serialize()
    named = flight.FlightDescriptor.for_path("main", 'a "b').serialize()

    assert commands.plan_descriptor(made) == Statement("SELECT 1")
    assert commands.plan_descriptor(named) == Statement('SELECT * FROM "main"."a ""b"')
    assert commands.plan_ticket(flight.Ticket(b"SELECT 2").serialize()) == Statement("SELECT 2")


@pytest.mark.parametrize(
    "content",
    [
        b"SELECT 1",
        b"",
        b"\n\tSELECT 1",  # a field of nine bytes, if anybody read it so
        "SELECT 'ä'".encode(),
        messages.AnyMessage(type_url="somewhere/else", value=b"x").SerializeToString(),
    ],
)
def test_anything_but_a_command_is_text(content: bytes) -> None:
    assert commands.plan_descriptor(descriptor(content)) == Statement(content.decode())
    assert commands.plan_ticket(serialised_ticket(content)) == Statement(content.decode())


def test_a_type_url_may_have_any_host() -> None:
    url = "example.com/arrow.flight.protocol.sql.CommandGetCatalogs"
    wrapped = messages.AnyMessage(type_url=url).SerializeToString()

    assert commands.plan_descriptor(descriptor(wrapped)) == GetCatalogs()


@pytest.mark.parametrize("name", ["google.protobuf.Empty", "arrow.flight.protocol.sql.CommandOfTomorrow"])
def test_an_unknown_command_is_not_run_as_text(name: str) -> None:
    wrapped = messages.AnyMessage(type_url=f"type.googleapis.com/{name}").SerializeToString()

    with pytest.raises(UnsupportedError, match=name):
        commands.plan_descriptor(descriptor(wrapped))


def test_a_command_that_was_cut_is_not_run_as_text() -> None:
    whole = pack(messages.CommandStatementQuery(query="SELECT 1"))

    named = whole.index(b"SELECT") - 4  # up to here the Any is whole and its message empty
    assert commands.plan_descriptor(descriptor(whole[:named])) == Statement("")
    for kept in [*range(15, named), *range(named + 1, len(whole))]:
        with pytest.raises(MalformedMessageError):
            commands.plan_descriptor(descriptor(whole[:kept]))


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidSqlTextError):
        commands.plan_descriptor(descriptor(b"SELECT '\xff'"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff", id="no descriptor"),
        pytest.param(b"", id="nothing"),
        pytest.param(descriptor(b"SELECT 1", "UNKNOWN"), id="of no kind"),
        pytest.param(descriptor(b"SELECT 1", "PATH"), id="an empty path"),
        pytest.param(messages.FlightDescriptor(type=1, path=["a"] * 4).SerializeToString(), id="a long path"),
        pytest.param(messages.FlightDescriptor(type=1, path=["a", ""]).SerializeToString(), id="an empty name"),
        pytest.param(messages.FlightDescriptor(type=7, cmd=b"SELECT 1").SerializeToString(), id="of an unknown kind"),
    ],
)
def test_a_descriptor_without_a_request_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        commands.plan_descriptor(data)


@pytest.mark.parametrize(
    "plan", [Statement("SELECT 'ä'", TICKET_ID), Statement("", TICKET_ID), PreparedExecution(b"\xff\0", TICKET_ID)]
)
def test_a_ticket_holds_its_plan(plan: Plan) -> None:
    content = commands.ticket(plan, TICKET_ID)

    assert commands.plan_ticket(serialised_ticket(content)) == plan
    wrapped = messages.AnyMessage.FromString(content)
    assert wrapped.type_url == "type.googleapis.com/arrow.flight.protocol.sql.TicketStatementQuery"


@pytest.mark.parametrize(
    "plan", [param.values[1] for param in COMMANDS if not isinstance(param.values[1], Statement | PreparedExecution)]
)
def test_a_metadata_command_is_its_own_ticket(plan: Plan) -> None:
    assert commands.plan_ticket_bytes(commands.ticket(plan, TICKET_ID)) == plan


def test_a_ticket_that_was_changed_is_unknown() -> None:
    content = commands.ticket(Statement("SELECT 'some text'"), TICKET_ID)
    handle = messages.TicketStatementQuery.FromString(messages.AnyMessage.FromString(content).value).statement_handle

    for place in range(len(handle)):
        changed = handle[:place] + bytes([handle[place] ^ 1]) + handle[place + 1 :]
        with pytest.raises(UnknownTicketError):
            commands.plan_ticket_bytes(pack(messages.TicketStatementQuery(statement_handle=changed)))
        with pytest.raises(UnknownTicketError):
            commands.plan_ticket_bytes(pack(messages.TicketStatementQuery(statement_handle=handle[:place])))


def test_a_ticket_whose_text_is_not_utf_8_is_unknown() -> None:
    as_handle = commands.ticket(PreparedExecution(b"\xff"), TICKET_ID)
    handle = messages.TicketStatementQuery.FromString(messages.AnyMessage.FromString(as_handle).value).statement_handle
    body = handle[26:]
    checksum = commands._checksum(1, TICKET_ID, body)

    with pytest.raises(UnknownTicketError):
        commands.plan_ticket_bytes(
            pack(messages.TicketStatementQuery(statement_handle=b"\x01\x01" + TICKET_ID + checksum + body))
        )


def test_flight_info_repeats_the_descriptor_and_names_one_endpoint() -> None:
    asked = descriptor(b"SELECT 1")

    info = flight.FlightInfo.deserialize(commands.flight_info(asked, b"", b"a ticket"))

    assert info.descriptor.command == b"SELECT 1"
    assert [endpoint.ticket.ticket for endpoint in info.endpoints] == [b"a ticket"]
    assert [endpoint.locations for endpoint in info.endpoints] == [[]]
    assert (info.total_records, info.total_bytes) == (-1, -1)


def test_a_schema_result_holds_the_schema() -> None:
    assert messages.SchemaResult.FromString(commands.schema_result(b"schema")).schema == b"schema"


def test_do_put_binds_parameters() -> None:
    message = messages.CommandPreparedStatementQuery(prepared_statement_handle=b"h")

    assert commands.plan_put(put(message)) == BindParameters(b"h")
    result = messages.PutResult.FromString(commands.bind_result(b"h2"))
    bound = messages.DoPutPreparedStatementResult.FromString(result.app_metadata)
    assert bound.prepared_statement_handle == b"h2"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"\xff", MalformedMessageError, id="no FlightData"),
        pytest.param(b"", MalformedMessageError, id="no descriptor"),
        pytest.param(
            messages.FlightData(flight_descriptor={"type": 2, "cmd": b"t"}).SerializeToString(),
            MalformedMessageError,
            id="text",
        ),
        pytest.param(
            messages.FlightData(flight_descriptor={"type": 1, "path": ["t"]}).SerializeToString(),
            ReadOnlyError,
            id="an upload to a path",
        ),
        pytest.param(put(messages.CommandStatementUpdate(query="DELETE FROM t")), ReadOnlyError, id="update"),
        pytest.param(put(messages.CommandPreparedStatementUpdate()), ReadOnlyError, id="prepared update"),
        pytest.param(put(messages.CommandStatementIngest(table="t")), ReadOnlyError, id="ingestion"),
        pytest.param(put(messages.CommandStatementQuery(query="SELECT 1")), UnsupportedError, id="query"),
        pytest.param(put(messages.CommandGetCatalogs()), UnsupportedError, id="metadata"),
    ],
)
def test_do_put_refuses_everything_else(data: bytes, error: type[FlightApiError]) -> None:
    with pytest.raises(error):
        commands.plan_put(data)


def test_text_of_the_caller_is_quoted_shortened_on_one_line() -> None:
    name = "arrow.flight.protocol.\n" + "x" * 10_000
    wrapped = messages.AnyMessage(type_url=f"type.googleapis.com/{name}").SerializeToString()

    with pytest.raises(UnsupportedError) as caught:
        commands.plan_descriptor(descriptor(wrapped))

    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


hostile = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda url, value: messages.AnyMessage(type_url=url, value=value).SerializeToString(),
        st.one_of(
            st.text(max_size=40),
            st.sampled_from(
                [
                    f"type.googleapis.com/{kind.DESCRIPTOR.full_name}"
                    for kind in vars(messages).values()
                    if isinstance(kind, type) and hasattr(kind, "DESCRIPTOR")
                ]
            ),
        ),
        st.binary(max_size=200),
    ),
)


@given(content=hostile)
def test_hostile_bytes_give_a_plan_or_our_own_error(content: bytes) -> None:
    for attempt in (
        lambda: commands.plan_descriptor(content),
        lambda: commands.plan_descriptor(descriptor(content)),
        lambda: commands.plan_ticket(content),
        lambda: commands.plan_ticket(serialised_ticket(content)),
        lambda: commands.plan_put(content),
        lambda: commands.plan_put(
            messages.FlightData(flight_descriptor={"type": 2, "cmd": content}).SerializeToString()
        ),
    ):
        with suppress(FlightApiError):
            assert attempt() is not None
