"""
A plug-in with the command `doctor`, which finds problems of a runtime and its machine, and says what to do.

Nothing else imports this package. Without the package and its line in INSTALLED_APPS, the command does not exist.
"""
