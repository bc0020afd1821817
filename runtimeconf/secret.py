"""A value that does not print."""

from __future__ import annotations

from typing import Final


class Secret:
    """
    A secret text. It prints as `<secret>`, does not pickle, and shows its text only to `reveal()`.

    Two secrets are equal when their texts are; a secret is not hashable, so that it is never a key of a mapping that
    somebody prints.
    """

    __slots__ = ("_text",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def reveal(self) -> str:
        """Return the text. Call it where the text is used, and keep no copy."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be pickled or copied into another process."""
        raise TypeError("A secret is not pickled.")
