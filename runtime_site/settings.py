"""
Django settings. Users configure the runtime in its configuration file, not here.

The settings enable only the features that an API without database, sessions, templates and static files needs.
"""

import os
import secrets

from runtime_site.logs import logging_config

DEBUG = False
# Nothing is signed and processes do not share the key, so a new key per process is safest.
SECRET_KEY = secrets.token_urlsafe(50)
# Applies while authentication is off and the configuration file has no list of hosts. Prevents DNS rebinding.
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
APPEND_SLASH = False
ROOT_URLCONF = "runtime_site.urls"
WSGI_APPLICATION = "runtime_site.wsgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
DATABASES: dict[str, dict[str, str]] = {}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

INSTALLED_APPS = [
    "runtime_site",
    "rest_framework",
    "runtimeconf",
    "authkeys",
    "sqlapi",
    "runtimeclient",
    "doctor",
    "operations",
]
MIDDLEWARE = [
    "sqlapi.middleware.RequestIdMiddleware",
    "sqlapi.middleware.AccessLogMiddleware",
]

REST_FRAMEWORK: dict[str, object] = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["authkeys.authentication.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["authkeys.authentication.HasPrincipal"],
    "DEFAULT_RENDERER_CLASSES": [],
    "DEFAULT_PARSER_CLASSES": [],
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "sqlapi.problems.handle_view_exception",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}
LOGGING = logging_config(os.environ)

SILENCED_SYSTEM_CHECKS = [
    "security.W001",  # SecurityMiddleware: sqlapi sets nosniff itself, and nothing redirects to HTTPS.
    "security.W002",  # X-Frame-Options: there are no pages to frame.
    "security.W003",  # CSRF: there are no cookies; sqlapi.api_view checks the origin while authentication is off.
]
