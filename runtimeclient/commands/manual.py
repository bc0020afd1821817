"""`manual`: print the manual page, written in roff (man(7)) from the parser of the command line."""

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import Any

from runtimeclient import SERVER_COMMANDS
from runtimeclient.commands.base import Command, Invocation, program_parser
from runtimeclient.prompt.dot_commands import DOT_COMMANDS

_ENVIRONMENT = (
    ("RUNTIME_API_KEY", "the API key"),
    ("RUNTIME_HTTP_ENDPOINT", "the URL of the runtime"),
    ("QUERYKEEP_PROFILE", "the profile to use"),
    ("NO_COLOR", "no colours, whatever its value"),
    ("EDITOR, VISUAL", "the editor for statements at the prompt"),
    ("PAGER", "the pager for results that do not fit on the terminal; cat or empty disables it"),
    ("SSL_CERT_FILE", "PEM file with the root certificates to trust"),
    ("SSL_CERT_DIR", "directories with the root certificates to trust, separated by colons"),
)


def _call(invocation: Invocation) -> None:
    invocation.console.write_line("\n".join(_page(program_parser(invocation.prog))))


def _page(parser: argparse.ArgumentParser) -> Iterator[str]:
    name = parser.prog
    # argparse has no public way to list actions; these internals have not changed since Python 3.2.
    actions: list[Any] = parser._actions  # noqa: SLF001
    commands = next(action for action in actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    yield f'.TH {_text(name.upper())} 1 "" "" "User Commands"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text((parser.description or '').partition(':')[0].lower())}"
    yield from (".SH SYNOPSIS", f".B {_text(name)}", r".I COMMAND", r"[\fIOPTIONS\fR]")
    yield from (".SH DESCRIPTION", _text(parser.description or ""))
    for action in commands._choices_actions:  # noqa: SLF001
        yield from _command(commands.choices[action.dest])
    yield ".SH COMMANDS OF THE SERVER"
    yield _text("With the extra server there are also:")
    for server_command, summary in SERVER_COMMANDS.items():
        yield from (".TP", f".B {_text(server_command)}", _text(summary))
    yield ".SH AT THE PROMPT"
    for command_name, command in DOT_COMMANDS.items():
        names = (f".{command_name} {command.usage}".rstrip(), *command.aliases)
        yield from (".TP", f".B {_text(', '.join(names))}", _text(command.summary))
    yield ".SH ENVIRONMENT"
    for variable, meaning in _ENVIRONMENT:
        yield from (".TP", f".B {variable}", _text(meaning))
    yield from (".SH FILES", ".TP", r".I $XDG_CONFIG_HOME/querykeep/config.toml", "the profiles")
    yield from (".TP", r".I $XDG_STATE_HOME/querykeep/history", "the history of the prompt")


def _command(parser: Any) -> Iterator[str]:
    yield f'.SH "{_text(parser.prog.upper())}"'
    yield from (".PP", _text(parser.description))
    for group in parser._action_groups:  # noqa: SLF001
        shown = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]  # noqa: SLF001
        if shown:
            yield f'.SS "{_text(group.title)}"'
            yield from _options(shown)
    # Print the examples and exit statuses verbatim.
    yield from ('.SS "examples and exit status"', ".nf", *map(_text, parser.epilog.splitlines()), ".fi")


def _options(actions: Iterable[argparse.Action]) -> Iterator[str]:
    formatter = argparse.HelpFormatter("")
    for action in actions:
        yield ".TP"
        invocation = formatter._format_action_invocation(action)  # noqa: SLF001
        yield re.sub(r"(?<![\w{,-])(-{1,2}[\w-]+)", r"\\fB\1\\fR", invocation).replace("-", r"\-")
        yield _text(formatter._expand_help(action))  # noqa: SLF001


def _text(text: str) -> str:
    """Escape backslashes, hyphens, and a dot or quote at the start of a line."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


_MANUAL = Command(
    name="manual",
    summary="print the manual page",
    description="Print the page for man, with all commands and options.",
    examples=(
        ("| man -l -", "read it"),
        ("> ~/.local/share/man/man1/querykeep.1", "install it for man querykeep"),
    ),
    call=_call,
    has_connection=False,
)

COMMANDS = {"manual": _MANUAL}
