"""
Make the pictures of docs/client.md: what a terminal shows while the client talks to the runtime of the example.

Start that with `make run`, then run `.venv/bin/python -m docs.captures.make` in another terminal.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from html import escape
from itertools import groupby
from operator import methodcaller
from pathlib import Path

from tests.runtimeclient.terminal import ENTER, TAB, Terminal

ROOT = Path(__file__).parents[2]
CAPTURES = Path(__file__).parent
_COLUMNS, _LINES = 88, 26

# Of one character, and what is around all of them, in pixels.
_WIDTH, _HEIGHT, _MARGIN = 8.4, 19, 16
# A font that lacks these takes another for the whole text.
_BRAILLE = "\u2800"
_BACKGROUND, _FOREGROUND = "#1d2021", "#ebdbb2"
_COLORS = {
    "black": "#282828",
    "red": "#fb4934",
    "green": "#b8bb26",
    "brown": "#fabd2f",
    "blue": "#83a598",
    "magenta": "#d3869b",
    "cyan": "#8ec07c",
    "white": "#d5c4a1",
}


def svg(command: str, terminal: Terminal, columns: int = _COLUMNS, lines: int = _LINES) -> str:
    """Draw a screen, below the line that started the command."""
    rows = [[(character, {"bold": True}) for character in f"$ {command}"], *_rows(terminal, columns, lines)]
    while rows and not any(character.strip() for character, _ in rows[-1]):
        rows.pop()
    width, height = columns * _WIDTH + 2 * _MARGIN, len(rows) * _HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
        f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>',
        f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" fill="{_FOREGROUND}">',
        *(part for number, row in enumerate(rows) for part in _runs(number, row)),
        "</g></svg>\n",
    ]
    return "\n".join(parts)


def _rows(terminal: Terminal, columns: int, lines: int) -> list[list[tuple[str, dict[str, object]]]]:
    return [
        [
            (cell.data, {"fg": cell.fg, "bg": cell.bg, "bold": cell.bold, "reverse": cell.reverse})
            for cell in (terminal.cell(line, column) for column in range(columns))
        ]
        for line in range(lines)
    ]


def _runs(number: int, row: list[tuple[str, dict[str, object]]]) -> Iterator[str]:
    column = 0
    y = _MARGIN + number * _HEIGHT
    for (style, _), cells in groupby(row, key=lambda cell: (cell[1], cell[0] >= _BRAILLE)):
        text = "".join(character for character, _ in cells)
        x, width = _MARGIN + column * _WIDTH, len(text) * _WIDTH
        column += len(text)
        fill, ground = _color(style.get("fg"), _FOREGROUND), _color(style.get("bg"), "")
        if style.get("reverse"):
            fill, ground = ground or _BACKGROUND, fill
        if ground:
            yield f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{_HEIGHT}" fill="{ground}"/>'
        if text.strip():
            weight = ' font-weight="bold"' if style.get("bold") else ""
            yield (
                f'<text x="{x:g}" y="{y + 14}" fill="{fill}"{weight} textLength="{width:g}" xml:space="preserve">'
                f"{escape(text)}</text>"
            )


def _color(name: object, default: str) -> str:
    if name in {None, "default"}:
        return default
    return _COLORS.get(str(name), f"#{name}")


def capture(name: str, command: str, arguments: tuple[str, ...], show: Callable[[Terminal], object]) -> None:
    """Start a command at a terminal, bring it to where *show* says, and write the picture."""
    with (
        tempfile.TemporaryDirectory() as state,
        Terminal(*arguments, environ=_environ(state), columns=_COLUMNS, lines=_LINES) as terminal,
    ):
        show(terminal)
        (CAPTURES / f"{name}.svg").write_text(svg(command, terminal))


def _environ(state: str) -> Mapping[str, str]:
    key = ROOT / "examples" / "secrets" / "api_key"
    return {
        "RUNTIME_API_KEY": os.environ.get("RUNTIME_API_KEY") or key.read_text().strip(),
        "RUNTIME_HTTP_ENDPOINT": os.environ.get("RUNTIME_HTTP_ENDPOINT", "http://127.0.0.1:8090"),
        "XDG_STATE_HOME": state,
    }


def _complete(terminal: Terminal) -> None:
    terminal.prompts()
    terminal.send(f"SELECT carrier, round(avg(arr_delay), 1) AS delay{ENTER}FROM flights AS f{ENTER}WHERE f.dep")
    while "dep_delay" not in terminal.soon(TAB):
        pass


def main() -> None:
    """Make all of them."""
    best = (
        "SELECT carrier, name, count(*) AS flights FROM flights JOIN airlines USING (carrier)"
        " GROUP BY ALL ORDER BY 3 DESC LIMIT 8"
    )
    days = "SELECT date_trunc('week', time_hour) AS week, avg(dep_delay) AS delay FROM flights GROUP BY 1 ORDER BY 1"
    wrong = "SELECT carrier, count(*)\nFROM flights\nWHERE dest = 'LAX'\nGRUOP BY carrier"
    much = ("--sql", "SELECT flights.* FROM flights, range(60)")  # Long enough to be seen.
    refresh = ("refresh", "flights", "--wait")
    for name, command, arguments, shown in (
        ("table", "querykeep sql -f carriers.sql", ("sql", best), "(8 rows)"),
        ("chart", "querykeep sql --chart line -f delays.sql", ("sql", "--chart", "line", days), "(53 rows)"),
        ("error", "querykeep sql -f late.sql", ("sql", wrong), "4 | GRUOP"),
        ("refresh", "querykeep refresh flights --wait", (*refresh, *much), "flights: running for 1."),
    ):
        capture(name, command, arguments, methodcaller("shows", shown))
    with Terminal(*refresh, environ=_environ("/dev/null")) as terminal:
        terminal.leaves()
    capture("completion", "querykeep sql", ("sql",), _complete)


if __name__ == "__main__":
    main()
