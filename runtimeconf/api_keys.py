"""`runtime.auth.api-key`: the accepted keys and their permissions."""

from datetime import UTC, datetime
from typing import Any

from runtimeconf import named_keys
from runtimeconf.fields import BooleanField, ListField, Section, Setting
from runtimeconf.key_texts import KeyField, KeyText, resolve, warn_of_weak
from runtimeconf.model import AuthConfig
from runtimeconf.named_keys import NAMED_KEY, DeclaredNamedKey
from runtimeconf.secret import Secret
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Sequence


def _build(values: dict[str, Any], node: Mapping, path: YamlPath) -> AuthConfig:
    """Resolve the keys if authentication is on. If it is off, no secret is read."""
    if not values["enabled"]:
        return AuthConfig(enabled=False, allows_anybody=True)
    listed = node.get("keys")
    is_empty = listed is None or (isinstance(listed, Sequence) and not listed.items)
    if is_empty and (listed is not None or node.get("named_keys") is None):
        line = node.line if listed is None else listed.line
        path.field("keys").fault(line, "has no keys, but enabled is true: list at least one")
    keys: list[tuple[KeyText, str]] = [
        (key, text) for key in values.get("keys", ()) if (text := resolve(key)) is not None
    ]
    declared: tuple[DeclaredNamedKey, ...] = values.get("named_keys", ())
    named = named_keys.resolve_all(declared)
    named_keys.refuse_repeated(keys, named)
    named_keys.check_expiry(declared, datetime.now(UTC), path, others=bool(values.get("keys")))
    texts = [(item.values["key"], key.key.reveal()) for item, key in named if key.key is not None]
    warn_of_weak([*keys, *texts], path)
    return AuthConfig(
        enabled=True,
        keys=tuple(Secret(text) for _, text in keys),
        named_keys=tuple(key for _, key in named),
        rules=tuple(rule for _, key in named if key.scope is not None for rule in key.scope.rules),
    )


#: `runtime.auth.api-key`
API_KEY = Section(
    _build,
    Setting("enabled", BooleanField(), is_required=True),
    Setting("keys", ListField(KeyField())),
    Setting("named_keys", ListField(NAMED_KEY, minimum=1)),
    may_be_empty=False,
)
