"""
API keys in the configuration: literals and secret references.

A key that no client can send, or that is clearly a mistake (`null`, a misspelt reference), is an error. A weak key that
works causes a warning that names its path.
"""

import re
from collections.abc import Callable, Iterable

from runtimeconf.fields import Field
from runtimeconf.secret_stores import MalformedReferenceError, check_references, holds_reference
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Node, Scalar

MIN_GOOD_LENGTH = 16
#: HTTP servers and gRPC limit a header field to 8 KiB, including its name and the word `Bearer`.
MAX_LENGTH = 4096

_EMPTY_KEYS = frozenset({"", "~", "null"})
_LONGEST_REPEATED_PART = 4
# Possessive, with the longest word first, so that a hostile text cannot cause exponential backtracking.
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


#: Suffixes that Spice.ai interprets at the end of a configured key.
_SUFFIXES = (":ro", ":rw")
_SUFFIXED = "ends with :ro or :rw, which is part of the key here and does not grant or deny anything"
_INSTEAD = (
    "Spice strips the suffix: a key with :rw can also write and refresh, and any other key can only read. Here, add "
    "the key without the suffix to named_keys, with rights: [query] or rights: [query, refresh]"
)

#: Reasons why a text cannot be sent as one header value. The error names the first one that applies.
_TRANSPORT_PROBLEMS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("is blank", lambda text: not text.strip()),
    ("contains a non-ASCII character", lambda text: not text.isascii()),
    ("contains a control character, perhaps a trailing line break", lambda text: not text.isprintable()),
    ("begins or ends with a space", lambda text: text != text.strip()),
    ("contains a comma", lambda text: "," in text),
    (f"is longer than {MAX_LENGTH:,} characters", lambda text: len(text) > MAX_LENGTH),
)


#: The source text of a key, and its path.
KeyText = tuple[Scalar, YamlPath]


class KeyField(Field[KeyText]):
    """An item of `keys`: the source text of a scalar, not its YAML value. Its references are resolved later."""

    expected = "a key or a secret reference such as ${ secrets:name }"

    def read(self, node: Node, path: YamlPath) -> KeyText | None:
        """Check the text and its references without resolving them."""
        if not isinstance(node, Scalar):
            hint = 'a string that contains ": " must be quoted, and ${ secrets:name } has no space after the colon'
            path.fault(node.line, f"must be {self.expected}; found {path.found(node)} ({hint})")
            return None
        if node.text.strip().lower() in _EMPTY_KEYS:
            path.fault(node.line, f"is empty, blank or null: write {self.expected}, or remove the item")
            return None
        try:
            check_references(node.text)
        except MalformedReferenceError as exc:
            path.fault(node.line, str(exc))
            return None
        if not holds_reference(node.text) and not _can_be_sent(node.text, node.line, path):
            return None
        return node, path


def resolve(key: KeyText) -> str | None:
    """Return the key with its references resolved, or record an error and return None."""
    node, path = key
    text = path.resolve(node)
    return text if text is not None and _can_be_sent(text, node.line, path) else None


def _can_be_sent(text: str, line: int, path: YamlPath) -> bool:
    """Return True if *text* can be sent as one header value; otherwise record an error."""
    problem = next((problem for problem, applies in _TRANSPORT_PROBLEMS if applies(text)), None)
    if problem is not None:
        path.fault(line, f"{problem}: such a key cannot be sent as a single header value")
    return problem is None


def warn_of_weak(keys: Iterable[tuple[KeyText, str]], path: YamlPath) -> None:
    """Warn about weak keys by their paths below *path*, never by value."""
    first_of: dict[str, str] = {}
    for (node, where), text in keys:
        if len(text) < MIN_GOOD_LENGTH:
            where.warn(node.line, f"is shorter than {MIN_GOOD_LENGTH} characters, so it can be guessed")
        if is_trivial(text):
            where.warn(node.line, "is a common word, a sequence or a repetition, so it can be guessed")
        if node.text.endswith(_SUFFIXES):
            where.warn(node.line, f"{_SUFFIXED}. {_INSTEAD}")
            where.note(node.line, _INSTEAD, is_warned=True)
        elif text.endswith(_SUFFIXES):  # Spice.ai does not interpret a suffix in the value of a secret.
            where.warn(node.line, _SUFFIXED)
        if where.validation.others_may_read and not holds_reference(node.text):
            where.warn(
                node.line,
                "is a literal key, but other users can read the file: chmod 600 it, or use a secret reference",
            )
        if text in first_of:
            where.warn(node.line, f"is the same key as {first_of[text]}")
        first_of.setdefault(text, where.text.removeprefix(f"{path.text}."))


def is_trivial(text: str) -> bool:
    """Return True if *text* is easily guessed: a known word, a run of characters, or a short repetition."""
    folded = text.lower()
    repeated_part = (folded * 2).find(folded, 1)
    return (
        _WELL_KNOWN_WORDS.fullmatch(folded) is not None
        or len(set(folded)) == 1
        or (repeated_part < len(folded) and repeated_part <= _LONGEST_REPEATED_PART)
        or any(folded in sequence for sequence in _SEQUENCES)
    )
