"""The live screen: draws what has changed, and obeys the keys."""

from contextlib import suppress
from dataclasses import dataclass

from runtimeclient.client import RuntimeClient
from runtimeclient.dashboard.screen import HELP, View, render
from runtimeclient.dashboard.snapshot import Poller
from runtimeclient.dashboard.terminal import DOWN, UP, FullScreen
from runtimeclient.output.console import Console

#: Seconds between looks for a new snapshot and at the size of the terminal.
_LOOK_S = 0.1


@dataclass
class Dialogue:
    """What the keys have led to: the statement `chosen`, the one it `asks` about before cancelling it, or the end."""

    chosen: str = ""
    asks: str = ""
    notice: str = ""
    is_over: bool = False

    def follow(self, ids: list[str]) -> None:
        """Go on with the statements *ids*."""
        if self.chosen not in ids:
            self.chosen = ids[0] if ids else ""
        if self.asks and self.asks not in ids:
            self.asks, self.notice = "", "The statement has ended."

    def press(self, key: str, ids: list[str]) -> str:
        """Take a key; return the statement to cancel, or nothing."""
        asked, self.asks, self.notice = self.asks, "", ""
        if asked:
            return asked if key == "y" else ""
        if key == "q":
            self.is_over = True
        elif key == "c":
            self.asks = self.chosen
        elif key in {UP, DOWN} and self.chosen:
            self.chosen = ids[(ids.index(self.chosen) + (1 if key == DOWN else -1)) % len(ids)]
        return ""

    @property
    def message(self) -> str:
        """The line for the user."""
        return f"Cancel statement {self.asks}? y or n" if self.asks else self.notice or HELP


def show(client: RuntimeClient, console: Console, screen: FullScreen, interval_s: float) -> None:
    """
    Show the runtime of *client* until the user leaves.

    Raises:
        NotAuthorisedError: The runtime requires a key, or a different one.
    """
    poller = Poller(client, interval_s)
    try:
        with screen.shown(), suppress(EOFError):
            _draw_and_obey(poller, client.endpoint.url, console, screen)
    finally:
        poller.stop()
    if poller.error is not None:
        raise poller.error


def _draw_and_obey(poller: Poller, url: str, console: Console, screen: FullScreen) -> None:
    dialogue, drawn, size = Dialogue(), None, (0, 0)
    while poller.error is None and not dialogue.is_over:
        snapshot = poller.latest
        ids = [query.id for query in snapshot.queries] if snapshot else []
        dialogue.follow(ids)
        dialogue.notice, poller.notice = poller.notice or dialogue.notice, ""
        view = View(url=url, snapshot=snapshot, chosen=dialogue.chosen, message=dialogue.message)
        if view != drawn or console.size() != size or screen.was_stopped:
            screen.was_stopped, drawn, size = False, view, console.size()
            screen.draw(render(view, *size, has_color=console.has_color))
        key = screen.key(_LOOK_S)
        if key is not None and (cancelled := dialogue.press(key, ids)):
            poller.cancel(cancelled)
