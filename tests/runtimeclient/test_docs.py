"""docs/client.md and the commands say the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management import load_command_class

from runtimeclient import CLIENT_COMMANDS, errors
from runtimeclient.command import INTERRUPTED_STATUS
from runtimeclient.formats import LIST_FORMATS, MEDIA_TYPES
from runtimeclient.tables import SAMPLE_ROWS
from tests.runtimeclient.conftest import ROOT

PAGE = (ROOT / "docs" / "client.md").read_text()


def options(command: str) -> set[str]:
    parser = load_command_class("runtimeclient", command).create_parser("manage.py", command)
    actions: list[Any] = parser._actions
    return {name for action in actions if action.help != "==SUPPRESS==" for name in action.option_strings}


def sections() -> dict[str, str]:
    """Texts by heading; those of the commands with what is common to all."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("command", CLIENT_COMMANDS)
def test_every_option_is_documented_and_no_other(command: str) -> None:
    text = sections()["Options of every command"] + sections()[command]

    documented = set(re.findall(r"`(--?[a-z-]*[a-z])\b", text))

    assert documented == options(command)


def test_every_exit_status_is_documented_and_no_other() -> None:
    tree: list[type[errors.ClientError]] = [errors.ClientError]
    for error in tree:
        tree += error.__subclasses__()

    documented = set(map(int, re.findall(r"^\| (\d+) \|", sections()["Exit status"], re.MULTILINE)))

    assert documented == {0, INTERRUPTED_STATUS, *(error.exit_status for error in tree)}


def test_every_format_is_documented() -> None:
    assert set(re.findall(r"^\| `(\w+)` \| ", sections()["sql"].partition("### Formats")[2], re.MULTILINE)) == set(
        MEDIA_TYPES
    )
    for command in ("status", "datasets"):
        assert "`--format` takes `table` (default), `json` or `csv`" in sections()[command].replace("\n", " ")
    assert LIST_FORMATS == ("table", "json", "csv")
    assert f"first {SAMPLE_ROWS:,} rows" in PAGE


def test_every_error_is_in_the_tree_of_its_module() -> None:
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}

    assert set(re.findall(r"\b(\w+Error)\b", errors.__doc__ or "")) == names
