"""
The format of generated API keys: `qk1_`, 32 random base62 characters (190 bits), and a 6-character checksum.

The prefix lets secret scanners find leaked keys. The checksum distinguishes a typo from a key that is not accepted. It
proves nothing, and the server never checks it. The format follows GitHub's tokens: the checksum is the CRC-32 (ISO
3309) of everything before it, in base62 with leading zeros.
"""

import secrets
import string
import zlib

PREFIX = "qk1_"
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_CHARACTERS = 32
_CHECKSUM_CHARACTERS = 6

#: A regular expression with which secret scanners can find a key in text.
PATTERN = rf"\b{PREFIX}[0-9A-Za-z]{{{_RANDOM_CHARACTERS + _CHECKSUM_CHARACTERS}}}\b"


def generate() -> str:
    """Return a new key from the system's random number generator."""
    body = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARACTERS))
    return body + _checksum(body)


def has_typing_error(text: str) -> bool:
    """Return True if *text* starts like a generated key but has a missing, added or changed character."""
    if not text.startswith(PREFIX):
        return False
    body, checksum = text[:-_CHECKSUM_CHARACTERS], text[-_CHECKSUM_CHARACTERS:]
    is_complete = len(body) == len(PREFIX) + _RANDOM_CHARACTERS and text.isascii()
    return not is_complete or _checksum(body) != checksum


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode("ascii")), ""
    for _ in range(_CHECKSUM_CHARACTERS):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
