"""The Django project: settings, URLs, WSGI, start-up and the commands of the server."""

import queryengine  # noqa: F401 - before anything imports DuckDB: see there
