"""The Arrow Flight SQL endpoint: protocol messages, commands, metadata and the gRPC server."""
