"""
A plug-in with the command `doctor`, which finds problems with a runtime and its machine and suggests remedies.

Nothing else imports this package. Without the package and its line in INSTALLED_APPS, the command does not exist.
"""
