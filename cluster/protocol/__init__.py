"""
The wire format of Spark Connect, as protobuf messages.

grpcio-tools generates the descriptors of all messages; a test checks that they are current. In this directory::

    python -m grpc_tools.protoc -I. --descriptor_set_out=descriptors.binpb spark_connect.proto
"""
