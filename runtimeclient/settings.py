"""Django settings of the client commands: no YAML, no key, no database, nothing but the commands."""

SECRET_KEY = "not used: the client signs nothing"  # noqa: S105
INSTALLED_APPS = ["runtimeclient"]
USE_TZ = True
USE_I18N = False
DATABASES: dict[str, dict[str, str]] = {}
