"""
The client of a running runtime. It imports no other room: it knows only the wire.

The exceptions are the commands `apikey` and `init`, which work without a runtime.
"""

#: Commands that `manage.py` has too.
CLIENT_COMMANDS = (
    *("sql", "status", "refresh", "datasets", "queries", "cancel", "history", "top"),
    *("login", "logout", "apikey"),
)
#: All commands of `querykeep`, in the order of its help; each is a module of `runtimeclient.commands`.
COMMANDS = (*CLIENT_COMMANDS, "init", "completion", "manual")
