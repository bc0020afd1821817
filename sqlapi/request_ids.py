"""The keys of the WSGI environ that hold the ids of request and query."""

from __future__ import annotations

#: A server may set this one before the application runs.
REQUEST_ID = "runtime.request_id"
QUERY_ID = "runtime.query_id"
