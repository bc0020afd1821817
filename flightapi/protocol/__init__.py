"""
The wire format: messages of Arrow Flight and Flight SQL, and Arrow IPC streams as FlightData.

grpcio-tools generates the descriptors of all messages; a test checks that they are current. In this directory::

    python -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=descriptors.binpb \
        flight.proto flight_sql.proto google/protobuf/any.proto
"""
