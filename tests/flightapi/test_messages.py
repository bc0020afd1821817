from importlib.resources import files
from pathlib import Path

import pytest
from grpc_tools import protoc

from flightapi.errors import MalformedMessageError
from flightapi.protocol import messages
from tests.system.harness import run_program

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


PROTOCOL = Path(str(files("flightapi.protocol")))
SOURCES = ("flight.proto", "flight_sql.proto")


def test_the_descriptors_are_current(tmp_path: Path) -> None:
    well_known = Path(str(files("grpc_tools"))) / "_proto"
    made = tmp_path / "descriptors.binpb"
    options = [f"-I{PROTOCOL}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={made}"]

    assert protoc.main(["protoc", *options, *SOURCES, "google/protobuf/any.proto"]) == 0
    assert made.read_bytes() == (PROTOCOL / made.name).read_bytes(), "generate it again: see flightapi/protocol"


@pytest.mark.parametrize(
    "imports", [pytest.param((THEIRS, OURS), id="after flightsql-dbapi"), pytest.param((OURS, THEIRS), id="before it")]
)
def test_lives_beside_flightsql_dbapi(imports: tuple[str, str]) -> None:
    done = run_program("-c", BESIDE.format(imports="\n".join(imports)))

    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_message_is_no_attribute() -> None:
    assert not hasattr(messages, "CommandOfTomorrow")


def test_an_invalid_message_names_the_expected_type() -> None:
    with pytest.raises(MalformedMessageError, match=r"^The bytes are not a FlightInfo message\.$"):
        messages.parse(messages.FlightInfo, b"\xff")
