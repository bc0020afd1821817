"""The HTTP server: gunicorn workers, connections, and what the server refuses before the application runs."""
