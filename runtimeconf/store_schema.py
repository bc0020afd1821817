"""The schema of `secrets`: a list of stores, whose kind is the text before the colon in `from`."""

from typing import Any, Final

from runtimeconf.fields import Field, InvalidValueError, ListField, ParsedField, Section, Setting, into
from runtimeconf.plugins import SECRET_STORES, PluginError
from runtimeconf.secret_stores import ALL_STORES, STORE_NAME, SecretStore, SecretStores
from runtimeconf.store_kinds import StoreEntry, StoreKind
from runtimeconf.validation import YamlPath, nearest
from runtimeconf.yaml_nodes import Mapping, Node, Scalar

#: Spice.ai stores that are not supported, with alternatives.
_ABSENT: Final = {"azure_keyvault": "is not supported: mount the secrets as files and write file"}

_BUILT_IN: Final = SECRET_STORES.built_in


def _written(name: str, kind: StoreKind) -> str:
    return name if kind.location is None else f"{name}:{kind.placeholder}"


def _expected() -> str:
    *first, last = (_written(name, kind) for name, kind in _BUILT_IN.items())
    return f"{', '.join(first)} or {last}"


def _parse_from(text: str) -> str:
    name, colon, location = text.partition(":")
    try:
        kind = SECRET_STORES.get(name)
    except PluginError as exc:
        raise InvalidValueError(f"the store {name} cannot be used: {exc}") from exc
    if kind is not None and kind.location is not None:
        if kind.location.fullmatch(location) is None:
            raise InvalidValueError(f"write {_instead(name, kind)}")
        return text
    if kind is not None and not colon:
        return text
    if name in _ABSENT:
        raise InvalidValueError(f"the store {name} {_ABSENT[name]}")
    for known, built_in in _BUILT_IN.items():
        if name == built_in.upstream_name:
            raise InvalidValueError(f"the store {name} is called {known} here: write {_instead(known, built_in)}")
    meant = nearest(name, SECRET_STORES)
    raise InvalidValueError(f"did you mean {meant}?" if meant else "no such store is installed")


def _instead(name: str, kind: StoreKind) -> str:
    return f"{name}: followed by the name of the secret, such as {name}:{kind.example}"


def _parse_name(text: str) -> str:
    if STORE_NAME.fullmatch(text) is None:
        raise InvalidValueError
    if text.lower() == ALL_STORES:
        raise InvalidValueError("the name secrets is reserved for searching all stores")
    return text


def _build_store(values: dict[str, Any], node: Mapping, path: YamlPath) -> SecretStore | None:
    name, _, location = values["from"].partition(":")
    kind, params = SECRET_STORES[name], values.get("params", {})
    entry = StoreEntry(values["name"], location, params, node, path)
    for param in params:
        if param not in kind.params:
            entry.fault(f"is not a parameter of the store {name}", "params", param)
    return kind.make(entry)


#: The parameters of all built-in kinds, by name.
_PARAMS: Final[dict[str, Field[Any]]] = {
    name: field for kind in _BUILT_IN.values() for name, field in kind.params.items()
}


def _params(fields: dict[str, Field[Any]]) -> Section[dict[str, Any]]:
    return Section(into(dict), *(Setting(name, field) for name, field in fields.items()))


class _StoreSection(Section[SecretStore]):
    """
    A store, whose kind declares its `params`.

    Parameters of other built-in kinds have their own error messages.
    """

    def field_in(self, node: Mapping, setting: Setting) -> Field[Any]:
        """Return the field that reads *setting*."""
        source = node.get("from")
        name = source.text.partition(":")[0] if isinstance(source, Scalar) else ""
        kind = SECRET_STORES.usable(name)
        if setting.name != "params" or kind is None or name in _BUILT_IN:
            return setting.field
        return _params({**_PARAMS, **kind.params})


class _StoresField(ListField[SecretStore]):
    """
    The list of stores. References can be resolved once it has been read without errors.

    Spicepods of version v1beta1 have a single store, `{store: env}`, and no references. That is also the default here.
    """

    def read(self, node: Node, path: YamlPath) -> tuple[SecretStore, ...] | None:
        validation = path.validation
        if isinstance(node, Mapping) and len(node.entries) == 1:
            only = node.get("store")
            if isinstance(only, Scalar) and only.text == "env":
                path.note(node.line, "It means a single store, {from: env, name: env}, which is the default.")
                return ()
        validation.stores = None
        faults_before = len(validation.faults)
        stores = super().read(node, path) or ()
        names: set[str] = set()
        for store in stores:
            if store.name in names:
                path.fault(node.line, f"the store name {store.name} is used twice: each store needs its own")
            names.add(store.name)
        if len(validation.faults) == faults_before:
            validation.stores = SecretStores(stores)
        return stores


SECRETS = _StoresField(
    _StoreSection(
        _build_store,
        Setting("from", ParsedField(_expected(), _parse_from), is_required=True),
        Setting(
            "name",
            ParsedField("a store name of letters, digits, _ and -, starting with a letter", _parse_name),
            is_required=True,
        ),
        Setting("params", _params(_PARAMS)),
    )
)
