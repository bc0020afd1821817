"""Decides which datasets a cluster reads in place. The cluster reads them with its own credentials."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from runtimeconf.file_formats import kind_of
from runtimeconf.plugins import CONNECTORS
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping as MappingNode

#: The option of the cluster's CSV reader for each parameter.
CSV_OPTIONS: Final[Mapping[str, str]] = {
    "csv_has_header": "header",
    "csv_delimiter": "sep",
    "csv_quote": "quote",
    "csv_escape": "escape",
}

#: Locations become URLs, in which some engines escape these characters and others do not.
_AMBIGUOUS: Final = re.compile("[#%?]")

_PARAMS = frozenset({"file_format", *CSV_OPTIONS})


def format_of(connector: str, location: str, params: Mapping[str, Any]) -> str | None:
    """Return the cluster's name for the format of a dataset; None if the format is unknown or unsupported there."""
    formats = CONNECTORS[connector].formats_in_place
    # Some connectors have a single format, regardless of file names.
    found = formats[0] if len(formats) == 1 else kind_of(location, params.get("file_format"))
    return found if found in formats else None


def is_read_in_place(
    connector: str, location: str, values: Mapping[str, Any], node: MappingNode, path: YamlPath
) -> bool:
    """
    Return True if the cluster reads a dataset in place.

    Any other dataset is loaded and published in the `runtime.snapshots` storage. Without that storage, each reason is
    recorded as an error.
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
    """Yield each reason why the cluster cannot read a dataset in place, with the field and its section."""
    section = node.get("params")
    # Use the parameters as written, because a follower omits parameters with references.
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
