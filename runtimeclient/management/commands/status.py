"""`manage.py status`: how the components of a runtime are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from runtimeclient.client import RuntimeClient
from runtimeclient.command import ClientCommand, add_list_format
from runtimeclient.errors import NotReadyError
from runtimeclient.formats import write_list
from runtimeclient.output import Output


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
        write_list(
            ("name", "endpoint", "status"), [asdict(component) for component in components], options["format"], output
        )
        if others := [f"{component.name} is {component.status}" for component in components if not component.is_fine]:
            raise NotReadyError(f"Not ready: {', '.join(others)}.")
