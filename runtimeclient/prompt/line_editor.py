"""The line editor of the prompt, on prompt_toolkit, and its history, a file that only its owner can read."""

import io
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, completion_is_selected, has_focus
from prompt_toolkit.history import History
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.styles import Style
from pygments.lexers.sql import PostgresLexer

from runtimeclient.errors import OutputError
from runtimeclient.files import replace_file, xdg_directory
from runtimeclient.output.terminal import Console
from runtimeclient.prompt.dot_commands import parse_input

# If the file is larger than this, the next start drops the older half.
_MAX_FILE_BYTES = 1 << 20
# Input that mentions keys is never stored, whether or not it contains one.
_ABOUT_KEYS = re.compile(r"api[-_ ]?key|\bbearer\b", re.IGNORECASE)


def history_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the history. Raises UsageError if the home directory is unknown."""
    return xdg_directory(environ, "XDG_STATE_HOME", "~/.local/state") / "history"


class FileHistory(History):
    """
    A history in a file of mode 0600, with one JSON string per line, oldest first. Several prompts can append to it.

    The file and its directory are created. A text that contains one of the *secrets* is not stored.

    Raises:
        OutputError: The file cannot be used.
    """

    def __init__(self, path: Path, secrets: Iterable[str | None]) -> None:
        super().__init__()
        self._path = path
        self._secrets = tuple(filter(None, secrets))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # O_NOFOLLOW, because a symbolic link could lead to a file that others can read.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            with open(descriptor, "rb") as file:  # noqa: PTH123 (an open descriptor)
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise OutputError(f"The history {path} is not saved: it is not a regular file that you own.")
                os.fchmod(descriptor, 0o600)
                # Read only the end of a huge file. The first line read may then be incomplete.
                file.seek(max(found.st_size - 2 * _MAX_FILE_BYTES, 0))
                lines = file.read().splitlines()
            if found.st_size > _MAX_FILE_BYTES:
                lines = lines[len(lines) // 2 :]
                replace_file(path, b"".join(line + b"\n" for line in lines))
        except OSError as exc:
            raise OutputError(f"The history {path} is not saved: {exc.strerror}.") from exc
        self._found = [text for line in lines if (text := _text_of(line)) is not None]

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries that the file had at the start, newest first."""
        return reversed(self._found)

    def store_string(self, string: str) -> None:
        """Append a text, unless it may contain a key. A failed write is ignored."""
        if _ABOUT_KEYS.search(string) or any(secret in string for secret in self._secrets):
            return
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123 (an open descriptor)
                # Use ASCII so that lone surrogates can be stored, and one write so that the lines of two prompts do not
                # mix.
                file.write(json.dumps(string).encode() + b"\n")


def _text_of(line: bytes) -> str | None:
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


PROMPT = "sql> "
CONTINUATION = "  -> "
# Use the terminal's own palette, which is readable for its user. Pygments' colours suit only a white background.
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
        with create_app_session(output=PlainTextOutput(terminal or sys.stdout)) if console.is_dumb else nullcontext():
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
                # With an output, prompt_toolkit takes no account of a terminal that cannot move its cursor.
                output=None if console.is_dumb else create_output(terminal),
            )

    def read(self, text: str = "") -> str:
        """
        Read an input that starts as *text*.

        Raises:
            EOFError: The user pressed Ctrl-D on an empty line, or the terminal is gone.
            KeyboardInterrupt: The user pressed Ctrl-C. `typed` has the text.
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
        # Do not indent automatically. In a terminal that pastes key by key, the indentation would end up in literals.
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("enter", filter=completion_is_selected)
    def _take_completion(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    return bindings
