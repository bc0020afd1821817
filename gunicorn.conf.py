"""Settings of a bare `gunicorn runtime_site.wsgi`, which reads this file. `manage.py serve` does not."""

import os
import sys
from typing import Any

from system.early_signals import leave_no_core, take_signals

leave_no_core()
take_signals()

# The other imports take half a second, during which a signal may arrive.
from httpserver import gunicorn_server  # noqa: E402
from runtime_site import chosen_settings, uncaught  # noqa: E402
from runtimeconf import exposure  # noqa: E402
from supervisor import startup  # noqa: E402
from supervisor.errors import StartError  # noqa: E402

logger_class = "system.gunicorn_log.ServerLogger"
fault = chosen_settings.settings_fault()
if fault is None:
    uncaught.begin_logging()  # for gunicorn's own lines, from the first one on
try:
    checked = startup.checked_config_of_one_process()
    globals().update(gunicorn_server.options(checked))
except StartError as error:
    fault = fault or str(error)


def on_starting(server: Any) -> None:
    """Refuse a bad configuration before any port is bound."""
    if fault is not None:
        sys.stderr.write(f"{fault}\n")
        sys.exit(1)
    try:
        for address in gunicorn_server.addresses(server.cfg.address, os.environ):
            exposure.check_listener(address, checked.auth, checked.file)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    if "gevent" in server.cfg.worker_class_str:
        sys.stderr.write(
            "Start without -k gevent: the engine in this process needs threads. `manage.py serve` does not.\n"
        )
        sys.exit(1)
    if server.cfg.preload_app:
        sys.stderr.write("Start without --preload: the engine's threads do not survive a fork.\n")
        sys.exit(1)
