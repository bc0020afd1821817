"""
API keys as configured: source text and secret references become the texts that authenticate.

A key that no client could send, or that nobody meant as one (`null`, a reference with a typing error), is a fault. A
key that works and is weak is a warning, by index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from runtimeconf import references
from runtimeconf.fields import Boolean, Field, ListOf, Section, Shape
from runtimeconf.model import AuthConfig
from runtimeconf.reading import Place
from runtimeconf.references import MalformedReferenceError, Template
from runtimeconf.secret import Secret
from runtimeconf.secret_stores import SecretError
from runtimeconf.yaml_reader import Mapping, Node, Scalar, Sequence

MIN_GOOD_LENGTH = 16
#: A header field of HTTP servers and of gRPC is 8 KiB at most, its name and the word `Bearer` included.
MAX_LENGTH = 4096

_NOBODYS_KEYS = frozenset({"", "~", "null"})
_LONGEST_REPEATED_PART = 4
# Possessive, longest word first: a hostile text cannot make the match try every way to split it.
_WELL_KNOWN_WORDS = re.compile(
    r"(?>(?:access|administrator|admin|api|auth|bearer|change|default|demo|development|dev|dummy|enter|example|foo|bar|"
    r"guest|hello|here|iloveyou|insert|it|keys|key|querykeep|letmein|login|master|me|monkey|my|none|null|passw0rd|"
    r"password|passwd|passwort|pass|placeholder|private|production|prod|qwerty|replace|root|runtime|sample|secret|some|"
    r"spiceai|spice|super|testing|test|token|top|true|false|undefined|user|welcome|with|world|xxx+|yes|no|your)"
    r"[\W_]*+)++[0-9]{0,6}\W*"
)
_SEQUENCES = (
    "01234567890123456789",
    "98765432109876543210",
    "abcdefghijklmnopqrstuvwxyz",
    "qwertyuiopasdfghjklzxcvbnm",
)


@dataclass(frozen=True, slots=True)
class DeclaredKey:
    """One item of `keys` that is well-formed, before its references are resolved."""

    template: Template
    line: int
    place: Place


class KeyText(Shape[DeclaredKey]):
    """An item of `keys`: the source text of a scalar, whatever YAML would make of it."""

    expected = "a key or a secret reference such as ${ secrets:name }"

    def read(self, node: Node, place: Place) -> DeclaredKey | None:
        """Split the text into literal parts and references; nothing is resolved yet."""
        if not isinstance(node, Scalar):
            hint = 'a text with ": " in it must be quoted, and ${ secrets:name } has no space after the colon'
            place.fault(node.line, f"must be {self.expected}; found {place.found(node)} ({hint})")
            return None
        if node.text.strip().lower() in _NOBODYS_KEYS:
            place.fault(node.line, f"is empty, blank or null: write {self.expected}, or remove the item")
            return None
        try:
            template = references.parse(node.text)
        except MalformedReferenceError as exc:
            place.fault(node.line, str(exc))
            return None
        if not template.references and (problem := _transport_problem(node.text)):
            place.fault(node.line, problem)
            return None
        return DeclaredKey(template, node.line, place)


def _build(values: dict[str, Any], node: Mapping, place: Place) -> AuthConfig:
    """Resolve the keys when authentication is on; while it is off no secret is asked for."""
    declared: tuple[DeclaredKey, ...] = values.get("keys", ())
    if not values["enabled"]:
        return AuthConfig(enabled=False)
    listed = next((entry.value for entry in node.entries if entry.name == "keys"), None)
    line = node.line if listed is None else listed.line
    if listed is None or (isinstance(listed, Sequence) and not listed.items):
        place.field("keys").fault(line, "has no key, and enabled is true: list at least one")
    keys = [(key, text) for key in declared if (text := _resolve(key)) is not None]
    _warn(keys, line, place)
    return AuthConfig(enabled=True, keys=tuple(Secret(text) for _, text in keys))


#: `runtime.auth.api-key`
API_KEY = Section(
    _build,
    Field(name="enabled", shape=Boolean(), is_required=True),
    Field(name="keys", shape=ListOf(KeyText())),
    may_be_empty=False,
)


def _resolve(key: DeclaredKey) -> str | None:
    """Give the text of a key that can be sent, or record why there is none."""
    stores = key.place.reading.stores
    if stores is None:
        return None  # the stores are at fault themselves
    try:
        text = key.template.expand(stores.resolve)
    except SecretError as exc:
        key.place.fault(key.line, str(exc))
        return None
    if problem := _transport_problem(text):
        key.place.fault(key.line, problem)
        return None
    return text


def _transport_problem(text: str) -> str:
    """Say why *text* cannot be sent in a header as one value; empty when it can."""
    if not text.strip():
        problem = "is blank"
    elif not text.isascii():
        problem = "holds a character outside ASCII"
    elif not text.isprintable():
        problem = "holds a control character, perhaps a line break at its end"
    elif text != text.strip():
        problem = "begins or ends with a space"
    elif "," in text:
        problem = "holds a comma"
    elif len(text) > MAX_LENGTH:
        problem = f"is longer than {MAX_LENGTH:,} characters"
    else:
        return ""
    return f"{problem}: such a key cannot be sent in a header as one value"


def _warn(keys: list[tuple[DeclaredKey, str]], line: int, place: Place) -> None:
    """Warn about keys that work and should not be used, by index, never by value."""
    first_of: dict[str, str] = {}
    for key, text in keys:
        if len(text) < MIN_GOOD_LENGTH:
            key.place.warn(key.line, f"is shorter than {MIN_GOOD_LENGTH} characters, so that it can be guessed")
        if is_trivial(text):
            key.place.warn(key.line, "is a well-known word, a sequence or a repetition, so that it can be guessed")
        if text.endswith((":ro", ":rw")):
            key.place.warn(key.line, "ends with :ro or :rw, which is part of the key here and grants or denies nothing")
        if text in first_of:
            key.place.warn(key.line, f"is the same key as {first_of[text]}")
        first_of.setdefault(text, key.place.path.removeprefix(f"{place.path}."))
    if place.reading.others_may_read and any(not key.template.references for key, _ in keys):
        sentence = "holds a literal key and other users can read the file: chmod 600 it, or use secret references"
        place.field("keys").warn(line, sentence)


def is_trivial(text: str) -> bool:
    """Say whether *text* is among what anybody tries first: a known word, a run of characters, a short repetition."""
    folded = text.lower()
    repeated_part = (folded * 2).find(folded, 1)
    return (
        _WELL_KNOWN_WORDS.fullmatch(folded) is not None
        or len(set(folded)) == 1
        or (repeated_part < len(folded) and repeated_part <= _LONGEST_REPEATED_PART)
        or any(folded in sequence for sequence in _SEQUENCES)
    )
