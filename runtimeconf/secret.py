"""A string that is never printed."""

from typing import Final


class Secret:
    """
    A secret string. It prints as `<secret>`, cannot be pickled, and reveals its text only through `reveal()`.

    Secrets with the same text are equal. Secrets are not hashable, so they never become keys of a printed mapping.
    """

    __slots__ = ("_text",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def reveal(self) -> str:
        """Return the text. Call it only where the text is used, and keep no copy."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __repr__(self) -> str:
        return "<secret>"

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse pickling, so that a secret cannot be sent to another process."""
        raise TypeError("A secret is not pickled.")
