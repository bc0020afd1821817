#!/usr/bin/env python3
"""The command line: the commands of the server, such as `serve` and `check`, and those of the client."""

import os
import sys

from runtimeclient import CLIENT_COMMANDS
from runtimeclient.argv import prepare_process

#: Commands that do not serve HTTP do not need Django's apps. With a handover they do not need Django at all.
COMMANDS_WITHOUT_APPS = frozenset({"serve", "runwatch", "runrefresh", "runengine", "runflight", "runtraces"})

#: Commands that run until they are stopped, unless `--once` is given.
SERVERS = COMMANDS_WITHOUT_APPS | {"runweb"}


def main() -> None:
    """Run one management command; exit with 130 if Ctrl-C interrupts it."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    command = "".join(sys.argv[1:2])
    if command not in CLIENT_COMMANDS:
        from system.early_signals import leave_no_core, take_signals  # noqa: PLC0415 (client commands do not need it)

        leave_no_core()
        if command in SERVERS and "--once" not in sys.argv:
            take_signals()
    prepare_process()
    from runtime_site.chosen_settings import OURS, VARIABLE, settings_fault  # noqa: PLC0415 (after keys are hidden)

    fault = settings_fault()
    if fault is not None:
        sys.exit(fault)
    if command in CLIENT_COMMANDS and os.environ[VARIABLE] == OURS and not any(map(_is_for_django, sys.argv)):
        # Django would take twice the CPU of the client.
        from runtimeclient.main import run  # noqa: PLC0415 (a server does not need it)

        sys.exit(run(os.path.basename(sys.argv[0]), sys.argv[1:]))  # noqa: PTH119 (as Django)
    if command in SERVERS:
        from supervisor import part_process  # noqa: PLC0415 (client commands do not need it)
        from system.teardown import skip_teardown  # noqa: PLC0415 (as above)

        if part_process.receive():
            skip_teardown()
            from runtime_site.uncaught import begin_logging, begin_with_apps  # noqa: PLC0415 (with the settings)

            begin_logging() if command in COMMANDS_WITHOUT_APPS else begin_with_apps()
            part_process.serve_received(command.removeprefix("run"))
            return

    if "--version" in sys.argv[1:3]:
        from supervisor.version import version  # noqa: PLC0415 (other commands do not need it)

        sys.stdout.write(f"querykeep {version()}\n")  # Django would print its own version
        return
    from runtime_site.management.command_line import CommandLine, run_without_apps  # noqa: PLC0415 (with the settings)

    if command in COMMANDS_WITHOUT_APPS:
        run_without_apps(sys.argv)
    else:
        CommandLine(sys.argv).execute()


def _is_for_django(argument: str) -> bool:
    """Return whether an option names the settings, whose apps may replace commands."""
    return argument.startswith(("--settings", "--pythonpath"))


if __name__ == "__main__":
    main()
