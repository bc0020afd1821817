"""Where the ids of requests and queries travel."""

from __future__ import annotations

#: Keys of the WSGI environ under which the ids travel; a server may set the first before the application runs.
REQUEST_ID = "runtime.request_id"
QUERY_ID = "runtime.query_id"
