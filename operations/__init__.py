"""
A plug-in with the commands `init` and `apikey`, which set up a runtime. No runtime needs to be running.

They belong to `querykeep` like the client commands, but unlike the client they read the configuration file and the
keys. The commands require this package, its line in INSTALLED_APPS and its rows in `runtimeclient`.
"""
