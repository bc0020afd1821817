"""
The YAML without what may be a secret, and texts without it.

A value is kept only if its field says that it cannot be a secret: a number, a duration, a word from a list. Everything
else is replaced, unknown fields with their names. References to secrets are kept: they are names.
"""

import base64
import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus

from runtimeconf.addresses import ADDRESS
from runtimeconf.connector import Param, texts_in
from runtimeconf.dataset_schema import RELATION_NAME
from runtimeconf.fields import (
    BooleanField,
    ChoiceField,
    DurationField,
    Field,
    FlagField,
    IntegerField,
    InvalidValueError,
    ScalarField,
    SizeField,
)
from runtimeconf.model import RuntimeConfig
from runtimeconf.named_keys import ExpiryField
from runtimeconf.plugins import CONNECTORS
from runtimeconf.references import without_literals
from runtimeconf.s3 import S3Params
from runtimeconf.schema import ROOT
from runtimeconf.yaml_reader import Mapping, Node, Scalar, Sequence

REDACTED = "<redacted>"

#: Fields whose valid values are never secrets.
_HARMLESS = (BooleanField, IntegerField, DurationField, SizeField, ChoiceField, FlagField, ExpiryField)
#: Names of datasets and views; every caller may see them.
_NAMES = frozenset({"datasets[].name", "views[].name"})
_FROM = "datasets[].from"
#: Spellings of fields besides that of the schema.
_ALIASES = {"api_key": "api-key"}

#: Parameters whose values of headers and fields are secrets too. A part of another, such as the scheme of a URL, is
#: in many texts.
_WITH_PARTS = frozenset({"http_headers", "http_query"})

#: Shorter texts are not searched for: they would be found everywhere.
_MIN_CHARACTERS = 4
#: A fault shows at most the beginning of a longer value: `validation.shown`.
_SHOWN_CHARACTERS = 57


class Redaction:
    """The redacted form of *document*: `content`, in JSON types, and `hidden`, the texts that it leaves out."""

    def __init__(self, document: Mapping) -> None:
        self._fields: dict[str, Field[object]] = dict(ROOT.walk(""))
        self._sections = {path[:end] for path in self._fields for end in _prefixes(path)}
        self.hidden: set[str] = set()
        self.content = self._of(document, "")

    def _of(self, node: Node, path: str) -> object:
        if isinstance(node, Scalar):
            return self._value(node, path)
        if isinstance(node, Sequence):
            return [self._of(item, f"{path}[]") for item in node.items]
        content: dict[str, object] = {}
        for entry in node.entries:
            below = ".".join(filter(None, [path, _ALIASES.get(entry.name, entry.name)]))
            name = entry.name
            if below not in self._fields and below not in self._sections:
                self.hidden.add(entry.name)
                name = f"<field {len(content) + 1}>"
            content[name] = self._of(entry.value, below)
        return content

    def _value(self, node: Scalar, path: str) -> str | None:
        if node.is_null:
            return None
        field = self._fields.get(path)
        if isinstance(field, _HARMLESS) and _accepts(field, node):
            return node.text
        if path in _NAMES and _accepts(RELATION_NAME, node):
            return node.text
        self.hidden.add(node.text)
        connector, separator, _ = node.text.partition(":")
        if path == _FROM and separator and connector in CONNECTORS:
            return f"{connector}:{REDACTED}"
        if path == _FROM:
            self.hidden.add(connector)  # A fault names it.
        if field is ADDRESS:
            with suppress(InvalidValueError, ValueError):
                address = ADDRESS.convert(node)
                ipaddress.ip_address(address.host)
                return str(address)
        return without_literals(node.text, REDACTED)


def _prefixes(path: str) -> Iterator[int]:
    return (match.start() for match in re.finditer(r"\.|\[\]", path))


def _accepts(field: ScalarField[Any], node: Scalar) -> bool:
    try:
        field.convert(node)
    except InvalidValueError:
        return False
    return True


def secrets_of(config: RuntimeConfig) -> Iterator[str]:
    """Yield every secret that *config* was given: keys, headers, tokens, and parameters of datasets."""
    for key in (*config.auth.keys, *(named.key for named in config.auth.named_keys)):
        if key is not None:
            yield key.reveal()
    for value in config.traces.headers.values() if config.traces is not None else ():
        yield from (value, *value.split())
    if config.engine is not None and config.engine.token is not None:
        yield config.engine.token
    shared = config.snapshots.params if config.snapshots is not None else {}
    yield from (
        shared[param.name] for param in S3Params.declared.values() if _is_hidden(param) and param.name in shared
    )
    for dataset in config.datasets:
        connector = CONNECTORS.get(dataset.connector)
        for param in connector.params.declared.values() if connector is not None else ():
            if _is_hidden(param) and param.name in dataset.params:
                for value in texts_in(dataset.params[param.name]):
                    yield value
                    if param.name in _WITH_PARTS:
                        yield from re.findall(r"(?:^|(?<=[:=\s]))[^\s=&;]+", value)


def _is_hidden(param: Param) -> bool:
    return param.is_secret or param.is_hidden


class Scrubber:
    """
    Replaces *secrets* in texts, also where they are encoded, and *hidden* texts where they stand alone.

    This is the second line: no text should hold one.
    """

    def __init__(self, secrets: Iterable[str] = (), hidden: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= _MIN_CHARACTERS for form in _forms(secret)}
        words = {form for text in hidden if len(text) >= _MIN_CHARACTERS for form in _shown(text)}
        self._forms = _by_beginning(forms)
        self._words = _by_beginning(words)

    def scrubbed(self, text: str) -> str:
        """Return *text* without them."""
        for form in _possible(self._forms, text):
            text = text.replace(form, REDACTED)
        for word in _possible(self._words, text):
            text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", REDACTED, text)
        return text


def _by_beginning(texts: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(text[:_MIN_CHARACTERS], []).append(text)
    return found


def _possible(known: dict[str, list[str]], text: str) -> list[str]:
    """Return those of the *known* texts whose beginning is in *text*, the longest first: another may be part of it."""
    beginnings = {text[at : at + _MIN_CHARACTERS] for at in range(len(text))}
    return sorted((one for beginning in beginnings for one in known.get(beginning, ())), key=len, reverse=True)


def _forms(secret: str) -> Iterator[str]:
    yield from _shown(secret)
    yield quote(secret, safe="")
    yield quote_plus(secret)
    data = secret.encode()
    yield data.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode().rstrip("=")
        for offset in (1, 2):
            # Within a longer text: without the characters that depend on what is around it.
            inner = encode(bytes(offset) + data).decode().rstrip("=")[offset + 1 : -1]
            if len(inner) >= 2 * _MIN_CHARACTERS:
                yield inner


def _shown(text: str) -> Iterator[str]:
    yield text
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]
    if len(text) > _SHOWN_CHARACTERS:
        yield repr(text[:_SHOWN_CHARACTERS])[1:-1]
