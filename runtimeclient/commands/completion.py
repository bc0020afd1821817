"""`completion`: what a shell needs to complete command lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from runtimeclient.command import ClientCommand, Invocation

_SHELLS = ("bash", "zsh", "fish")


class CompletionCommand(ClientCommand):
    """Print a script that teaches a shell to complete the options of this program."""

    name = "completion"
    summary = "print the completion script of a shell"
    description = "Print a script that teaches a shell to complete commands and options."
    examples = (
        ("bash > ~/.local/share/bash-completion/completions/querykeep", "bash"),
        ("zsh > ~/.zfunc/_querykeep", "zsh, with ~/.zfunc in fpath"),
        ("fish > ~/.config/fish/completions/querykeep.fish", "fish"),
    )
    talks = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `completion`."""
        parser.add_argument("shell", choices=_SHELLS, help="the shell")

    def run(self, invocation: Invocation) -> None:
        """Print it."""
        import shtab  # noqa: PLC0415 (no other command needs it)

        from runtimeclient.main import whole_parser  # noqa: PLC0415 (it loads every command, this one too)

        parser = whole_parser(invocation.prog)
        for action in _actions(parser):
            if action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks for it
        output = invocation.console.output()
        output.write(shtab.complete(parser, shell=invocation.options.shell))
        output.flush()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 (there is no other way to ask)
        yield action
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)


COMMAND = CompletionCommand()
