"""The HTTP server: gunicorn workers, connections, and the requests refused before the application runs."""

import os


def web_workers() -> int:
    """Return the number of processes that serve HTTP, one per core. The supervisor, without gunicorn, needs it too."""
    return len(os.sched_getaffinity(0))
