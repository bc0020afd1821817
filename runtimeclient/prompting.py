"""Put the prompt together: editor, history, names."""

from __future__ import annotations

from dataclasses import replace

from prompt_toolkit.history import History, InMemoryHistory

from runtimeclient.asking import Asker
from runtimeclient.command import Invocation
from runtimeclient.completing import PromptCompleter
from runtimeclient.credentials import KEY_VARIABLE
from runtimeclient.errors import OutputError, UsageError
from runtimeclient.formats import FORMATS
from runtimeclient.history import FileHistory, history_path
from runtimeclient.line_editor import LineEditor
from runtimeclient.names import Names
from runtimeclient.repl import Repl
from runtimeclient.style import DOT_COMMANDS


def make_repl(asker: Asker, invocation: Invocation) -> Repl:
    """Make the prompt of an invocation. A history that cannot be kept is warned of, and lasts as long as the prompt."""
    names = Names(asker.client)
    asker.style = replace(asker.style, hints=DOT_COMMANDS)
    editor = LineEditor(invocation.console, PromptCompleter(names, FORMATS), _history(asker, invocation))
    return Repl(asker, editor, names)


def _history(asker: Asker, invocation: Invocation) -> History:
    if invocation.options.no_history:
        return InMemoryHistory()
    variable = invocation.environ.get(KEY_VARIABLE)

    def holds_key(text: str) -> bool:
        return asker.client.finds_key_in(text) or bool(variable and variable in text)

    try:
        return FileHistory(history_path(invocation.environ), holds_key)
    except (OutputError, UsageError) as exc:
        invocation.console.warn(str(exc))
        return InMemoryHistory()
