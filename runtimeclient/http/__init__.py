"""The HTTP API on the wire: endpoint, key, timeouts, results and resources."""
