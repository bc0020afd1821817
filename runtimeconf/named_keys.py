"""
`runtime.auth.api-key.named_keys`: keys with their own name, expiry, datasets, permissions and limits.

No error shows a value. `check_datasets` checks that the datasets exist once all datasets are known.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from msgspec import Struct

from runtimeconf.fields import (
    ChoiceField,
    DurationField,
    Field,
    IntegerField,
    InvalidValueError,
    ListField,
    ScalarField,
    Section,
    Setting,
    SqlField,
    TextField,
    TextsField,
    into,
)
from runtimeconf.key_texts import KeyField, KeyText, resolve
from runtimeconf.model import WARNING_PERIOD, DatasetRule, KeyLimits, NamedKey, Scope
from runtimeconf.secret import Secret
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Node, Scalar, Sequence

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


class KeyNameField(ScalarField[str]):
    """The name of a key."""

    expected = "a name of 1 to 40 characters (a-z, 0-9 and -) that does not begin with -"

    def convert(self, node: Scalar) -> str:
        """Return the name."""
        if _NAME.fullmatch(node.text) is None:
            raise InvalidValueError
        return node.text


class Sha256Field(ScalarField[bytes]):
    """A SHA-256 digest (FIPS 180-4) in hexadecimal digits."""

    expected = "the SHA-256 of a key, 64 hexadecimal digits, as `apikey create` prints it"

    def convert(self, node: Scalar) -> bytes:
        """Return the 32 bytes."""
        if _SHA256.fullmatch(node.text) is None:
            raise InvalidValueError
        digest = bytes.fromhex(node.text)
        if digest == hashlib.sha256().digest():  # the digest of an empty text, for example from an unset variable
            raise InvalidValueError("this is the digest of an empty string, which no client can send")
        return digest


class ExpiryField(ScalarField[datetime]):
    """A date, valid to its end in UTC, or a date and time (ISO 8601). Without an offset, a time is UTC."""

    expected = "a date such as 2027-03-31, or a date and time such as 2027-03-31T12:00:00Z"

    def convert(self, node: Scalar) -> datetime:
        """Return the first moment at which the key is no longer accepted, in UTC."""
        text = node.text
        try:
            if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
                return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
            if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}[^\s]*", text) is None:
                raise InvalidValueError
            moment = datetime.fromisoformat(text.upper())
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except OverflowError:
            raise InvalidValueError("it is too far in the future: omit it for a key that never expires") from None
        except ValueError:
            raise InvalidValueError("no such date or time") from None


class DeclaredNamedKey(Struct, frozen=True):
    """A well-formed item of `named_keys` whose secret reference is not resolved yet."""

    values: dict[str, Any]
    line: int
    path: YamlPath


def _declared(values: dict[str, Any], node: Mapping, path: YamlPath) -> DeclaredNamedKey | None:
    present = [name for name in ("key", "sha256") if any(entry.name == name for entry in node.entries)]
    if len(present) != 1:
        found = "has both key and sha256" if present else "has neither key nor sha256"
        path.fault(node.line, f"{found}: write one of them")
        return None
    if present[0] not in values:
        return None  # it already has an error
    return DeclaredNamedKey(values, node.line, path)


def _rule(values: dict[str, Any], node: Mapping, path: YamlPath) -> DatasetRule | None:
    columns, masks = values.get("columns"), dict[str, str](values.get("masks", {}))
    if not any(node.get(name) is not None for name in ("row_filter", "columns", "masks")):
        path.fault(node.line, "has no row_filter, columns or masks: to allow a whole dataset, list only its name")
        return None
    if (listed := node.get("masks")) is not None and isinstance(listed, Mapping) and not listed.entries:
        path.field("masks").fault(listed.line, "is empty: fill it in, or omit it")
    for name, given in (("columns", columns or ()), ("masks", masks)):
        folded = [column.lower() for column in given]
        if repeated := sorted({column for column in folded if folded.count(column) > 1}):
            path.field(name).fault(node.line_of(name), f"lists a column twice: {repeated[0]}")
    if columns is not None and (hidden := sorted(masks.keys() - _spellings(columns, masks))):
        path.field("masks").fault(node.line_of("masks"), f"masks a column that is not among columns: {hidden[0]}")
    return DatasetRule(
        dataset=values["name"].lower(),
        row_filter=values.get("row_filter"),
        columns=columns,
        masks=tuple(sorted(masks.items())),
        line=node.line,
        yaml_path=path.text,
    )


def _spellings(columns: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the *names* that match one of the *columns*, ignoring case."""
    folded = {column.lower() for column in columns}
    return {name for name in names if name.lower() in folded}


