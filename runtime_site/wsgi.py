"""The WSGI application. Loading it starts the runtime of this process, or ends it when it cannot start."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "runtime_site.settings")

django.setup(set_prefix=False)

from runtime_site import startup  # noqa: E402 (imports the rooms: the applications must be ready)
from sqlapi.handler import ApiHandler  # noqa: E402

application = ApiHandler()
startup.start_or_exit()
