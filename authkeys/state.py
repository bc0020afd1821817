"""The one access object of this process. Until it is built, nobody may call."""

from __future__ import annotations

import threading

from authkeys.access import Access, build
from authkeys.errors import AccessNotBuiltError
from runtimeconf.model import RuntimeConfig

_lock = threading.Lock()
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


def set_access(access: Access | None) -> None:
    """Replace who may call; None forgets it, and then nobody may."""
    global _access  # noqa: PLW0603 (a process has one access object)
    _access = access


def ensure_built(config: RuntimeConfig) -> Access:
    """
    Build the access object of this process from *config*, unless it was built already.

    Servers call it before they bind a port.

    Raises:
        SaltError: The salt can be neither read nor made.
        StateDirError: The state directory can be neither used nor made.
    """
    with _lock:
        if _access is None:
            set_access(build(config))
        return get_access()
