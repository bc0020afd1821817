"""`top`: show what a runtime does now, again and again."""

import argparse
from typing import TextIO

from runtimeclient.client import RuntimeClient
from runtimeclient.commands.base import Command, Invocation
from runtimeclient.profiles.connection import seconds

_INTERVAL_S = 2.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print one screen and exit; so does a pipe or a file")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=seconds,
        default=_INTERVAL_S,
        help=f"how often the runtime is asked; every {_INTERVAL_S:g} seconds by default",
    )


def _call(invocation: Invocation) -> None:
    with invocation.connect() as client:
        console, keys = invocation.console, invocation.console.stdin
        if invocation.options.once or keys is None or not console.is_interactive or console.is_dumb:
            _print_once(invocation, client)
        else:
            _show(invocation, client, keys)


def _print_once(invocation: Invocation, client: RuntimeClient) -> None:
    from runtimeclient.dashboard.screen import View, render  # noqa: PLC0415 (slow to import)
    from runtimeclient.dashboard.snapshot import take  # noqa: PLC0415 (as above)

    console = invocation.console
    view = View(url=client.endpoint.url, snapshot=take(client))
    console.write_line(render(view, console.size()[0], None, has_color=console.has_color))


def _show(invocation: Invocation, client: RuntimeClient, keys: TextIO) -> None:
    from runtimeclient.dashboard.live import show  # noqa: PLC0415 (as above)
    from runtimeclient.dashboard.terminal import FullScreen  # noqa: PLC0415 (as above)

    console = invocation.console
    show(client, console, FullScreen(keys, console.stdout), invocation.options.interval)


COMMAND = Command(
    name="top",
    summary="show what runs, the workers, and the datasets, live",
    description=(
        "Show a screen of what a runtime does: its components, the statements of the same\n"
        "key that run or wait, those that took longest, and the datasets. Arrow keys choose\n"
        "a statement, c cancels it, q leaves. In a pipe, print one screen. Statements that have\n"
        "ended have their text if the YAML has runtime.history: {sql: true}; else a digest."
    ),
    examples=(
        ("", "the screen, asked for every 2 seconds"),
        ("--once", "one screen"),
        ("--interval 10", "fewer requests, for a key with requests_per_minute"),
    ),
    add_arguments=_add_arguments,
    call=_call,
)
