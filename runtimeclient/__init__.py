"""The client of a running runtime. It knows only the wire protocols, and imports no package but `mcpapi`."""

_MODULES = {
    "runtimeclient.commands.sql": ("sql",),
    "runtimeclient.commands.status": ("status", "top"),
    "runtimeclient.commands.datasets": ("datasets", "refresh"),
    "runtimeclient.commands.queries": ("queries", "cancel", "history"),
    "runtimeclient.commands.login": ("login", "logout"),
    "runtimeclient.commands.mcp": ("mcp",),
    "runtimeclient.commands.console": ("console",),
}
#: Commands that `manage.py` also has, and the modules whose `COMMANDS` declare them.
CLIENT_COMMANDS = {name: module for module, names in _MODULES.items() for name in names}
#: All commands of `querykeep` in the order of its help. The commands in `operations` belong to a plug-in.
COMMANDS = CLIENT_COMMANDS | {
    "apikey": "operations.commands",
    "init": "operations.commands",
    "completion": "runtimeclient.commands.completion",
}

#: The commands of the `server` extra, with a summary for the help. They are in `runtime_site.management.commands`.
SERVER_COMMANDS = {
    "serve": "start the runtime",
    "check": "check the configuration, its data and the machine; nothing is started",
    "reload": "apply the changed configuration without downtime",
    "doctor": "find problems of a runtime and its machine, with solutions",
    "healthcheck": "ask the runtime on this machine whether it responds",
    "runserver": "start the runtime on Django's development server",
    "runweb": "run the HTTP server alone (serve starts it)",
    "runflight": "run the Flight SQL server alone (serve starts it)",
    "runengine": "run the engine alone (serve starts it)",
    "runrefresh": "load the datasets alone (serve starts it)",
    "runwatch": "run metrics and history alone (serve starts it)",
    "runtraces": "export traces (serve starts it)",
}
