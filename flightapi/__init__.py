"""The Arrow Flight SQL endpoint: protocol, commands (pure), metadata answers, and a thin server."""
