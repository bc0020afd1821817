"""
The only place that decides whether a caller may use this runtime, over HTTP or Flight.

An endpoint reads its headers into a `Credential` (`authkeys.credentials`) and passes it to `Access.authenticate`.
"""

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from authkeys import salt
from authkeys.credentials import Credential, Reason
from authkeys.keys import KeySet
from authkeys.last_use import LastUse
from authkeys.principal import ANONYMOUS, Principal
from runtimeconf.model import RuntimeConfig
from system.state_directory import prepare_state_dir


class Access(Struct, frozen=True, kw_only=True):
    """The key set (None while authentication is off), and whether HTTP accepts `Authorization: Bearer`."""

    key_set: KeySet | None
    last_use: LastUse | None = None
    takes_bearer: bool = True

    def authenticate(self, credential: Credential) -> Principal | Reason:
        """
        Return the caller that presented *credential*, or the reason for refusing it.

        While authentication is off, every caller is anonymous.
        """
        if self.key_set is None:
            return ANONYMOUS
        if isinstance(credential, Reason):
            return credential
        principal = self.key_set.find(credential.reveal())
        if principal is None:
            return Reason.UNKNOWN
        if principal.expires_at is not None and time.time() >= principal.expires_at:
            return Reason.EXPIRED
        if self.last_use is not None:
            self.last_use.note(principal.fingerprint)
        return principal


def build(config: RuntimeConfig) -> Access:
    """
    Build the key set of *config*. Create the state directory and the salt if they do not exist.

    Raises:
        SaltError: The salt can be neither read nor created.
        StateDirectoryError: The state directory can be neither used nor created.
    """
    key_set = None
    if config.auth.enabled:
        prepare_state_dir(config.state_dir)
        key_set = KeySet(config.auth.keys, salt.load_or_create(config.state_dir), config.auth.named_keys)
    return _access(config, key_set)


def from_handover(config: RuntimeConfig, fields: Mapping[str, Any] | None) -> Access:
    """
    Return the access object of a process that inherited *config*, which contains no keys, and the key set *fields*.

    Raises:
        ValueError: *config* and *fields* disagree about whether authentication is on.
    """
    key_set = None if fields is None else KeySet.from_handover(fields)
    if config.auth.enabled != (key_set is not None):
        raise ValueError("The handover belongs to another configuration.")
    return _access(config, key_set)


def _access(config: RuntimeConfig, key_set: KeySet | None) -> Access:
    last_use = None if key_set is None else LastUse(config.state_dir)
    return Access(key_set=key_set, last_use=last_use, takes_bearer=config.compatibility != "1.10")
