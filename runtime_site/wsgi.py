"""The WSGI application. Importing this module starts the runtime in this process, or exits if it cannot start."""

import sys

import django

from runtime_site.chosen_settings import settings_fault

fault = settings_fault()
if fault is not None:
    sys.exit(fault)

django.setup(set_prefix=False)

from runtime_site import uncaught  # noqa: E402 (needs the apps to be loaded)
from sqlapi.wsgi_handler import ApiHandler  # noqa: E402
from supervisor import startup  # noqa: E402

uncaught.capture()
application = ApiHandler()
startup.start_or_exit()