_RELATION: TextField = TextField("the name of a dataset or view", max_length=200)
_COLUMN: TextField = TextField("the name of a column", max_length=200)
EXPRESSION = SqlField("a SQL expression on the dataset's columns", max_length=4000)

#: A dataset or view that a key may see partly.
DATASET_RULE = Section(
    _rule,
    Setting("name", _RELATION, is_required=True),
    Setting("row_filter", EXPRESSION),
    Setting("columns", ListField(_COLUMN, minimum=1)),
    Setting("masks", TextsField(EXPRESSION)),
    may_be_empty=False,
)


class ScopeField(Field[str | DatasetRule]):
    """A dataset or view that a key may see: its name, or a mapping that restricts it to a part."""

    expected = "a dataset or view name, or a mapping with name and row_filter, columns or masks"

    def read(self, node: Node, path: YamlPath) -> str | DatasetRule | None:
        """Read either form."""
        if isinstance(node, Mapping):
            return DATASET_RULE.read(node, path)
        return _RELATION.read(node, path)

    def walk(self, path: str) -> Iterator[tuple[str, Field[Any]]]:
        """Yield this field and the fields of the mapping."""
        yield from DATASET_RULE.walk(path)


#: The fields of `limits`.
LIMITS: dict[str, ScalarField[Any]] = {
    "requests_per_minute": IntegerField(1, 1_000_000),
    "concurrent": IntegerField(1, 10_000),
    "timeout": DurationField("1ms", "1d"),
}

#: An item of `named_keys`.
NAMED_KEY = Section(
    _declared,
    Setting("name", KeyNameField(), is_required=True),
    Setting("key", KeyField()),
    Setting("sha256", Sha256Field()),
    Setting("expires", ExpiryField(), attribute="expires_at"),
    Setting("datasets", ListField(ScopeField(), minimum=1)),
    Setting("rights", ListField(ChoiceField("query", "refresh"), minimum=1)),
    Setting(
        "limits",
        Section(
            into(KeyLimits),
            Setting("requests_per_minute", LIMITS["requests_per_minute"]),
            Setting("concurrent", LIMITS["concurrent"]),
            Setting("timeout", LIMITS["timeout"], attribute="timeout_s"),
            may_be_empty=False,
        ),
    ),
    may_be_empty=False,
)


def resolve_all(declared: Iterable[DeclaredNamedKey]) -> list[tuple[DeclaredNamedKey, NamedKey]]:
    """Return the keys whose references resolve. Record an error for every other key and for each repeated name."""
    lines: dict[str, int] = {}
    keys = []
    for item in declared:
        values = dict(item.values)
        name = values["name"]
        if name in lines:
            message = f"is also the name of the key on line {lines[name]}: names must be unique"
            item.path.field("name").fault(item.line, message)
        lines.setdefault(name, item.line)
        if "key" in values:
            text = resolve(values["key"])
            if text is None:
                continue
            values["key"] = Secret(text)
        if "rights" in values:
            values["rights"] = frozenset(values["rights"])
        if "datasets" in values:
            values["scope"] = _scope(values.pop("datasets"), item.path.field("datasets"))
        keys.append((item, NamedKey(**values)))
    return keys


