"""docs/client.md and the commands say the same."""

import re
from typing import Any

import pytest

from runtimeclient import COMMANDS, errors
from runtimeclient.commands.base import LIST_FORMATS, command_parser, load_command
from runtimeclient.main import INTERRUPTED_STATUS
from runtimeclient.output.formats import FORMATS
from runtimeclient.output.tables import SAMPLE_ROWS
from runtimeclient.output.terminal import TERMINAL_ROWS
from runtimeclient.profiles import FIELDS
from runtimeclient.prompt.dot_commands import DOT_COMMANDS
from tests.runtimeclient.conftest import ROOT

PAGE = (ROOT / "docs" / "client.md").read_text()


def options(command: str) -> set[str]:
    actions: list[Any] = command_parser(load_command(command), "querykeep")._actions
    return {name for action in actions for name in action.option_strings}


def sections() -> dict[str, str]:
    """Texts by heading; those of the commands with what is common to all."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_listed_and_every_option_documented_and_no_other(command: str) -> None:
    text = sections()["Options of every command"] + sections()[command]
    if load_command(command).has_connection:
        text += sections()["Connection"]

    documented = set(re.findall(r"`(--?[a-z-]*[a-z])\b", text))

    assert documented == options(command)
    assert f"| [`{command}`](#{command}) |" in PAGE


def test_every_field_of_a_profile_is_documented() -> None:
    table = sections()["Connection"].partition("### Profiles")[2]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(FIELDS)


def test_every_exit_status_is_documented_and_no_other() -> None:
    tree: list[type[errors.ClientError]] = [errors.ClientError]
    for error in tree:
        tree += error.__subclasses__()

    documented = set(map(int, re.findall(r"^\| (\d+) \|", sections()["Exit status"], re.MULTILINE)))

    assert documented == {0, INTERRUPTED_STATUS, *(error.exit_status for error in tree)}


def test_every_format_is_documented() -> None:
    text = sections()["sql"]

    assert set(re.findall(r"^\| `(\w+)` \| ", text.partition("### Formats")[2], re.MULTILINE)) == set(FORMATS)
    assert set(re.findall(r"`(\.\w+)`", text.partition("### Files")[2].partition("###")[0])) == {
        suffix for format_ in FORMATS.values() for suffix in format_.suffixes
    }
    for command in ("status", "datasets", "queries"):
        assert "| `table` (default), `json` or `csv`." in sections()[command]
    assert LIST_FORMATS == ("table", "json", "csv")
    assert f"first {SAMPLE_ROWS:,} rows" in PAGE
    assert f"Default {TERMINAL_ROWS:,} on a terminal" in PAGE


def test_every_command_of_the_prompt_is_documented_with_all_its_names() -> None:
    table = sections()["sql"].partition("### At a terminal")[2]

    rows = re.findall(r"^\| (`[.].+?) \|(?=[^|]*\|$)", table, re.MULTILINE)
    documented = [re.findall(r"`([^ `]+)[^`]*`", row) for row in rows]

    assert documented == [[f".{name}", *command.aliases] for name, command in DOT_COMMANDS.items()]


def test_every_error_is_in_the_tree_of_its_module() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ClientError)
    }

    assert set(re.findall(r"\b(\w+Error)\b", errors.__doc__ or "")) == names
