"""
A plug-in: the commands `init` and `apikey`, for setting up a runtime. No runtime needs to be running.

They belong to `querykeep` like those of the client, but know what the client does not: the YAML and the keys. Without
this package, its line in INSTALLED_APPS and its rows in `runtimeclient` there are no such commands.
"""
