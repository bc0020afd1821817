"""
The messages of Spark Connect as protobuf classes.

The classes are created at first use. They are in a separate descriptor pool because pyspark registers messages with the
same names in protobuf's default pool, where names must be unique.
"""

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "spark.connect.SparkConnectService"

_DESCRIPTORS = files(__package__).joinpath("descriptors.binpb").read_bytes()
_POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS).file:
    _POOL.AddSerializedFile(_file.SerializeToString())


def __getattr__(name: str) -> Any:
    """Return the class of the message *name*, such as `ExecutePlanRequest`, and cache it here."""
    try:
        descriptor = _POOL.FindMessageTypeByName(f"spark.connect.{name}")
    except KeyError:
        raise AttributeError(f"There is no message {name!r}.") from None
    kind = globals()[name] = message_factory.GetMessageClass(descriptor)
    return kind
