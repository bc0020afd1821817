"""`status` and `top`: show the state of a runtime, once or live."""

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from runtimeclient.commands.base import Command, Invocation, add_list_format
from runtimeclient.connection import seconds
from runtimeclient.errors import ClientError, ConnectionFailedError, RequestRefusedError
from runtimeclient.http.resources import ComponentStatus, DatasetStatus
from runtimeclient.output.formats import write_list
from runtimeclient.output.text import duration, one_line, plural, visible

if TYPE_CHECKING:
    from runtimeclient.client import RuntimeClient

_POLL_S = 0.25
_FINE = {"Ready", "Disabled"}
# The maximum number of dataset names in an error message.
_MAX_NAMES = 5
# The default interval of `top` in seconds.
_INTERVAL_S = 2.0


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    add_list_format(parser)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=seconds,
        const=math.inf,
        help="wait until the runtime is ready, at most SECONDS if given",
    )


def _status(invocation: Invocation) -> None:
    console = invocation.console
    datasets: Sequence[DatasetStatus] = ()
    refusal: ClientError | None = None
    with invocation.connect() as client:
        if invocation.options.wait is not None:
            _wait(client, invocation)
        components = client.status()
        try:
            datasets = client.datasets()
        except RequestRefusedError as exc:  # Show the components anyway.
            refusal = exc
    rows = [{name: value for name, value in asdict(component).items() if value is not None} for component in components]
    style = console.style(invocation.options.format)
    write_list(("name", "endpoint", "status"), rows, style, console.stdout)
    in_error = [dataset.name for dataset in datasets if dataset.error is not None or dataset.status == "Error"]
    if style.format == "table":
        for line in _details(components):
            console.write_line(line)
        if datasets:
            console.write_line(f"datasets: {len(datasets)}, {len(in_error)} in error")
    problems = [str(problem)] if (problem := _problem(components)) else []
    if in_error:
        verb = "is" if len(in_error) == 1 else "are"
        problems.append(
            f"{len(in_error)} of {plural(len(datasets), 'dataset')} {verb} in error ({_shortened(in_error)}):"
            f" {invocation.prog} datasets shows why."
        )
    if problems:
        raise ClientError(" ".join(problems))
    if refusal is not None:
        raise refusal


def _details(components: Iterable[ComponentStatus]) -> Iterator[str]:
    for component in components:
        name = visible(component.name)
        if component.workers_alive is not None:
            counts = f"{component.workers_alive} alive, {component.workers_killed or 0} killed since the start"
            yield f"{name} workers: {counts}"
        if component.waiting_for:
            yield f"{name} waits for: {visible(', '.join(component.waiting_for))}"


def _shortened(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _wait(client: "RuntimeClient", invocation: Invocation) -> None:
    """
    Wait until everything is ready.

    Raises:
        NotAuthorisedError, NotARuntimeError, RequestRefusedError: Immediately, because waiting would not help.
        ClientError: The last obstacle when the time is up.
    """
    end = time.monotonic() + invocation.options.wait
    state = "no response yet"
    with invocation.console.progress(lambda elapsed_s: f"{state}, waited {duration(elapsed_s)}"):
        while (obstacle := _obstacle(client)) is not None:
            if time.monotonic() >= end:
                raise obstacle
            state = one_line(str(obstacle)).rstrip(".")
            time.sleep(min(_POLL_S, max(end - time.monotonic(), 0)))


def _obstacle(client: "RuntimeClient") -> ClientError | None:
    """Return the reason why the runtime is not ready, or None."""
    try:
        if not client.is_ready():
            return ClientError("The runtime is not ready: data is still loading, or the engine does not respond.")
        problem = _problem(client.status())
    except RequestRefusedError as exc:
        if exc.status != 503:
            raise
        return exc
    except ConnectionFailedError as exc:
        # A server that is not a runtime will not become one.
        if type(exc) is not ConnectionFailedError:
            raise
        return exc
    return problem


def _problem(components: Iterable[ComponentStatus]) -> ClientError | None:
    others = [f"{component.name} is {component.status}" for component in components if component.status not in _FINE]
    return ClientError(f"Not ready: {', '.join(others)}.") if others else None


_STATUS = Command(
    name="status",
    description=(
        "Show the status of each component of a runtime, and how many datasets are in error.\n"
        "The exit status is 0 if all enabled components are Ready and no dataset is in error,\n"
        "else 1. With --wait, first wait until the components are and the data is loaded."
    ),
    examples=(
        ("", "the components as a table"),
        ("--format json --http-endpoint https://runtime.example:8090", "those of another runtime, as JSON"),
        ("--wait 60", "wait up to a minute for a runtime to start"),
    ),
    add_arguments=_add_status_arguments,
    call=_status,
)


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print one screen and exit; so does a pipe or a file")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=seconds,
        default=_INTERVAL_S,
        help=f"how often the runtime is asked; every {_INTERVAL_S:g} seconds by default",
    )


def _top(invocation: Invocation) -> None:
    from runtimeclient.dashboard import interactive  # noqa: PLC0415 (slow to import)

    console, options = invocation.console, invocation.options
    with invocation.connect() as client:
        if options.once or not console.is_interactive or console.is_dumb:
            console.write_line(interactive.one_screen(client, console))
        else:
            interactive.show(client, console, options.interval)


_TOP = Command(
    name="top",
    description=(
        "Show a screen of what a runtime does: its components, the statements of the same\n"
        "key that run or wait, those that took longest, and the datasets. Arrow keys choose\n"
        "a statement, c cancels it, q leaves. In a pipe, print one screen. Statements that have\n"
        "ended have their text if the configuration has runtime.history: {sql: true}; else a digest."
    ),
    examples=(
        ("", "the screen, asked for every 2 seconds"),
        ("--once", "one screen"),
        ("--interval 10", "fewer requests, for a key with requests_per_minute"),
    ),
    add_arguments=_add_top_arguments,
    call=_top,
)

COMMANDS = {"status": _STATUS, "top": _TOP}
