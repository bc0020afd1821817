"""`manual`: the page for `man`."""

from __future__ import annotations

import argparse

from runtimeclient.command import ClientCommand, Invocation


class ManualCommand(ClientCommand):
    """Print the manual page."""

    name = "manual"
    summary = "print the manual page"
    description = "Print the page for man, with all commands and options."
    examples = (
        ("| man -l -", "read it"),
        ("> ~/.local/share/man/man1/querykeep.1", "have it for man querykeep"),
    )
    talks = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing."""

    def run(self, invocation: Invocation) -> None:
        """Print it."""
        from runtimeclient.main import whole_parser  # noqa: PLC0415 (it loads every command, this one too)
        from runtimeclient.manual_page import manual_page  # noqa: PLC0415

        output = invocation.console.output()
        output.write(manual_page(whole_parser(invocation.prog)))
        output.flush()


COMMAND = ManualCommand()
