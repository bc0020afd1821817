"""`querykeep console`: a local web page that uses the HTTP API."""
