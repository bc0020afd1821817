"""The client of a running runtime: HTTP client, output, REPL and management commands. It knows only the wire."""

#: Management commands that talk to a running runtime.
CLIENT_COMMANDS = ("sql", "status", "refresh", "datasets")
