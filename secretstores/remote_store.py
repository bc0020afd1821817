"""A secret store that is a server. It holds one secret with a value for each name, as JSON."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtimeconf.secret_stores import SecretError

#: The seconds after which a server counts as down.
LIMIT_S: Final = 8.0

#: Where Kubernetes mounts the token, the authorities and the namespace of a pod's service account.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(slots=True, repr=False)  # it holds values
class RemoteStore:
    """
    The secret that *read* returns; *shown* tells where it is.

    It is read once, when the first reference asks for a value. *read* raises `SecretError`, or any other exception for
    an answer that makes no sense.
    """

    name: str
    shown: str
    read: Callable[[], Mapping[str, Any]]
    limit_s: float = LIMIT_S
    _found: list[Mapping[str, Any] | SecretError] = field(default_factory=list, init=False)

    def get(self, name: str) -> str | None:
        """Return the value of *name*."""
        if not self._found:
            # No time-out of a library covers all that it does; this one does. The thread ends with the process.
            thread = threading.Thread(target=self._read, daemon=True)
            thread.start()
            thread.join(self.limit_s)
            # A server that is down is waited for once, not once for each reference. An answer that came is the first.
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
    """JSON can have half of a character, which no file, header or database takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
