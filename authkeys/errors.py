"""
Errors of the keys themselves. A request without an accepted key is not an error but a decision.

::

    AuthKeysError
    ├── SaltError               the salt of the key digests cannot be read or created
    ├── AccessNotBuiltError     this process has not built the key set
    └── NotPermittedError       the key is accepted but lacks the required permission
"""


class AuthKeysError(Exception):
    """Base of this package's errors. `code` is stable and public."""

    code = "authentication_error"


class SaltError(AuthKeysError):
    """The salt of the key digests cannot be read or created."""

    code = "key_salt_error"


class AccessNotBuiltError(AuthKeysError):
    """This process has not built the key set, so it must refuse all callers."""

    code = "authentication_unavailable"

    def __init__(self) -> None:
        super().__init__("The runtime has not loaded its API keys: it accepts no requests.")


class NotPermittedError(AuthKeysError):
    """The key is accepted but lacks the required permission."""

    code = "not_permitted"

    def __init__(self, right: str) -> None:
        super().__init__(f"This API key has no right to {right}: its entry in named_keys has no `{right}` in rights.")
