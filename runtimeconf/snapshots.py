"""`runtime.snapshots`: the storage through which nodes share their snapshots."""

from typing import Any

from runtimeconf.dataset_schema import params_section
from runtimeconf.fields import ChoiceField, DurationField, Field, InvalidValueError, ParsedField, Section, Setting
from runtimeconf.model import SnapshotsConfig
from runtimeconf.plugins import SNAPSHOT_STORES, PluginError
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Scalar


def _locate(text: str) -> str:
    name, colon, _ = text.partition(":")
    if not colon or name not in SNAPSHOT_STORES:
        known = ", ".join(f"{one}:" for one in SNAPSHOT_STORES)
        raise InvalidValueError(f"it must begin with one of {known}" if known else "no snapshot store is installed")
    try:
        return SNAPSHOT_STORES[name].locate(text)
    except PluginError as exc:
        raise InvalidValueError(f"the snapshot store {name} cannot be used: {exc}") from exc


#: The storage and the path in it. An invalid location may contain a password.
_LOCATION = ParsedField(
    "a storage location used only by these nodes, such as s3://lake/querykeep", _locate, is_hidden=True
)


class _SnapshotsSection(Section[SnapshotsConfig]):
    """The store named in `location` declares the `params`. For an unknown store, all known parameters are valid."""

    def field_in(self, node: Mapping, setting: Setting) -> Field[Any]:
        """Return the field that reads *setting*."""
        location = node.get("location")
        name = location.text.partition(":")[0] if isinstance(location, Scalar) else ""
        store = SNAPSHOT_STORES.usable(name)
        if setting.name != "params" or store is None:
            return setting.field
        return params_section(store.params.declared.values())


def _build(values: dict[str, Any], node: Mapping, path: YamlPath) -> SnapshotsConfig:
    config = SnapshotsConfig(**values)
    store = SNAPSHOT_STORES[config.store]
    for package in store.packages if path.validation.needs_libraries else ():
        if package.is_needed(config.location, config.params) and not package.is_installed:
            path.fault(node.line, f"needs the library for this storage: {package.install_command}")
    path.validation.shares_snapshots = True
    path.validation.reads_sources = config.role != "follower"
    where, section = path.field("params"), node.get("params")
    given = {entry.name for entry in section.entries} if isinstance(section, Mapping) else set()
    missing = [param for param in store.params.declared.values() if param.is_required and param.name not in given]
    for param in missing:
        where.fault(node.line_of("params") or node.line, f"lacks the field {param.name}: {param.field.expected}")
    if not missing and given <= set(config.params):  # Otherwise a parameter is invalid and therefore missing here.
        problem = store.params.of(config.params).problem(config.location)
        if problem is not None:
            where.fault(node.line_of("params") or node.line, problem)
    return config


_PARAMS = [param for store in SNAPSHOT_STORES.built_in.values() for param in store.params.declared.values()]

#: `runtime.snapshots`
SNAPSHOTS = _SnapshotsSection(
    _build,
    Setting("location", _LOCATION, is_required=True),
    Setting("role", ChoiceField("publisher", "follower", "auto"), is_required=True),
    Setting("params", params_section(_PARAMS, refuses_unknown=False)),
    Setting("poll", DurationField("100ms", "10s"), attribute="poll_s"),
    may_be_empty=False,
)
