"""`manage.py runserver`: Django's development server with the runtime in its process."""

import os
import re
import signal
import sys
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import runserver
from django.core.servers import basehttp

import runtimeconf.state
from httpserver.truncation_guard import GuardedChunks
from runtime_site.management.base import add_config_option, use_config
from runtimeconf.errors import ConfigError
from runtimeconf.exposure import check_listener
from sqlapi.request_bodies import MAX_SKIPPED_BYTES, must_close
from supervisor import startup
from supervisor.errors import StartError
from system.addresses import Address, wait_until_bindable
from system.lock import PREDECESSOR_WAIT_S


class RequestHandler(basehttp.WSGIRequestHandler):
    """Django's handler, with the socket in the environ, and with path, credentials and length as sent."""

    # No versions in http.server's own responses.
    server_version, sys_version = "runserver", ""

    def get_environ(self) -> dict[str, Any]:
        """Return the environ. The application watches the socket to detect that the client disconnects."""
        self.path = self.requestline.split()[1]  # http.server folds leading slashes into one.
        environ = super().get_environ() | {"runtime.socket": self.connection}
        for name in ("X-API-Key", "Authorization"):
            # wsgiref strips all Unicode white space, but a key with a no-break space is a different key.
            if values := self.headers.get_all(name):
                environ[f"HTTP_{name.upper().replace('-', '_')}"] = ",".join(value.strip(" \t") for value in values)
        # Django's server supports only plain Content-Length bodies. It must not parse other bodies as the next request.
        # The same applies to the body of a request with a malformed header line, because Python's parser ignores the
        # headers after such a line.
        length = environ["CONTENT_LENGTH"] = ",".join(self.headers.get_all("Content-Length", ["0"]))
        is_plain = "Transfer-Encoding" not in self.headers and re.fullmatch("[0-9]{1,18}", length)
        if self.headers.defects or not is_plain or int(length) > MAX_SKIPPED_BYTES:
            self.close_connection = True
        return environ


class Server(basehttp.WSGIServer):
    """Django's server, with our handler."""

    def __init__(self, address: Any, _handler: Any, **options: Any) -> None:
        super().__init__(address, RequestHandler, **options)


def guard(application: Any) -> Any:
    """Return *application* such that truncated responses never look complete and unread bodies stay out of memory."""

    def guarded(environ: dict[str, Any], start_response: Any) -> Any:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Any:
            # wsgiref's own Server header shows versions.
            return start_response(status, [*headers, ("Server", "runserver")], exc_info)

        response = application(environ, start)
        if must_close(environ):
            # Django's server would read the rest of any body into memory, of any length and from anybody.
            environ["wsgi.input"].limit = 0
        if not response.streaming:
            return response
        # A streamed response ends by closing the connection, so a truncated response is reset.
        return GuardedChunks(response, environ["runtime.socket"], lambda: True)

    return guarded


class Command(runserver.Command):
    """Serve for development, on the configured address unless another is given."""

    help = "Starts the runtime on Django's development server (one process, reloads on code changes, no TLS)."
    server_cls = Server
    addr: str
    port: str

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        add_config_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the configuration first, because the reloader would print an error repeatedly instead of exiting."""
        use_config(options["config"])
        try:
            config = startup.checked_config_of_one_process()
        except StartError as error:
            self.stderr.write(str(error))
            sys.exit(1)
        if config.tls.enabled:
            raise CommandError(
                "runtime.tls is enabled, but runserver does not support TLS: use `serve`, or turn tls off."
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
            # As in the reloader, SIGTERM exits in an orderly way, which stops the engine.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        super().handle(*args, **options)

    def run(self, **options: Any) -> None:
        """Serve on the address from the command line or configuration, unless it exposes the server unintentionally."""
        config = runtimeconf.state.get_config()
        try:
            check_listener(Address(self.addr.lower(), int(self.port)), config.auth, config.file)
        except ConfigError as error:
            self.stderr.write(str(error))
            sys.exit(1)
        super().run(**options)

    def get_handler(self, *args: Any, **options: Any) -> Any:
        """Return the application behind `guard`."""
        return guard(super().get_handler(*args, **options))
