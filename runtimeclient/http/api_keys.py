"""Checks API keys before they are sent, and masks them in messages."""

import json
import string
import zlib
from urllib.parse import quote

from runtimeclient.errors import UsageError

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


def check_api_key(key: str, where: str) -> str:
    """
    Return *key* if a header can carry it unchanged. *where* names its origin in the message.

    Raises:
        UsageError: The key is empty, would be changed in transit, or has a typo. The message contains no part of it.
    """
    if not key:
        raise UsageError(f"The API key {where} is empty.")
    if key != key.strip():
        raise UsageError(f"The API key {where} has leading or trailing white space.")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"The API key {where} has characters that a header cannot carry: use printable ASCII.")
    if has_typing_error(key):
        raise UsageError(f"The API key {where} has a typo: its checksum does not match.")
    return key


def has_typing_error(key: str) -> bool:
    """
    Return whether *key* begins like a generated key but is not a valid one.

    The last 6 of a key's 42 characters are the CRC-32 of the others in base62.
    """
    number = 0
    for digit in key[-6:]:
        number = number * len(_DIGITS) + _DIGITS.find(digit)
    is_whole = len(key) == 42 and set(key[4:]) <= set(_DIGITS) and number == zlib.crc32(key[:-6].encode())
    return key.startswith("qk1_") and not is_whole


def masked(text: str, api_key: str | None) -> str:
    """Mask the key in *text*. A server may echo it verbatim, JSON-escaped or percent-encoded."""
    if api_key is not None:
        for form in (api_key, json.dumps(api_key)[1:-1], quote(api_key, safe="")):
            text = text.replace(form, "<secret>")
    return text
