"""`console`: a local web page for working with a runtime."""

import argparse
import os
import select
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from runtimeclient.commands.base import Command, Invocation, whole_number
from runtimeclient.distribution import version
from runtimeclient.errors import UsageError
from runtimeclient.files import removing
from runtimeclient.output.terminal import Console
from runtimeclient.profiles import PROFILE_VARIABLE

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient
    from runtimeclient.console.server import ConsoleServer

_IDLE_S = 3600.0
_LOOK_EVERY_S = 1.0


def _add_console_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "query", metavar="QUERY", nargs="?", help="a SQL statement to put into the editor, but not to run"
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=whole_number(0, 65535),
        default=0,
        help="port on 127.0.0.1 (default: any free port)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the link, but do not open a browser")


def _console(invocation: Invocation) -> None:
    from runtimeclient.console.assets import load  # noqa: PLC0415 (slow to import)
    from runtimeclient.console.server import ConsoleServer  # noqa: PLC0415 (slow to import)

    options, console = invocation.options, invocation.console
    fragment = f"&sql={quote(options.query, safe='')}" if options.query else ""
    with invocation.connect() as client:
        with _without_key(invocation):
            assets = load(console.message)
        try:
            server = ConsoleServer(client, assets, _about(client, options, invocation.environ), options.port)
        except OSError as exc:
            raise UsageError(f"Port {options.port} on 127.0.0.1 cannot be used: {exc.strerror}.") from exc
        with server, _serving(server):
            console.write_line(server.make_link(fragment))
            if options.no_browser or not _has_display(invocation.environ):
                _wait(server, console)
            else:
                directory = Path(tempfile.mkdtemp(prefix="querykeep-console-"))
                with removing(directory):
                    with _without_key(invocation):
                        _open_browser(server.make_link(fragment), directory)
                    _wait(server, console)


@contextmanager
def _without_key(invocation: Invocation) -> Iterator[None]:
    """Hide the variables that contain the key from the programs that start in the block: npm and the browser."""
    hidden = invocation.environ.keys() - invocation.console.child_environ().keys()
    removed = {name: os.environ.pop(name) for name in hidden & os.environ.keys()}
    try:
        yield
    finally:
        os.environ.update(removed)


def _about(client: "RuntimeClient", options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "endpoint": client.endpoint.url,
        "profile": options.profile or environ.get(PROFILE_VARIABLE) or None,
        "has_key": client.api_key is not None,
        "version": version(),
    }


@contextmanager
def _serving(server: "ConsoleServer") -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="console")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def _has_display(environ: Mapping[str, str]) -> bool:
    """Return True on a graphical desktop. A browser in the terminal would hide the link."""
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _open_browser(link: str, directory: Path) -> None:
    """Open *link* through a file in a private directory, because all users can read the browser's arguments."""
    page = directory / "console.html"
    page.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><title>Console</title>'
        f'<meta http-equiv="refresh" content="0; url={escape(link)}">',
        encoding="utf-8",
    )
    webbrowser.open(page.as_uri())


def _wait(server: "ConsoleServer", console: Console) -> None:
    """Wait for Ctrl-C or an hour without an open page. Print a new link each time Enter is pressed."""
    stdin = sys.stdin if console.is_interactive else None
    if stdin is not None and not console.is_quiet:
        console.message("Press Enter for a new link, or Ctrl-C to stop the console.")
    try:
        while server.sessions.idle_s() < _IDLE_S:
            if stdin is None:
                threading.Event().wait(_LOOK_EVERY_S)
            elif select.select([stdin], [], [], _LOOK_EVERY_S)[0]:
                if not os.read(stdin.fileno(), 4096):
                    stdin = None
                    continue
                console.write_line(server.make_link())
    except KeyboardInterrupt:
        return
    console.message("The console has stopped because no page was open for an hour.")


_CONSOLE = Command(
    name="console",
    description=(
        "Serve a web page on 127.0.0.1 for browsing datasets, running SQL and drawing charts.\n"
        "The key stays in this process. The printed link works once."
    ),
    examples=(
        ("", "open the console for the default runtime"),
        ("--profile production", "open the console for the runtime of a profile"),
        ("'FROM airlines' --port 8095", "open the console on a fixed port, with a statement in the editor"),
    ),
    add_arguments=_add_console_arguments,
    call=_console,
)

COMMANDS = {"console": _CONSOLE}
