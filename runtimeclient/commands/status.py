"""`status`: how the components of a runtime are."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable
from dataclasses import asdict

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand, Invocation, add_list_format
from runtimeclient.connection import seconds
from runtimeclient.errors import ClientError, ConnectionFailedError, NotReadyError, RequestRefusedError
from runtimeclient.formats import write_list
from runtimeclient.output import Output
from runtimeclient.quantities import duration
from runtimeclient.resources import ComponentStatus
from runtimeclient.screen import one_line, visible

_POLL_S = 0.25


class StatusCommand(ClientCommand):
    """Show what each component of a runtime says about itself."""

    name = "status"
    summary = "show how the components of a runtime are"
    description = (
        "Show what each component of a runtime says. The exit status is 0 when all that\n"
        "are switched on are Ready, else 1. With --wait, wait for that and for the data\n"
        "to be loaded first."
    )
    examples = (
        ("", "the components as a table"),
        ("--format json --http-endpoint https://runtime.example:8090", "another runtime's, as JSON"),
        ("--wait 60", "wait up to a minute for a runtime that is starting"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `status`."""
        add_list_format(parser)
        parser.add_argument(
            "--wait",
            metavar="SECONDS",
            nargs="?",
            type=seconds,
            const=math.inf,
            help="wait until the runtime is ready, without SECONDS for as long as that takes",
        )

    def run(self, invocation: Invocation) -> None:
        """Ask and show."""
        with invocation.connect() as client:
            if invocation.options.wait is not None:
                _wait(client, invocation)
            components = client.status()
        rows = [
            {name: value for name, value in asdict(component).items() if value is not None} for component in components
        ]
        output = invocation.console.output()
        style = invocation.console.style(invocation.options.format)
        write_list(("name", "endpoint", "status"), rows, style, output)
        if style.format == "table":
            _write_workers(components, output)
        if problem := _problem(components):
            raise NotReadyError(problem)


def _wait(client: RuntimeClient, invocation: Invocation) -> None:
    """
    Wait until everything is ready.

    Raises:
        NotAuthorisedError, NotARuntimeError, RequestRefusedError: At once; waiting would not help.
        NotReadyError, ConnectionFailedError: What was still in the way when the time was over.
    """
    end = time.monotonic() + invocation.options.wait
    state = "no answer yet"
    with invocation.console.progress(lambda elapsed_s: f"{state}, waited {duration(elapsed_s)}"):
        while (obstacle := _obstacle(client)) is not None:
            if time.monotonic() >= end:
                raise obstacle
            state = one_line(str(obstacle)).rstrip(".")
            time.sleep(min(_POLL_S, max(end - time.monotonic(), 0)))


def _obstacle(client: RuntimeClient) -> ClientError | None:
    """Give what keeps the runtime from being ready."""
    try:
        if not client.is_ready():
            return NotReadyError("The runtime is not ready: its data is not all loaded, or its engine does not answer.")
        problem = _problem(client.status())
    except RequestRefusedError as exc:
        if exc.status != 503:
            raise
        return exc
    except ConnectionFailedError as exc:
        # A server of another kind will not become a runtime.
        if type(exc) is not ConnectionFailedError:
            raise
        return exc
    return NotReadyError(problem) if problem else None


def _problem(components: Iterable[ComponentStatus]) -> str:
    others = [f"{component.name} is {component.status}" for component in components if not component.is_fine]
    return f"Not ready: {', '.join(others)}." if others else ""


def _write_workers(components: Iterable[ComponentStatus], output: Output) -> None:
    for component in components:
        if component.workers_alive is not None:
            counts = f"{component.workers_alive} alive, {component.workers_killed or 0} killed since the start"
            output.write(f"{visible(component.name)} workers: {counts}\n")
    output.flush()


COMMAND = StatusCommand()
