"""Shapes of parameters that more than one connector has. A parameter is a text, whatever its shape says of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from runtimeconf.fields import ScalarShape, UnfitError
from runtimeconf.reading import Place
from runtimeconf.yaml_reader import Node, Scalar

_MAX_CREDENTIAL_LENGTH = 16_384


class AsText(ScalarShape[str]):
    """What *shape* takes, as the text of its value: a duration in seconds, a size in bytes."""

    def __init__(self, shape: ScalarShape[Any]) -> None:
        self._shape = shape
        self.expected = shape.expected

    def convert(self, node: Scalar) -> str:
        """Give the value as text."""
        return str(self._shape.convert(node))


class Unshown(ScalarShape[str]):
    """A text that may hold a secret where it does not fit, such as a URL with a password: no fault shows it."""

    def read(self, node: Node, place: Place) -> str | None:
        """As `ScalarShape.read`."""
        return super().read(replace(node, may_be_shown=False) if isinstance(node, Scalar) else node, place)


class Port(ScalarShape[str]):
    """A TCP port."""

    expected = "a port from 1 to 65535"

    def convert(self, node: Scalar) -> str:
        """Take decimal digits only."""
        if re.fullmatch(r"[1-9][0-9]{0,4}", node.text) is None or int(node.text) > 65535:
            raise UnfitError
        return node.text


class Password(ScalarShape[str]):
    """What proves who asks, verbatim: a line of any letters, which are sent in UTF-8."""

    def __init__(self, expected: str) -> None:
        self.expected = expected

    def convert(self, node: Scalar) -> str:
        """Give the text as it is."""
        if not node.text:
            raise UnfitError("it is empty")
        if re.search(r"[\0\r\n]", node.text) or len(node.text) > _MAX_CREDENTIAL_LENGTH:
            raise UnfitError(f"it has several lines, or is longer than {_MAX_CREDENTIAL_LENGTH:,} characters")
        return node.text


class Credential(Password):
    """One that is a token: printable ASCII, as it is sent in a header or signed with."""

    def convert(self, node: Scalar) -> str:
        """Give the text as it is."""
        if not (node.text.isascii() and node.text.isprintable()):
            raise UnfitError("printable ASCII")
        return super().convert(node)
