"""The client of a running runtime. It imports no other room: it knows only the wire."""

#: Commands that `manage.py` has too, in the order of the help, and the modules whose `COMMANDS` declare them.
CLIENT_COMMANDS = {
    "sql": "runtimeclient.commands.sql",
    "status": "runtimeclient.commands.status",
    "refresh": "runtimeclient.commands.datasets",
    "datasets": "runtimeclient.commands.datasets",
    "queries": "runtimeclient.commands.queries",
    "cancel": "runtimeclient.commands.queries",
    "history": "runtimeclient.commands.queries",
    "top": "runtimeclient.commands.status",
    "login": "runtimeclient.commands.login",
    "logout": "runtimeclient.commands.login",
}
#: Those of plug-ins.
PLUGIN_COMMANDS = {"apikey": "operations.commands", "init": "operations.commands"}
#: All commands of `querykeep`.
COMMANDS = {**CLIENT_COMMANDS, **PLUGIN_COMMANDS, "completion": "runtimeclient.commands.completion"}

#: The commands of the extra `server`, with a summary for the help; `runtime_site.management.commands` has them.
SERVER_COMMANDS = {
    "serve": "start the runtime",
    "check": "check the configuration, its data and the machine; nothing is started",
    "reload": "put the changed configuration in force without a gap",
    "doctor": "find problems of a runtime and its machine, and say how to solve them",
    "healthcheck": "ask the runtime on this machine whether it responds",
    "runserver": "start the runtime on Django's development server",
    "runweb": "run the HTTP server alone (serve starts it)",
    "runflight": "run the Flight SQL server alone (serve starts it)",
    "runengine": "run the engine alone (serve starts it)",
    "runrefresh": "load the datasets alone (serve starts it)",
    "runwatch": "run metrics and history alone (serve starts it)",
    "runtraces": "export traces (serve starts it)",
}
