from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from flightapi import commands
from flightapi.commands import MetadataCommand, Plan, PreparedExecution, Statement
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
from tests.corpus import each
from tests.flightapi.endpoint import descriptor
from tests.flightapi.endpoint import ticket as serialised_ticket

TICKET_ID = bytes(range(16))

METADATA = [
    messages.CommandGetCatalogs(),
    messages.CommandGetDbSchemas(),
    messages.CommandGetDbSchemas(catalog="", db_schema_filter_pattern="m%"),
    messages.CommandGetTables(catalog="c", table_name_filter_pattern="", table_types=["VIEW"], include_schema=True),
    messages.CommandGetTableTypes(),
    messages.CommandGetSqlInfo(info=[8, 0, 8]),
    messages.CommandGetXdbcTypeInfo(data_type=0),
    messages.CommandGetPrimaryKeys(table="t"),
    messages.CommandGetExportedKeys(table="t"),
    messages.CommandGetImportedKeys(table="t"),
    messages.CommandGetCrossReference(pk_table="t"),
]
COMMANDS = [
    (messages.CommandStatementQuery(query="SELECT 1"), Statement("SELECT 1")),
    (messages.CommandStatementQuery(query="SELECT 1", transaction_id=b""), Statement("SELECT 1")),
    (messages.CommandPreparedStatementQuery(prepared_statement_handle=b"\0h"), PreparedExecution(b"\0h")),
    *((message, MetadataCommand(message)) for message in METADATA),
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


def put(message: Any) -> bytes:
    described = messages.FlightDescriptor(type=2, cmd=pack(message))
    return bytes(messages.FlightData(flight_descriptor=described, data_header=b"x").SerializeToString())


@each(("message", "plan"), COMMANDS)
def test_a_command_becomes_a_plan_in_a_descriptor_and_as_a_ticket(message: Any, plan: Plan) -> None:
    assert commands.plan_descriptor(descriptor(pack(message))) == plan
    assert commands.plan_ticket(serialised_ticket(pack(message))) == plan


@each(("message", "error"), REFUSED)
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
def test_anything_but_a_command_is_text_in_utf_8(content: bytes) -> None:
    assert commands.plan_descriptor(descriptor(content)) == Statement(content.decode())
    assert commands.plan_ticket(serialised_ticket(content)) == Statement(content.decode())
    with pytest.raises(InvalidSqlTextError):
        commands.plan_descriptor(descriptor(b"SELECT '\xff'" + content))


def test_a_type_url_may_have_any_host() -> None:
    url = "example.com/arrow.flight.protocol.sql.CommandGetCatalogs"
    wrapped = messages.AnyMessage(type_url=url).SerializeToString()

    assert commands.plan_descriptor(descriptor(wrapped)) == MetadataCommand(messages.CommandGetCatalogs())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("google.protobuf.Empty", "'google.protobuf.Empty'"),
        ("arrow.flight.protocol.sql.CommandOfTomorrow", "'arrow.flight.protocol.sql.CommandOfTomorrow'"),
        ("arrow.flight.protocol.\n" + "x" * 10_000, "'arrow.flight.protocol." + r"\n" + "x" * 77 + "'"),
    ],
    ids=["not of Flight", "of tomorrow", "shortened, on one line"],
)
def test_an_unknown_command_is_not_run_as_text(name: str, shown: str) -> None:
    wrapped = messages.AnyMessage(type_url=f"type.googleapis.com/{name}").SerializeToString()

    with pytest.raises(UnsupportedError) as caught:
        commands.plan_descriptor(descriptor(wrapped))

    assert str(caught.value) == f"The runtime does not support the command {shown}."


def test_a_command_that_was_cut_is_not_run_as_text() -> None:
    whole = pack(messages.CommandStatementQuery(query="SELECT 1"))

    named = whole.index(b"SELECT") - 4  # up to here the Any is whole and its message empty
    assert commands.plan_descriptor(descriptor(whole[:named])) == Statement("")
    for kept in [*range(15, named), *range(named + 1, len(whole))]:
        with pytest.raises(MalformedMessageError):
            commands.plan_descriptor(descriptor(whole[:kept]))


@each(
    "data",
    [
        pytest.param(b"\xff", id="no descriptor"),
        pytest.param(b"", id="nothing"),
        pytest.param(messages.FlightDescriptor(type=0, cmd=b"SELECT 1").SerializeToString(), id="of no kind"),
        pytest.param(messages.FlightDescriptor(type=1, cmd=b"SELECT 1").SerializeToString(), id="an empty path"),
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


@each("command", METADATA)
def test_a_metadata_command_is_its_own_ticket(command: Any) -> None:
    assert commands.ticket(MetadataCommand(command), TICKET_ID) == pack(command)


def test_a_ticket_that_was_changed_is_unknown() -> None:
    handle = handle_of(Statement("SELECT 'some text'"))

    for place in range(len(handle)):
        changed = handle[:place] + bytes([handle[place] ^ 1]) + handle[place + 1 :]
        for damaged in (changed, handle[:place]):
            with pytest.raises(UnknownTicketError):
                commands.plan_ticket_bytes(pack(messages.TicketStatementQuery(statement_handle=damaged)))


def test_a_ticket_whose_text_is_not_utf_8_is_unknown() -> None:
    body = b"\xff"
    handle = b"\x01\x01" + TICKET_ID + commands._checksum(1, TICKET_ID, body) + body
    assert len(handle) == len(handle_of(Statement("x")))

    with pytest.raises(UnknownTicketError):
        commands.plan_ticket_bytes(pack(messages.TicketStatementQuery(statement_handle=handle)))


def handle_of(plan: Plan) -> bytes:
    """Return the handle in the ticket of *plan*."""
    wrapped = messages.AnyMessage.FromString(commands.ticket(plan, TICKET_ID))
    return bytes(messages.TicketStatementQuery.FromString(wrapped.value).statement_handle)


def test_flight_info_repeats_the_descriptor_and_names_one_endpoint() -> None:
    asked = descriptor(b"SELECT 1")

    info = flight.FlightInfo.deserialize(commands.flight_info(asked, b"", b"a ticket"))

    assert info.descriptor.command == b"SELECT 1"
    assert [endpoint.ticket.ticket for endpoint in info.endpoints] == [b"a ticket"]
    assert [endpoint.locations for endpoint in info.endpoints] == [[]]
    assert (info.total_records, info.total_bytes) == (-1, -1)


def test_do_put_binds_parameters() -> None:
    message = messages.CommandPreparedStatementQuery(prepared_statement_handle=b"h")

    assert commands.plan_put(put(message)) == b"h"
    result = messages.PutResult.FromString(commands.bind_result(b"h2"))
    bound = messages.DoPutPreparedStatementResult.FromString(result.app_metadata)
    assert bound.prepared_statement_handle == b"h2"


@each(
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


hostile = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda url, value: messages.AnyMessage(type_url=url, value=value).SerializeToString(),
        st.one_of(
            st.text(max_size=40),
            st.sampled_from(
                [
                    f"type.googleapis.com/{message.full_name}"
                    for file in ("flight.proto", "flight_sql.proto")
                    for message in messages._POOL.FindFileByName(file).message_types_by_name.values()
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
