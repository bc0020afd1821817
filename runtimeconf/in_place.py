"""Which datasets a cluster can read where they are. It reads them with credentials of its own."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from runtimeconf.file_formats import kind_of
from runtimeconf.plugins import CONNECTORS
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Mapping as MappingNode

#: The option of the cluster's CSV reader for each parameter.
CSV_OPTIONS: Final[Mapping[str, str]] = {
    "csv_has_header": "header",
    "csv_delimiter": "sep",
    "csv_quote": "quote",
    "csv_escape": "escape",
}

#: Locations become URLs, in which engines escape these or not.
_AMBIGUOUS: Final = re.compile("[#%?]")

_PARAMS = frozenset({"file_format", *CSV_OPTIONS})


def format_of(connector: str, location: str, params: Mapping[str, Any]) -> str | None:
    """Return the cluster's name for the format of a dataset; None if it is unknown or cannot be read there."""
    formats = CONNECTORS[connector].formats_in_place
    # Some tables have one format for files of any name.
    found = formats[0] if len(formats) == 1 else kind_of(location, params.get("file_format"))
    return found if found in formats else None


def is_read_in_place(
    connector: str, location: str, values: Mapping[str, Any], node: MappingNode, path: YamlPath
) -> bool:
    """
    Say whether the cluster reads a dataset where it is.

    What it cannot read so is loaded and published in the storage of `runtime.snapshots`; without that, each reason is
    recorded as a fault.
    """
    reasons = list(_reasons(connector, location, values, node))
    if path.validation.shares_snapshots:
        return not reasons
    for name, section, reason in reasons:
        where = path.field(section) if section == name else path.field(section).field(name)
        where.fault(node.line_of(section), f"{reason}; with runtime.snapshots, the runtime loads it")
    return True


def _reasons(
    connector: str, location: str, values: Mapping[str, Any], node: MappingNode
) -> Iterator[tuple[str, str, str]]:
    """Yield why the cluster cannot read a dataset in place: the field, the section that it is in, and the reason."""
    section = node.get("params")
    # As written: a follower leaves out those with references.
    params = {entry.name for entry in section.entries} if isinstance(section, MappingNode) else set()
    formats = CONNECTORS[connector].formats_in_place
    if not formats:
        others = [name for name, one in CONNECTORS.built_in.items() if one.formats_in_place]
        yield "from", "from", f"cannot be read by the runtime.engine cluster: use {', '.join(others)}"
    elif format_of(connector, location, values.get("params", {})) is None:
        named = " or ".join(formats)
        reason = f"must name {named} files for the runtime.engine cluster; set the format in params: file_format"
        yield "from", "from", reason
    elif found := _AMBIGUOUS.search(location):
        yield "from", "from", f"has a {found[0]} in it, which clusters interpret differently"
    for name in sorted(params - _PARAMS):
        yield name, "params", "has no effect: the runtime.engine cluster reads this dataset with its own settings"
    acceleration = values.get("acceleration")
    if acceleration is not None and acceleration.enabled:
        yield (
            "acceleration",
            "acceleration",
            "is not supported with runtime.engine: the cluster reads the data in place",
        )
    if values.get("time_column") is not None:
        yield "time_column", "time_column", "is not supported with runtime.engine: the cluster reads the data in place"
