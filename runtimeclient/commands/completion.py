"""`completion`: print a shell completion script."""

import argparse
from collections.abc import Iterator

from runtimeclient import SERVER_COMMANDS
from runtimeclient.commands.base import Command, Invocation, load_command, program_parser


def _completion(invocation: Invocation) -> None:
    import shtab  # noqa: PLC0415 (slow to import)

    parser = program_parser(invocation.prog)
    for action in parser._actions:  # noqa: SLF001 (argparse has no public way)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, command in action.choices.items():
                load_command(name).configure(command, invocation.prog)
            for name, summary in SERVER_COMMANDS.items():
                server_command = action.add_parser(name, help=summary)
                server_command.add_argument("--config", metavar="FILE", help="the configuration file")
    for action in _actions(parser):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks for it
    invocation.console.write_line(shtab.complete(parser, shell=invocation.options.shell).rstrip("\n"))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 (argparse has no public way)
        yield action
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)


_COMPLETION = Command(
    name="completion",
    description="Print a script that completes commands and options in a shell.",
    examples=(
        ("bash > ~/.local/share/bash-completion/completions/querykeep", "bash"),
        ("zsh > ~/.zfunc/_querykeep", "zsh, with ~/.zfunc in fpath"),
        ("fish > ~/.config/fish/completions/querykeep.fish", "fish"),
    ),
    add_arguments=lambda parser: parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell"),
    call=_completion,
    has_connection=False,
)

COMMANDS = {"completion": _COMPLETION}
