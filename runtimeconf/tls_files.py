"""Checks a certificate and its private key before any port is bound."""

from __future__ import annotations

import ssl
from pathlib import Path

from system.files import UnreadableFileError, read_regular_file

MAX_PEM_BYTES = 1024 * 1024


def certificate_problem(file: Path) -> str:
    """Return why *file* cannot be read, in a few words; an empty text if it can."""
    try:
        content = read_regular_file(file, MAX_PEM_BYTES)
    except UnreadableFileError as exc:
        return f"cannot be read: {exc}"
    return "" if b"-----BEGIN " in content.data else "is not a PEM file"


def pair_problem(certificate_file: Path, key_file: Path) -> str:
    """Return why the readable files cannot be used together, in a few words; an empty text if they can."""

    def no_password() -> str:
        # Without this callback OpenSSL asks on the terminal, and a start in the background hangs.
        raise _EncryptedKeyError

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate_file, key_file, password=no_password)
    except _EncryptedKeyError:
        return "is encrypted: give a key without a passphrase, readable by this user only"
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            return "does not belong to the certificate"
        return "and the certificate cannot be used: one of them is not valid PEM"
    return ""


class _EncryptedKeyError(Exception):
    """OpenSSL asked for the passphrase of the key."""
