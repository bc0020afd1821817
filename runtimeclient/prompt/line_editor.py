"""The line editor of the prompt, on prompt_toolkit: several lines, colours, completion, history, search."""

import io

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, completion_is_selected, has_focus
from prompt_toolkit.history import History
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.styles import Style
from pygments.lexers.sql import PostgresLexer

from runtimeclient.output.console import Console
from runtimeclient.prompt.dot_commands import parse_input

PROMPT = "sql> "
CONTINUATION = "  -> "
# The terminal's own palette, which its user can read; Pygments' colours suit a white background only.
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
# Lines reserved below the prompt for the completion menu.
_MENU_LINES = 5


class LineEditor:
    """
    Reads complete inputs: statements with their semicolons, or commands.

    Enter inserts a line break while the input is incomplete, and submits it when complete. A paste arrives as a whole.
    """

    def __init__(self, console: Console, completer: Completer, history: History) -> None:
        # DuckDB's SQL is close to PostgreSQL's, and Pygments has no lexer for DuckDB.
        lexer = PygmentsLexer(PostgresLexer) if console.has_color else None
        terminal = console.stdout if isinstance(console.stdout, io.TextIOWrapper) else None
        # The text at the prompt, which stays the same while the search field has the focus.
        is_incomplete = Condition(lambda: not parse_input(self.typed)[1])
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=is_incomplete,
            prompt_continuation=lambda _width, _line, wraps: "" if wraps else CONTINUATION,
            lexer=lexer,
            completer=completer,
            complete_while_typing=False,
            enable_history_search=True,
            history=history,
            key_bindings=_key_bindings(is_incomplete & has_focus(DEFAULT_BUFFER)),
            style=_STYLE,
            color_depth=None if console.has_color else ColorDepth.DEPTH_1_BIT,
            reserve_space_for_menu=_MENU_LINES,
            input=create_input(console.stdin),
            output=create_output(terminal),
        )

    def read(self, text: str = "") -> str:
        """
        Read an input that starts as *text*.

        Raises:
            EOFError: Ctrl-D on an empty line, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C; `typed` has the text.
        """
        return self._session.prompt(default=text)

    def add_to_history(self, text: str) -> None:
        """Add a text to the history as if it had been typed."""
        self._session.history.append_string(text)

    @property
    def typed(self) -> str:
        """The text at the prompt when `read` returned or raised."""
        return self._session.default_buffer.text


def _key_bindings(is_incomplete: Filter) -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=is_incomplete)
    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def _break_line(event: KeyPressEvent) -> None:
        # No automatic indentation: in a terminal that pastes key by key, it would end up in literals.
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("enter", filter=completion_is_selected)
    def _take_completion(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings
