"""The Django project: settings, URLs, WSGI, startup and the server commands."""

import queryengine  # noqa: F401 - before anything imports DuckDB: see there
