"""The HTTP API: views, parsing, content negotiation, errors."""
