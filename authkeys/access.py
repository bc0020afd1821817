"""Who may call this runtime, as one value made from the configuration at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from authkeys import salt
from authkeys.credentials import Credential, from_headers
from authkeys.keys import KeySet
from runtimeconf.model import RuntimeConfig
from system.state_directory import prepare_state_dir

REALM = "querykeep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`key_set` is None when authentication is off; `compatibility` is the version whose rules HTTP follows."""

    key_set: KeySet | None
    compatibility: Literal["2.0", "1.10"] = "2.0"

    @property
    def takes_bearer(self) -> bool:
        """Whether HTTP takes `Authorization: Bearer`."""
        return self.compatibility != "1.10"

    def credential(self, x_api_key: str | None, authorization: str | None) -> Credential:
        """Decide what an HTTP request presents."""
        return from_headers(x_api_key, authorization, bearer=self.takes_bearer)

    def challenge(self, *, presented: bool) -> str:
        """Return the `WWW-Authenticate` of a 401; *presented* says whether there was a credential to be wrong."""
        scheme = "Bearer" if self.takes_bearer else "ApiKey"
        error = ', error="invalid_token"' if presented else ""
        return f'{scheme} realm="{REALM}"{error}'


def build(config: RuntimeConfig) -> Access:
    """
    Make the key set of *config*, and with it the state directory and the salt when there are none yet.

    Raises:
        SaltError: The salt can be neither read nor made.
        StateDirectoryError: The state directory can be neither used nor made.
    """
    if not config.auth.enabled:
        return Access(key_set=None, compatibility=config.compatibility)
    prepare_state_dir(config.state_dir)
    key_set = KeySet(config.auth.keys, salt.load_or_create(config.state_dir))
    return Access(key_set=key_set, compatibility=config.compatibility)


def handover(access: Access) -> dict[str, Any] | None:
    """Return what `from_handover` needs in another process, fit for JSON; None when authentication is off."""
    return None if access.key_set is None else access.key_set.handover()


def from_handover(config: RuntimeConfig, fields: Mapping[str, Any] | None) -> Access:
    """Return the access object of a process that was handed *config*, without keys, and *fields* by `handover`."""
    key_set = None if fields is None else KeySet.from_handover(fields)
    if config.auth.enabled != (key_set is not None):
        raise ValueError("a handover is of another configuration")
    return Access(key_set=key_set, compatibility=config.compatibility)
