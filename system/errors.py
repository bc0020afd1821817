"""
What can go wrong with what the operating system keeps for a runtime.

::

    StateDirectoryError    the state directory cannot be used, or another runtime holds it
"""

from __future__ import annotations


class StateDirectoryError(Exception):
    """The state directory cannot be made, must not be used, or is held by another runtime. `str()` is for operators."""

    code = "state_directory_error"
