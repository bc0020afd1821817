"""`cancel`: stop a statement that waits or runs."""

from __future__ import annotations

import argparse

from runtimeclient.command import ClientCommand, Invocation
from runtimeclient.screen import one_line


class CancelCommand(ClientCommand):
    """Stop a statement of this key."""

    name = "cancel"
    summary = "stop a statement"
    description = (
        "Stop a statement that came with the same key, whether it waits or runs. It has\n"
        "gone from `queries` within two seconds."
    )
    examples = (("9f2c41d07be84a53a1c6f0e2d9a48370", "stop the statement of that id"),)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `cancel`."""
        parser.add_argument("query_id", metavar="ID", help="the id of the statement, as `queries` shows it")

    def run(self, invocation: Invocation) -> None:
        """Ask for it."""
        with invocation.connect() as client:
            message = client.cancel_query(invocation.options.query_id)
        output = invocation.console.output()
        output.write(one_line(message) + "\n")
        output.flush()


COMMAND = CancelCommand()