def _scope(items: Iterable[str | DatasetRule], path: YamlPath) -> Scope:
    """Return the scope of the items of `datasets`. Record an error if a dataset is listed again with a rule."""
    names: set[str] = set()
    rules: dict[str, DatasetRule] = {}
    for item in items:
        name = item.lower() if isinstance(item, str) else item.dataset
        if isinstance(item, DatasetRule):
            if name in names:
                path.fault(item.line, "lists a dataset twice, so the key would see it in two ways")
            rules[name] = item
        elif name in rules:
            path.fault(rules[name].line, "lists a dataset twice, so the key would see it in two ways")
        names.add(name)
    return Scope(relations=frozenset(names), rules=tuple(rules[name] for name in sorted(rules)))


def refuse_repeated(keys: Iterable[tuple[KeyText, str]], named: Iterable[tuple[DeclaredNamedKey, NamedKey]]) -> None:
    """Record an error for each named key that equals one of *keys* or an earlier named key, because it is ambiguous."""
    first_of = {
        hashlib.sha256(text.encode()).digest(): f"an item of keys on line {node.line}" for (node, _), text in keys
    }
    for item, key in named:
        digest = key.sha256 if key.key is None else hashlib.sha256(key.key.reveal().encode()).digest()
        if digest in first_of:
            item.path.fault(item.line, f"is the same key as {first_of[digest]}: each entry needs its own key")
        elif digest is not None:
            first_of[digest] = f"the one on line {item.line}"


def check_datasets(root: Mapping, dependencies: Iterable[Mapping], path: YamlPath, *, in_cluster: bool) -> None:
    """
    Record an error for each item of `datasets:` that is not declared or that the engine cannot serve.

    *root* is the configuration, and *dependencies* are other files that declare datasets and views. An engine
    *in_cluster* can serve neither a part of a dataset nor a view.
    """
    files = (root, *dependencies)
    views = {name.text.lower() for file in files for name in _names(file.get("views"))}
    declared = views.union(name.text.lower() for file in files for name in _names(file.get("datasets")))
    node: Node | None = root
    for name in ("runtime", "auth", "api-key", "named_keys"):
        node = (node.get(name) or node.get(name.replace("-", "_"))) if isinstance(node, Mapping) else None
        path = path.field(name)
    for number, key in enumerate(_items(node)):
        listed = key.get("datasets") if isinstance(key, Mapping) else None
        for index, item in enumerate(_items(listed)):
            where = path.item(number).field("datasets").item(index)
            if in_cluster and isinstance(item, Mapping):
                where.fault(
                    item.line,
                    "limits rows, columns or values, which is not supported with runtime.engine: list only the name",
                )
            named = item.get("name") if isinstance(item, Mapping) else item
            if not isinstance(named, Scalar):
                continue  # already recorded as an error
            if named.text.lower() not in declared:
                where.fault(named.line, "is not the name of a declared dataset")
            elif in_cluster and named.text.lower() in views:
                reason = "with runtime.engine, error messages could reveal the values that it leaves out"
                where.fault(named.line, f"names a view: {reason}. Write a part of a dataset to separate files instead")


def _names(listed: Node | None) -> Iterator[Scalar]:
    """Yield the names of the items."""
    for item in _items(listed):
        if isinstance(item, Mapping) and isinstance(name := item.get("name"), Scalar):
            yield name


def _items(listed: Node | None) -> tuple[Node, ...]:
    return listed.items if isinstance(listed, Sequence) else ()


def check_expiry(declared: Iterable[DeclaredNamedKey], now: datetime, path: YamlPath, *, others: bool) -> None:
    """
    Warn about keys that have expired or will expire soon.

    Record an error if all have expired and there are no *others*. *path* is the path of the section.
    """
    moments = [(item, item.values.get("expires_at")) for item in declared]
    for item, moment in moments:
        if moment is not None and moment <= now + WARNING_PERIOD:
            shown = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            sentence = f"expired at {shown}: this key can no longer be used" if moment <= now else f"expires at {shown}"
            item.path.field("expires").warn(item.line, sentence)
    if moments and not others and all(moment is not None and moment <= now for _, moment in moments):
        path.field("named_keys").fault(moments[0][0].line, "has no usable keys: all of them have expired")
