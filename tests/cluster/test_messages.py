from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

from cluster.protocol import messages

PROTOCOL = Path(str(files("cluster.protocol")))


def test_the_descriptors_are_current(tmp_path: Path) -> None:
    made = tmp_path / "descriptors.binpb"

    assert protoc.main(["protoc", f"-I{PROTOCOL}", f"--descriptor_set_out={made}", "spark_connect.proto"]) == 0
    assert made.read_bytes() == (PROTOCOL / made.name).read_bytes(), "generate it again: see cluster/protocol"


def test_an_unknown_message_is_no_attribute() -> None:
    assert not hasattr(messages, "CommandOfTomorrow")
