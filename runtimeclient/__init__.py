"""The client of a running runtime. It imports no other room: it knows only the wire."""

#: Commands that talk to a running runtime; `manage.py` has them too.
CLIENT_COMMANDS = ("sql", "status", "refresh", "datasets", "queries", "cancel", "login", "logout")
#: All commands of `querykeep`, in the order of its help; each is a module of `runtimeclient.commands`.
COMMANDS = (*CLIENT_COMMANDS, "completion", "manual")
