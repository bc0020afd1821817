"""The one access object of this process. Nobody may call until it is built."""

import threading
from dataclasses import replace

import runtimeconf.state
from authkeys.access import Access, build, from_handover
from authkeys.errors import AccessNotBuiltError
from runtimeconf import handover

_lock = threading.Lock()
_access: Access | None = None
_builds_on_demand = False


def get_access() -> Access:
    """
    Return the access object.

    Raises:
        AccessNotBuiltError: It is not built. Callers must refuse the request, never treat it as "off".
        RuntimeConfError, SaltError: It is built on demand, and building it failed.
    """
    access = _access
    if access is None and not _builds_on_demand:
        raise AccessNotBuiltError
    return ensure_built() if access is None else access


def set_access(access: Access | None) -> None:
    """Replace the access object. After None nobody may call."""
    global _access, _builds_on_demand
    _access, _builds_on_demand = access, False


def build_on_demand() -> None:
    """Let `get_access` build the access object on first use."""
    global _builds_on_demand  # noqa: PLW0603 (as above)
    _builds_on_demand = True


def ensure_built() -> Access:
    """
    Build the access object if it does not exist: from the supervisor's handover, else from the YAML.

    The keys of the YAML are then dropped from memory: this process and its forks keep only their digests.

    Raises:
        AccessNotBuiltError: The supervisor handed over no keys, because this process serves no callers.
        ConfigError: The YAML cannot be used.
        SaltError: The salt can be neither read nor created.
        StateDirectoryError: The state directory can be neither used nor created.
    """
    with _lock:
        if _access is not None:
            return _access
        received = handover.received()
        if received is None:
            config = runtimeconf.state.get_config()
            access = build(config)
            runtimeconf.state.set_config(replace(config, auth=replace(config.auth, keys=(), named_keys=())))
        else:
            config, extra = received
            if "access" not in extra:
                raise AccessNotBuiltError
            access = from_handover(config, extra.pop("access"))
        set_access(access)
        return access
