"""`runtime.snapshots`: the object storage through which nodes share their snapshots."""

import re
from dataclasses import replace
from typing import Any

from runtimeconf.connector import Package
from runtimeconf.dataset_schema import params_section
from runtimeconf.fields import ChoiceField, DurationField, InvalidValueError, ParsedField, Section, Setting
from runtimeconf.model import SnapshotsConfig
from runtimeconf.s3 import S3Params, parse_location
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_reader import Mapping, Node, Scalar

#: The library for object storage. It is imported only by the process that refreshes.
OBJECT_STORE = Package("obstore", "obstore~=0.12")

#: A part of the prefix. It is also a part of URLs, in which clusters read other characters in their own ways.
_PART = re.compile(r"[A-Za-z0-9._=-]+")


def _parse_location(text: str) -> str:
    scheme, _, rest = text.partition(":")
    if scheme != "s3":
        raise InvalidValueError("write s3:// before the bucket")
    bucket, prefix = parse_location(rest)
    parts = prefix.strip("/").split("/")
    if not all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts):
        raise InvalidValueError("a prefix of its own after the bucket: letters, digits and . _ = - between slashes")
    return f"s3://{bucket}/{'/'.join(parts)}"


class _LocationField(ParsedField[str]):
    """The bucket and the prefix. An invalid one may hold a password, so no fault shows it."""

    def __init__(self) -> None:
        super().__init__("a bucket and a prefix for these nodes alone, such as s3://lake/querykeep", _parse_location)

    def read(self, node: Node, path: YamlPath) -> str | None:
        """Read it."""
        return super().read(replace(node, may_be_shown=False) if isinstance(node, Scalar) else node, path)


def _build(values: dict[str, Any], node: Mapping, path: YamlPath) -> SnapshotsConfig:
    config = SnapshotsConfig(**values)
    if path.validation.needs_libraries and not OBJECT_STORE.is_installed:
        path.fault(node.line, f"needs the library for object storage: {OBJECT_STORE.install_command}")
    path.validation.shares_snapshots = True
    path.validation.reads_sources = config.role != "follower"
    where, section = path.field("params"), node.get("params")
    given = {entry.name for entry in section.entries} if isinstance(section, Mapping) else set()
    if given <= set(config.params):  # Otherwise one is invalid, and is missing here.
        params = S3Params.of(config.params)
        problem = params.problem(config.location)
        if problem is None and params.s3_key is None and params.s3_auth != "iam_role":
            problem = "lacks credentials, because every node writes there: s3_key and s3_secret, or s3_auth: iam_role"
        if problem is not None:
            where.fault(node.line_of("params") or node.line, problem)
    return config


#: `runtime.snapshots`
SNAPSHOTS = Section[SnapshotsConfig](
    _build,
    Setting("location", _LocationField(), is_required=True),
    Setting("role", ChoiceField("publisher", "follower", "auto"), is_required=True),
    Setting("params", params_section(S3Params.declared.values())),
    Setting("poll", DurationField("100ms", "10s"), attribute="poll_s"),
    may_be_empty=False,
)
