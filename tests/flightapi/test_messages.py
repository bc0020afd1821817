from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightapi.errors import MalformedMessageError
from flightapi.protocol import DESCRIPTORS, messages
from flightapi.protocol.generate import SOURCES, generate

BESIDE = """
from google.protobuf import any_pb2
{imports}
theirs = flightsql_pb2.CommandStatementQuery(query="SELECT 1")
wrapped = any_pb2.Any()
wrapped.Pack(theirs)
ours = messages.AnyMessage.FromString(wrapped.SerializeToString())
assert messages.CommandStatementQuery.FromString(ours.value).query == "SELECT 1"
back = any_pb2.Any.FromString(messages.pack(messages.CommandStatementQuery(query="SELECT 2")))
read = flightsql_pb2.CommandStatementQuery()
assert back.Unpack(read) and read.query == "SELECT 2"
"""
OURS = "from flightapi.protocol import messages"
THEIRS = "from flightsql import flightsql_pb2"


def test_the_descriptors_are_current(tmp_path: Path) -> None:
    generate(tmp_path / DESCRIPTORS)

    committed = files("flightapi.protocol").joinpath(DESCRIPTORS).read_bytes()
    assert committed == (tmp_path / DESCRIPTORS).read_bytes(), "run: python -m flightapi.protocol.generate"


def test_sources_that_protoc_rejects_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="protoc rejected"):
        generate(tmp_path / "absent" / DESCRIPTORS)


@pytest.mark.parametrize("source", [source for source in SOURCES if "/" not in source])
def test_the_sources_have_no_comments(source: str) -> None:
    text = files("flightapi.protocol").joinpath(source).read_text()

    assert "//" not in text
    assert "/*" not in text


@pytest.mark.parametrize(
    "imports", [pytest.param((THEIRS, OURS), id="after flightsql-dbapi"), pytest.param((OURS, THEIRS), id="before it")]
)
def test_lives_beside_flightsql_dbapi(imports: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE.format(imports="\n".join(imports))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_knows_each_rpc_of_the_format() -> None:
    streams = {method.name: (method.request_streams, method.response_streams) for method in messages.METHODS.values()}

    assert streams == {
        "Handshake": (True, True),
        "ListFlights": (False, True),
        "GetFlightInfo": (False, False),
        "PollFlightInfo": (False, False),
        "GetSchema": (False, False),
        "DoGet": (False, True),
        "DoPut": (True, True),
        "DoExchange": (True, True),
        "DoAction": (False, True),
        "ListActions": (False, True),
    }
    assert messages.METHODS["DoGet"].path == "/arrow.flight.protocol.FlightService/DoGet"
    assert messages.METHODS["DoGet"].request is messages.Ticket
    assert messages.METHODS["DoGet"].response is messages.FlightData


def test_the_body_of_flight_data_is_field_1000() -> None:
    assert messages.FlightData(data_body=b"x").SerializeToString() == b"\xc2\x3e\x01x"


@given(data=st.binary(max_size=200))
def test_bytes_become_a_message_or_a_clear_error(data: bytes) -> None:
    with suppress(MalformedMessageError):
        assert isinstance(messages.parse(messages.FlightInfo, data), messages.FlightInfo)


def test_an_invalid_message_names_the_expected_type() -> None:
    with pytest.raises(MalformedMessageError, match=r"^The bytes are not a FlightInfo message\.$"):
        messages.parse(messages.FlightInfo, b"\xff")
