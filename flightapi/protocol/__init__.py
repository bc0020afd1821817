"""The wire: messages of Arrow Flight and Flight SQL, and Arrow IPC streams as FlightData."""

#: The descriptors of all messages, written by `python -m flightapi.protocol.generate`; a test makes them anew and
#: compares.
DESCRIPTORS = "descriptors.binpb"
