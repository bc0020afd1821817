"""Quotes values and names in SQL."""

from collections.abc import Iterable


def literal(text: str) -> str:
    """Return *text* as a string literal."""
    return "'" + text.replace("'", "''") + "'"


def literals(texts: Iterable[str]) -> str:
    """Return *texts* as a list of string literals."""
    return f"[{', '.join(map(literal, texts))}]"


def identifier(name: str) -> str:
    """Return *name* as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'
