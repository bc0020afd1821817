"""A secret store on a server. The store has one secret, a JSON object with a value for each name."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtimeconf.secret_stores import SecretError

#: Seconds after which a server is considered down.
LIMIT_S: Final = 8.0

#: The directory where Kubernetes mounts a pod's service account: token, certificate authorities and namespace.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(slots=True, repr=False)  # its repr would show values
class RemoteStore:
    """
    The secret that *read* returns. *shown* describes its location.

    The secret is read once, when the first reference needs a value. *read* raises `SecretError`, or any other exception
    for an invalid response.
    """

    name: str
    shown: str
    read: Callable[[], Mapping[str, Any]]
    limit_s: float = LIMIT_S
    _found: list[Mapping[str, Any] | SecretError] = field(default_factory=list, init=False)

    def get(self, name: str) -> str | None:
        """Return the value of *name*."""
        if not self._found:
            # Library timeouts do not cover the whole operation, but this one does. The thread ends with the process.
            thread = threading.Thread(target=self._read, daemon=True)
            thread.start()
            thread.join(self.limit_s)
            # Wait for a server that is down only once, not once per reference. A response that has arrived comes first.
            self._found.append(SecretError(f"no answer within {self.limit_s:g} s"))
        found = self._found[0]
        if isinstance(found, SecretError):
            raise SecretError(f"{self.shown} cannot be read: {found}")
        value = found.get(name)
        if value is None or (isinstance(value, str) and _is_text(value)):
            return value
        raise SecretError(f"{self.shown} has a value for it that is not a text")

    def looked_at(self, name: str) -> str:
        """Return the secret and its server."""
        return f"the name {name} in {self.shown}"

    def _read(self) -> None:
        try:
            found: Mapping[str, Any] | SecretError = self.read()
            if not isinstance(found, Mapping):
                found = SecretError("it is not a JSON object, with a text for each name")
        except SecretError as exc:
            found = exc
        except Exception as exc:  # noqa: BLE001 (a message of a library could hold a value)
            found = SecretError(f"the answer is not what such a server sends ({type(exc).__name__})")
        self._found.append(found)


def _is_text(value: str) -> bool:
    """Return False for a lone surrogate, which is valid JSON but not accepted by files, headers or databases."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
