"""Fields of connector parameters. The value of a parameter is always a text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from runtimeconf.fields import InvalidValueError, ScalarField
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Node, Scalar

_MAX_CREDENTIAL_LENGTH = 16_384


class TextOf(ScalarField[str]):
    """The value of *field* as text: a duration in seconds, a size in bytes."""

    def __init__(self, field: ScalarField[Any]) -> None:
        self._field = field
        self.expected = field.expected

    def convert(self, node: Scalar) -> str:
        """Return the value as text."""
        return str(self._field.convert(node))


class HiddenField(ScalarField[str]):
    """A text that no fault shows, because an invalid one may hold a secret, such as a URL with a password."""

    def read(self, node: Node, path: YamlPath) -> str | None:
        """Read the node as one that may not be shown."""
        return super().read(replace(node, may_be_shown=False) if isinstance(node, Scalar) else node, path)


class PortField(ScalarField[str]):
    """A TCP port."""

    expected = "a port from 1 to 65535"

    def convert(self, node: Scalar) -> str:
        """Accept decimal digits only."""
        if re.fullmatch(r"[1-9][0-9]{0,4}", node.text) is None or int(node.text) > 65535:
            raise InvalidValueError
        return node.text


class PasswordField(ScalarField[str]):
    """A password, verbatim: one line of any characters, sent in UTF-8."""

    def __init__(self, expected: str) -> None:
        self.expected = expected

    def convert(self, node: Scalar) -> str:
        """Return the text unchanged."""
        if not node.text:
            raise InvalidValueError("it is empty")
        if re.search(r"[\0\r\n]", node.text) or len(node.text) > _MAX_CREDENTIAL_LENGTH:
            raise InvalidValueError(f"it has several lines, or is longer than {_MAX_CREDENTIAL_LENGTH:,} characters")
        return node.text


class CredentialField(PasswordField):
    """A token or key in printable ASCII, which is sent in a header or used to sign requests."""

    def convert(self, node: Scalar) -> str:
        """Return the text unchanged."""
        if not (node.text.isascii() and node.text.isprintable()):
            raise InvalidValueError("printable ASCII")
        return super().convert(node)
