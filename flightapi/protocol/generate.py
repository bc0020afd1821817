"""
Generates `descriptors.binpb` from the .proto files: `python -m flightapi.protocol.generate`.

It needs grpcio-tools, which is a test dependency.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from flightapi.protocol import DESCRIPTORS

SOURCES = ("flight.proto", "flight_sql.proto", "google/protobuf/any.proto")


def generate(target: Path) -> None:
    """
    Let protoc write the descriptors of the messages and their imports to *target*.

    Raises:
        ImportError: grpcio-tools is not installed.
        ValueError: protoc rejected the sources, with the reason on standard error.
    """
    from grpc_tools import protoc  # noqa: PLC0415 - not installed where the runtime runs

    here = Path(str(files("flightapi.protocol")))
    well_known = Path(str(files("grpc_tools"))) / "_proto"
    arguments = [f"-I{here}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={target}", *SOURCES]
    if protoc.main(["protoc", *arguments]) != 0:
        raise ValueError("protoc rejected the sources.")


if __name__ == "__main__":
    generate(Path(str(files("flightapi.protocol"))) / DESCRIPTORS)
    sys.exit(0)
