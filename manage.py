#!/usr/bin/env python3
"""The command line: `serve`, `check` and the rest of the server side, and the client commands."""

import os
import sys

from runtimeclient import CLIENT_COMMANDS
from runtimeclient.argv import prepare_process

#: What answers no HTTP has no use for Django's apps.
COMMANDS_WITHOUT_APPS = frozenset({"serve", "runrefresh", "runengine", "runflight"})

#: What runs until it is told to stop, but with `--once`.
SERVERS = COMMANDS_WITHOUT_APPS | {"runweb"}


def main() -> None:
    """Run one management command."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in SERVERS and "--once" not in arguments:
        from runtime_site.early_signals import take_signals  # noqa: PLC0415 (a client command needs none of it)

        take_signals()
    prepare_process()
    if arguments[:1] == ["help"] and len(arguments) == 2 and arguments[1] in CLIENT_COMMANDS:
        arguments = [arguments[1], "--help"]
    # A client command needs no YAML, no engine and no web framework.
    if arguments and arguments[0] in CLIENT_COMMANDS:
        from runtimeclient.main import run  # noqa: PLC0415 (a server needs none of it)

        sys.exit(run("manage.py", arguments))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "runtime_site.settings")
    if "RUNTIME_HANDOVER_FD" in os.environ:
        from runtime_site import parts  # noqa: PLC0415 (a client command needs none of it)

        parts.receive()
    if arguments and arguments[0] in COMMANDS_WITHOUT_APPS:
        from runtime_site import parts  # noqa: PLC0415 (as above)

        parts.run_without_apps(sys.argv)
        return

    from django.core.management import execute_from_command_line  # noqa: PLC0415 (after the settings are chosen)

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
