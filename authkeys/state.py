"""The access object of this process. All callers are refused until it is built."""

import threading

from msgspec.structs import replace

import runtimeconf.state
from authkeys.access import Access, build, from_handover
from authkeys.errors import AccessNotBuiltError
from runtimeconf import handover
from system.process_value import ProcessValue

_lock = threading.Lock()

#: While the access object is not built, `get` raises AccessNotBuiltError. The caller must then refuse the request and
#: never treat authentication as off. If the object is built on demand, `get` also raises `ensure_built`'s errors.
_access: ProcessValue[Access] = ProcessValue(AccessNotBuiltError)
get_access, set_access = _access.get, _access.set


def build_on_demand() -> None:
    """Make `get_access` build the access object on first use."""
    _access.start_on_demand(ensure_built)


def refuse_with(error: Exception) -> None:
    """
    Make `get_access` raise *error*, which prevented the access object from being built.

    There are no further attempts.
    """

    def fail() -> None:
        raise error.with_traceback(None)  # the traceback would grow with each request

    _access.start_on_demand(fail)


def ensure_built() -> Access:
    """
    Build the access object if it does not exist, from the supervisor's handover or else from the configuration file.

    The configured keys are then dropped from memory. This process and its forks keep only their digests.

    Raises:
        AccessNotBuiltError: The supervisor handed over no keys, because this process serves no callers.
        ConfigError: The configuration file cannot be used.
        SaltError: The salt can be neither read nor created.
        StateDirectoryError: The state directory can be neither used nor created.
    """
    with _lock:
        if _access.value is not None:
            return _access.value
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
