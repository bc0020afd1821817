"""
The rule that other machines are served without a key only if the configuration says so.

The schema applies it to the addresses of the YAML, and `check_listener` to every other address that a server has.
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
        f"listens on {address}, which other machines can reach, but authentication is off: add API keys to "
        "runtime.auth, or set api-key: {enabled: false} there to let anyone read all data"
    )


def warning(address: Address) -> str:
    """Return the sentence on an open *address* that the configuration allows."""
    return f"listens on {address} without authentication: anyone who can reach it can read all data"


@lru_cache(maxsize=8)
def check_listener(address: Address, auth: AuthConfig, file: Path) -> None:
    """
    Check an address that does not come from the YAML *file*: of a command line, or of a socket that was passed.

    A process and its forks warn of it once. *auth* is without keys.

    Raises:
        ConfigError: Other machines can reach it, authentication is off, and the YAML does not say so.
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
    Check the addresses on which this process listens by now, for servers that are not ours. See `check_listener`.

    The outcome is kept unless it is an error, so call it when they are bound.
    """
    if handover.received() is not None:
        return  # `serve` has checked them.
    for address in listening_addresses():
        check_listener(address, auth, file)
