"""The WSGI application. Loading it starts the runtime of this process, or ends it when it cannot start."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "runtime_site.settings")

application = get_wsgi_application()

from runtime_site import startup  # noqa: E402 (imports the rooms: the applications must be ready)

startup.start_or_exit()
