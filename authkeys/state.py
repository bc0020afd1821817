"""The one access object of this process. Until it is built, nobody may call."""

from __future__ import annotations

from authkeys.access import Access, build
from authkeys.errors import AccessNotBuiltError
from runtimeconf.model import RuntimeConfig

_access: Access | None = None


def get_access() -> Access:
    """
    Return who may call.

    Raises:
        AccessNotBuiltError: It was never built. The caller refuses the request; it never takes this for "off".
    """
    access = _access
    if access is None:
        raise AccessNotBuiltError
    return access


def is_built() -> bool:
    """Say whether this process, or the one it was forked from, knows who may call."""
    return _access is not None


def set_access(access: Access | None) -> None:
    """Replace who may call; None forgets it, and then nobody may."""
    global _access  # noqa: PLW0603 (a process has one access object)
    _access = access


def ensure_built(config: RuntimeConfig) -> Access:
    """
    Build the access object of this process from *config*.

    Servers call it before they bind a port, whatever is there: Django's start may have read another YAML than the one
    that the server was told to use.

    Raises:
        SaltError: The salt can be neither read nor made.
        StateDirError: The state directory can be neither used nor made.
    """
    access = build(config)
    set_access(access)
    return access
