"""The one access object of this process. Until it is built, nobody may call."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import runtimeconf.state
from authkeys.access import Access, build, from_handover
from authkeys.errors import AccessNotBuiltError
from runtimeconf import handover
from runtimeconf.model import RuntimeConfig

_lock = threading.Lock()
_access: Access | None = None
_builds_on_demand = False


def get_access() -> Access:
    """
    Return who may call.

    Raises:
        AccessNotBuiltError: It was never built. The caller refuses the request; it never takes this for "off".
        RuntimeConfError, SaltError: It is built on demand, and cannot be.
    """
    access = _access
    if access is not None:
        return access
    if not _builds_on_demand:
        raise AccessNotBuiltError
    return ensure_built()


def set_access(access: Access | None) -> None:
    """Replace who may call; None forgets it, and then nobody may."""
    global _access, _builds_on_demand
    _access, _builds_on_demand = access, False


def build_on_demand() -> None:
    """Have `get_access` build what is not built yet, so that nothing is read before somebody asks."""
    global _builds_on_demand  # noqa: PLW0603 (as above)
    _builds_on_demand = True


def ensure_built() -> Access:
    """
    Build the access object unless it is built: from what a supervisor handed over, else from the YAML.

    The keys of the YAML are forgotten then: this process and those that are forked from it keep their digests.

    Raises:
        AccessNotBuiltError: The supervisor handed over no keys, because this process answers no callers.
        ConfigError: The YAML cannot be used.
        SaltError: The salt can be neither read nor made.
        StateDirectoryError: The state directory can be neither used nor made.
    """
    with _lock:
        if _access is not None:
            return _access
        received = handover.received()
        access = _of_the_yaml() if received is None else _of_the_supervisor(*received)
        set_access(access)
        return access


def _of_the_supervisor(config: RuntimeConfig, extra: dict[str, Any]) -> Access:
    if "access" not in extra:
        raise AccessNotBuiltError
    return from_handover(config, extra.pop("access"))


def _of_the_yaml() -> Access:
    config = runtimeconf.state.get_config()
    access = build(config)
    runtimeconf.state.set_config(replace(config, auth=replace(config.auth, keys=())))
    return access
