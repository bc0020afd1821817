"""The client of a running runtime. It knows only the wire protocols, and imports no package but `mcpapi`."""

#: Commands that `manage.py` also has: the module whose `COMMANDS` declares each, and a summary for the help.
CLIENT_COMMANDS = {
    "sql": ("runtimeclient.commands.sql", "run SQL and show the rows"),
    "status": ("runtimeclient.commands.status", "show the status of a runtime's components"),
    "top": ("runtimeclient.commands.status", "show what runs, the workers, and the datasets, live"),
    "datasets": ("runtimeclient.commands.datasets", "list the datasets: status, rows, age"),
    "refresh": ("runtimeclient.commands.datasets", "refresh datasets"),
    "queries": ("runtimeclient.commands.queries", "list queued and running statements"),
    "cancel": ("runtimeclient.commands.queries", "cancel a statement"),
    "history": ("runtimeclient.commands.queries", "list the last statements that have ended"),
    "login": ("runtimeclient.commands.login", "store the key of a runtime"),
    "logout": ("runtimeclient.commands.login", "delete the stored key of a runtime"),
    "mcp": ("runtimeclient.commands.mcp", "serve agents and editors over standard input (MCP)"),
    "console": ("runtimeclient.commands.console", "browse datasets, run SQL and draw charts in a browser"),
}
#: All commands of `querykeep` in the order of its help. The commands in `operations` belong to a plug-in.
COMMANDS = CLIENT_COMMANDS | {
    "apikey": ("operations.commands", "create an API key, list the keys, check a key"),
    "init": ("operations.commands", "write a configuration for data files, and a key"),
    "completion": ("runtimeclient.commands.completion", "print a shell completion script"),
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
