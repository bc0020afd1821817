"""The API key as HTTP carries it: what a header can hold, and how to keep it out of messages."""

import json
from urllib.parse import quote

from runtimeclient.errors import UsageError


def check_api_key(key: str, where: str) -> str:
    """
    Return a key that a header can carry unchanged; *where* tells for the message where it comes from.

    Raises:
        UsageError: The key is empty or would be changed in transit. The message contains no part of it.
    """
    if not key:
        raise UsageError(f"The API key {where} is empty.")
    if key != key.strip():
        raise UsageError(f"The API key {where} has leading or trailing white space.")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"The API key {where} has characters that a header cannot carry: use printable ASCII.")
    return key


def masked(text: str, api_key: str | None) -> str:
    """Replace the key in *text*: a server may echo it verbatim, JSON-escaped or percent-encoded."""
    if api_key is not None:
        for form in (api_key, json.dumps(api_key)[1:-1], quote(api_key, safe="")):
            text = text.replace(form, "<secret>")
    return text
