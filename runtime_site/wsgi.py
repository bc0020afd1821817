"""The WSGI application. Loading it starts the runtime of this process, or ends it when it cannot start."""

from __future__ import annotations

import sys

import django

from runtime_site.chosen_settings import settings_fault

fault = settings_fault()
if fault is not None:
    sys.exit(fault)

django.setup(set_prefix=False)

from runtime_site import startup  # noqa: E402 (imports the rooms: the applications must be ready)
from sqlapi.handler import ApiHandler  # noqa: E402

application = ApiHandler()
startup.start_or_exit()
