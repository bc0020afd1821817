"""`querykeep console`: a web page over the HTTP API, served on this machine by the client."""
