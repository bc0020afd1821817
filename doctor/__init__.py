"""
A plug-in: the command `doctor`, which finds what is wrong with a runtime and its machine, and says what to do.

Nothing else imports this package. Without it and its line in INSTALLED_APPS there is no such command.
"""
