#!/usr/bin/env python3
"""The command line: `serve`, `check` and the rest of the server side, and the client commands."""

import os
import sys
from pathlib import Path

from runtimeclient import CLIENT_COMMANDS
from runtimeclient.argv import hide_api_keys


def main() -> None:
    """Run one management command."""
    if not hide_api_keys():
        sys.stderr.write(
            "Warning: other users of this machine can see the API key in the list of processes:"
            " use --api-key-file or RUNTIME_API_KEY.\n"
        )
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # Started with the stream closed.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (open to the end)
    # A client command needs no YAML, no engine and no web framework's set-up: its own small settings start fast.
    words = [word for word in sys.argv[1:3] if word != "help"]
    if words and words[0] in CLIENT_COMMANDS:
        os.environ["DJANGO_SETTINGS_MODULE"] = "runtimeclient.settings"
    else:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "runtime_site.settings")
        if "RUNTIME_HANDOVER_FD" in os.environ:
            from runtime_site import parts  # noqa: PLC0415 (a client command needs none of it)

            parts.receive()

    from django.core.management import execute_from_command_line  # noqa: PLC0415 (after the settings are chosen)

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
