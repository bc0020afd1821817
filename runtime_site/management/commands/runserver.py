"""`manage.py runserver`: Django's development server, with the runtime's checks before a port is bound."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import runserver

from runtime_site import startup
from runtime_site.development_server import DevelopmentServer
from runtime_site.management.config_option import add_config_option, use_config
from system.lock import PREDECESSOR_WAIT_S
from system.ports import wait_until_bindable


class Command(runserver.Command):
    """Serve for development, on the address of the runtime YAML unless another is given."""

    help = "Starts the runtime on Django's development server (one process, reloads on code changes, no TLS)."
    server_cls = DevelopmentServer

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the configuration first: with the reloader a fault would otherwise only be printed, again and again."""
        use_config(options["config"])
        try:
            config = startup.checked_config()
        except startup.StartError as error:
            self.stderr.write(str(error))
            sys.exit(1)
        if config.tls.enabled:
            raise CommandError(
                "runtime.tls is enabled and runserver has no TLS: use `manage.py serve`, or turn tls off."
            )
        bind = config.http.bind
        self.default_port = str(bind.port)
        if ":" in bind.host:
            self.default_addr_ipv6 = bind.host
            options["use_ipv6"] = True
        else:
            self.default_addr = bind.host
        if not options["addrport"]:
            try:
                wait_until_bindable(bind, "runtime.http.bind", time.monotonic() + PREDECESSOR_WAIT_S)
            except OSError as error:
                raise CommandError(str(error)) from error
        if os.environ.get("RUN_MAIN") != "true":
            startup.log_warnings(config)
        if not options["use_reloader"]:
            # As the reloader does: SIGTERM is an orderly end, which stops the engine.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        super().handle(*args, **options)
