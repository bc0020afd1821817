"""The Django project, wiring only: settings, URLs, WSGI, start-up and servers."""
