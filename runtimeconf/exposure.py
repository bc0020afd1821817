"""
Enforces the rule that other machines are served without a key only if the configuration allows it.

The schema applies the rule to configured addresses, and `check_listener` applies it to all other addresses of a server.
"""

import logging
from functools import lru_cache
from pathlib import Path

from runtimeconf import handover
from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.model import AuthConfig
from system.addresses import Address, listening_addresses

logger = logging.getLogger(__name__)


def refusal(address: Address) -> str:
    """Return the sentence that refuses to listen on *address*."""
    return (
        f"listens on {address}, which other machines can reach, and authentication is off: add API keys to "
        "runtime.auth, or write api-key: {enabled: false} there to let anybody read all data"
    )


def warning(address: Address) -> str:
    """Return the warning about an open *address* that the configuration allows."""
    return f"listens on {address} without authentication: anybody who reaches it can read all data"


@lru_cache(maxsize=8)
def check_listener(address: Address, auth: AuthConfig, file: Path) -> None:
    """
    Check an address from a command line or an inherited socket, which the configuration *file* does not contain.

    A process and its forks warn about an address once. *auth* contains no keys.

    Raises:
        ConfigError: Other machines can reach the address without a key, and the configuration does not allow it.
    """
    if auth.enabled or not address.is_open:
        return
    if not auth.allows_anybody:
        fault = ConfigFault(file=file, line=0, yaml_path="runtime.http", message=refusal(address))
        raise ConfigError((fault,))
    logger.warning("The HTTP server %s", warning(address))


@lru_cache(maxsize=8)
def check_this_process(auth: AuthConfig, file: Path) -> None:
    """
    Check all addresses on which this process listens, for servers other than our own. See `check_listener`.

    A successful check is not repeated, so call this after all addresses are bound.
    """
    if handover.received() is not None:
        return  # `serve` has already checked them.
    for address in listening_addresses():
        check_listener(address, auth, file)
