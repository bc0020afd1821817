"""`manage.py healthcheck`: check whether a configured runtime responds, for process managers such as Docker."""

from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError, CommandParser

import runtimeconf.state
from runtime_site.management.base import add_config_option, use_config
from runtimeconf.errors import ConfigError

_TIMEOUT_S = 4.0


class Command(BaseCommand):
    """Request `/health`, which needs no key, with the address and TLS settings in the configuration file."""

    help = "Checks whether the runtime on this machine responds: exit code 0 if it does, else 1."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Send the request and print the response."""
        use_config(options["config"])
        try:
            config = runtimeconf.state.get_config()
        except ConfigError as exc:
            raise CommandError(str(exc)) from exc
        scheme = "https" if config.tls.enabled else "http"
        url = f"{scheme}://{config.http.bind.local}/health"
        try:
            # The certificate is for the names that callers use. The request and its response are not secret.
            answer = httpx.get(url, timeout=_TIMEOUT_S, trust_env=False, verify=False).raise_for_status()  # noqa: S501
        except httpx.HTTPError as exc:
            raise CommandError(f"The runtime does not respond to {url}: {exc}.") from exc
        self.stdout.write(answer.text.strip())
