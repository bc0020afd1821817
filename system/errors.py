"""
Errors about the files of a runtime.

::

    StateDirectoryError    the state directory cannot be used, or another runtime uses it
"""


class StateDirectoryError(Exception):
    """The state directory cannot be created, is not safe, or belongs to another runtime. `str()` is for operators."""

    code = "state_directory_error"
