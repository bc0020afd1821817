"""The line editor of the prompt, on prompt_toolkit: several lines, colours, completion, history, search."""

from __future__ import annotations

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, completion_is_selected, has_focus
from prompt_toolkit.history import History
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.styles import Style
from pygments.lexers.sql import PostgresLexer

from runtimeclient.console import Console
from runtimeclient.dot_commands import read_typed

PROMPT = "sql> "
CONTINUATION = "  -> "
# The terminal's own colours, which its user can read: those of Pygments are made for a white page.
_STYLE = Style.from_dict(
    {
        "pygments.keyword": "ansigreen bold",
        "pygments.name.builtin": "ansigreen",
        "pygments.literal.string": "ansiyellow",
        "pygments.literal.number": "ansimagenta",
        "pygments.comment": "ansibrightblack",
        "pygments.operator": "",
        "pygments.punctuation": "",
    }
)
# Lines kept free below the prompt for the menu of completions.
_MENU_LINES = 5


class LineEditor:
    """
    Asks for one text after the other: each is complete, statements with their semicolons or commands.

    Enter breaks the line while the text is not complete, and ends it when it is. A paste comes in as a whole.

    Args:
        console: Where the user sits.
        completer: What Tab offers.
        history: What the arrow keys and Ctrl-R find, and where each text goes.
        keyboard: Takes the place of the console's input.
        screen: Takes the place of the console's output.
    """

    def __init__(
        self,
        console: Console,
        completer: Completer,
        history: History,
        keyboard: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        # PostgreSQL's words are those of the engine; no lexer of DuckDB's own is in Pygments.
        lexer = PygmentsLexer(PostgresLexer) if console.has_color else None
        # The text at the prompt, whatever has the focus: it stays the same while the history is searched.
        goes_on = Condition(lambda: not read_typed(self.typed)[1])
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=goes_on,
            prompt_continuation=lambda _width, _line, wraps: "" if wraps else CONTINUATION,
            lexer=lexer,
            completer=completer,
            complete_while_typing=False,
            enable_history_search=True,
            history=history,
            key_bindings=_key_bindings(goes_on & has_focus(DEFAULT_BUFFER)),
            style=_STYLE,
            color_depth=None if console.has_color else ColorDepth.DEPTH_1_BIT,
            reserve_space_for_menu=_MENU_LINES,
            input=keyboard or create_input(console.stdin),
            output=screen or create_output(console.terminal),
        )

    def read(self, text: str = "") -> str:
        """
        Ask for a text; *text* stands there already.

        Raises:
            EOFError: Ctrl-D on an empty line, or the terminal has gone.
            KeyboardInterrupt: Ctrl-C; `typed` has what was there.
        """
        return self._session.prompt(default=text)

    def keep(self, text: str) -> None:
        """Put a text into the history, as if it had been typed."""
        self._session.history.append_string(text)

    @property
    def typed(self) -> str:
        """What stood at the prompt when `read` was left."""
        return self._session.default_buffer.text


def _key_bindings(goes_on: Filter) -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=goes_on)
    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def _break_line(event: KeyPressEvent) -> None:
        # As it was typed: an indentation of ours would end up in a literal of a terminal that pastes key by key.
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("enter", filter=completion_is_selected)
    def _take_completion(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings
