"""The TLS context of the client: whose certificates it trusts."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from runtimeclient.errors import UsageError

_ROOT_FILE, _ROOT_DIRECTORIES, _KEY_LOG = "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"


def tls_context(root_certificate_file: Path | None) -> ssl.SSLContext:
    """
    Return a context that trusts the roots in a PEM file.

    None stands for the file in SSL_CERT_FILE, else the directories in SSL_CERT_DIR, else the package certifi.

    Raises:
        UsageError: The file, or a variable of the environment, cannot be used.
    """
    if root_certificate_file is not None:
        with _usage_errors(f"The root certificate file {root_certificate_file}"):
            return ssl.create_default_context(cafile=root_certificate_file)
    if file := os.environ.get(_ROOT_FILE):
        with _usage_errors(f"The root certificate file {file}, named by {_ROOT_FILE},"):
            return ssl.create_default_context(cafile=file)
    if directories := os.environ.get(_ROOT_DIRECTORIES):
        # OpenSSL ignores a directory that does not exist; without any, it would trust nobody.
        if not any(map(os.path.isdir, directories.split(os.pathsep))):
            raise UsageError(f"{_ROOT_DIRECTORIES} cannot be used: {directories} is not a directory.")
        with _usage_errors(f"The directory {directories}, named by {_ROOT_DIRECTORIES},"):
            return ssl.create_default_context(capath=directories)
    with _usage_errors("The root certificate file of the package certifi"):
        return httpx.create_ssl_context(trust_env=False)


@contextmanager
def _usage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        log = os.environ.get(_KEY_LOG)
        if log and exc.filename == log:  # Python opens this file when it creates a context.
            raise UsageError(f"The file {log}, named by {_KEY_LOG}, cannot be written: {exc.strerror}.") from exc
        reason = exc.strerror if exc.errno and not isinstance(exc, ssl.SSLError) else "it is not a PEM certificate"
        raise UsageError(f"{what} cannot be used: {reason}.") from exc
