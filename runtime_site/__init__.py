"""The Django project, wiring only: settings, URLs, WSGI, start-up and servers."""

import queryengine  # noqa: F401 - before anything imports DuckDB: see there
