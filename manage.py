#!/usr/bin/env python3
"""The command line: `serve`, `check` and the rest of the server side, and the client commands."""

import os
import sys

from runtimeclient import CLIENT_COMMANDS


def main() -> None:
    """Run one management command."""
    # A client command needs no YAML, no engine and no web framework's set-up: its own small settings start fast.
    is_client = len(sys.argv) > 1 and sys.argv[1] in CLIENT_COMMANDS
    settings = "runtimeclient.settings" if is_client else "runtime_site.settings"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)

    from django.core.management import execute_from_command_line  # noqa: PLC0415 (after the settings are chosen)

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
