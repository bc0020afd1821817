"""`manage.py status`: how the components of a runtime are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand, add_list_format
from runtimeclient.errors import NotReadyError
from runtimeclient.formats import write_list
from runtimeclient.output import Output
from runtimeclient.resources import ComponentStatus
from runtimeclient.screen import visible


class Command(ClientCommand):
    """Show what each component of a runtime says about itself."""

    help = (
        "Show what each component of a runtime says. The exit status is 0 when all that\n"
        "are switched on are Ready, else 1."
    )
    examples = (
        ("", "the components as a table"),
        ("--format json --http-endpoint https://runtime.example:8090", "another runtime's, as JSON"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add what is special to `status`."""
        add_list_format(parser)
        super().add_arguments(parser)

    def run(self, client: RuntimeClient, output: Output, options: dict[str, Any]) -> None:
        """Ask and show."""
        components = client.status()
        rows = [
            {name: value for name, value in asdict(component).items() if value is not None} for component in components
        ]
        write_list(("name", "endpoint", "status"), rows, options["format"], output)
        if options["format"] == "table":
            _write_workers(components, output)
        if others := [f"{component.name} is {component.status}" for component in components if not component.is_fine]:
            raise NotReadyError(f"Not ready: {', '.join(others)}.")


def _write_workers(components: Iterable[ComponentStatus], output: Output) -> None:
    for component in components:
        if component.workers_alive is not None:
            counts = f"{component.workers_alive} alive, {component.workers_killed or 0} killed since the start"
            output.write(f"{visible(component.name)} workers: {counts}\n")
    output.flush()
