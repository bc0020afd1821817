"""The HTTP server: gunicorn workers, connections, and the requests refused before the application runs."""
