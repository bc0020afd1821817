"""HTTP requests to a server that stores secrets: Vault or the Kubernetes API."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from msgspec import Struct

from runtimeconf.secret_stores import MAX_SECRET_BYTES, SecretError
from system.files import UnreadableFileError, read_regular_file

#: A Kubernetes secret has at most 1 MiB before encoding, and a Vault secret at most 1 MiB.
_MAX_ANSWER_BYTES: Final = 2 * 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(5.0, connect=3.0)


class SecretServer(Struct, frozen=True, kw_only=True):
    """
    The server at *address*, with a certificate from *ca_file*, or by default from the system's authorities.

    *names* are the names of the address and of the certificate authorities in errors. *reasons* maps response statuses
    to their meanings.
    """

    address: str
    ca_file: Path | None
    names: tuple[str, str]
    reasons: Mapping[int, str]

    @contextmanager
    def connection(self) -> Iterator[httpx.Client]:
        """
        Open a client for `ask`.

        Raises:
            SecretError: The certificate authorities cannot be read.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as exc:
            of_file = None if isinstance(exc, ssl.SSLError) else exc.strerror
            reason = (of_file or "it contains no certificate").lower()
            raise SecretError(f"{self.names[1]} cannot be used: {reason}") from None
        # Ignore the environment, because its proxies are not meant for this server, and a .netrc has other credentials.
        # Do not follow redirects, because they would carry the token along.
        with httpx.Client(base_url=self.address, verify=context, timeout=_TIMEOUT, trust_env=False) as client:
            yield client

    def ask(self, client: httpx.Client, method: str, path: str, **content: Any) -> Any:
        """
        Return the JSON of a response.

        Raises:
            SecretError: The server cannot be reached or refuses the request.
            ValueError: The response is not JSON.
        """
        try:
            with client.stream(method, path, **content) as answer:
                body = b""
                for chunk in answer.iter_bytes():
                    body += chunk
                    if len(body) > _MAX_ANSWER_BYTES:
                        raise SecretError("the response is larger than 2 MiB")
        except httpx.TimeoutException:
            raise SecretError("the server does not respond") from None
        except httpx.TransportError as exc:
            if "certificate" in str(exc).lower():
                raise SecretError(f"the certificate of the server is not trusted: see {self.names[1]}") from None
            raise SecretError("the server cannot be reached") from None
        if answer.is_redirect:
            raise SecretError(f"the server redirects to another address: set {self.names[0]} to that address")
        if answer.status_code != httpx.codes.OK:
            reason = f"the server responded with status {answer.status_code}"
            raise SecretError(self.reasons.get(answer.status_code, reason))
        return httpx.Response(200, content=body).json()


def credential(name: str, value: str | Path) -> str:
    """
    Return the single line in *value*, which is a string or a file.

    Raises:
        SecretError: The content is not one line of ASCII, or the file cannot be read.
    """
    text = value
    if isinstance(value, Path):
        try:
            text = read_regular_file(value, MAX_SECRET_BYTES).data.decode("ascii", "replace").strip()
        except UnreadableFileError as exc:
            raise SecretError(f"{value.name} cannot be read: {exc}") from None
    if not text or not str(text).isascii() or not str(text).isprintable():
        where = value.name if isinstance(value, Path) else "what is set"
        raise SecretError(f"{where} is not a {name}: write one line of ASCII")
    return str(text)
