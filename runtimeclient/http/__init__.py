"""The HTTP API on the wire: endpoint, key, time-outs, answers and resources."""
