"""
What can go wrong with the keys themselves. A caller without a valid key is no error of this room: it is an answer.

::

    AuthKeysError
    ├── SaltError               the salt of the key digests cannot be read or made
    └── AccessNotBuiltError     nobody has built the key set in this process: nobody may call
"""

from __future__ import annotations


class AuthKeysError(Exception):
    """Base of this room's errors; `code` is stable and public."""

    code = "authentication_error"


class SaltError(AuthKeysError):
    """The salt of the key digests cannot be read or made."""

    code = "key_salt_error"


class AccessNotBuiltError(AuthKeysError):
    """The key set was never built in this process, so nobody may call."""

    code = "authentication_unavailable"

    def __init__(self) -> None:
        super().__init__("The runtime has not loaded its API keys: it answers no one.")
