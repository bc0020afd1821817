"""
The schema of `datasets` and `views`.

What `params` may hold depends on the connector that `from` names: `runtimeconf.connectors` declares both.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from runtimeconf import references
from runtimeconf.connectors import ABSENT, CONNECTORS, Connector, Param, all_params
from runtimeconf.fields import (
    Boolean,
    Choice,
    Duration,
    Field,
    ScalarShape,
    Section,
    Shape,
    Text,
    UnfitError,
    into,
    line_of,
)
from runtimeconf.model import AccelerationConfig, DatasetConfig, IndexConfig, ViewConfig
from runtimeconf.reading import Place, shown_name
from runtimeconf.references import MalformedReferenceError
from runtimeconf.secret_stores import SecretError
from runtimeconf.yaml_reader import Entry, Mapping, Node, Scalar

MAX_SQL_LENGTH = 100_000
MAX_COLUMN_LENGTH = 1000

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RESERVED_NAMES = frozenset({"information_schema", "pg_catalog", "runtime", "main"})
_RESERVED_PREFIXES = ("_catalog", "duckdb_", "pg_", "sqlite_", "pragma_")
_RESERVED_SNAPSHOT = re.compile(r"_s[0-9]+")

_PARAM_NAMES = frozenset(param.name for param in all_params())


class _RelationName(ScalarShape[str]):
    """The name of a dataset or view in SQL."""

    expected = "a name of letters, digits and _, no digit first, 63 characters at most"

    def convert(self, node: Scalar) -> str:
        if IDENTIFIER.fullmatch(node.text) is None:
            raise UnfitError
        folded = node.text.lower()
        is_reserved = folded in _RESERVED_NAMES or folded.startswith(_RESERVED_PREFIXES)
        if is_reserved or _RESERVED_SNAPSHOT.fullmatch(folded):
            raise UnfitError("the engine uses this name itself")
        return node.text


class _Source(Text):
    """`from:` of a dataset: a connector, a colon, and what the connector takes."""

    def __init__(self) -> None:
        super().__init__("a connector and where the data is, such as file:data/flights.parquet", max_length=4096)

    def read(self, node: Node, place: Place) -> str | None:
        # After a colon there may be a password, of what some connector elsewhere calls a connection string.
        if isinstance(node, Scalar) and ":" in node.text:
            node = replace(node, may_be_shown=False)
        return super().read(node, place)

    def convert(self, node: Scalar) -> str:
        text = super().convert(node)
        name, separator, _ = text.partition(":")
        if not separator or re.fullmatch(r"[a-z][a-z0-9_+.-]*", name) is None:
            raise UnfitError("write file: before a path")
        if name not in CONNECTORS:
            known = ABSENT.get(name) or f"known here are: {', '.join(CONNECTORS)}"
            raise UnfitError(f"the connector {name} is not supported, {known}")
        return text


class _Param(Shape[str]):
    """A parameter of a source, whose secret references are resolved before its shape reads it."""

    def __init__(self, param: Param) -> None:
        self._param = param
        self.expected = param.shape.expected

    def read(self, node: Node, place: Place) -> str | None:
        text = self._read(node, place)
        return str(place.reading.directory / text) if self._param.is_path and text is not None else text

    def _read(self, node: Node, place: Place) -> str | None:
        if not isinstance(node, Scalar):
            return self._param.shape.read(node, place)
        try:
            template = references.parse(node.text)
            if template.references and place.reading.stores is None:
                return None  # the stores are at fault themselves
            text = template.expand(place.reading.stores.resolve) if place.reading.stores else node.text
        except (MalformedReferenceError, SecretError) as exc:
            place.fault(node.line, str(exc))
            return None
        if self._param.is_secret and not template.references and not node.is_null:
            place.warn(node.line, "is written out: a secret reference keeps it out of this file")
        elif not template.references:
            return self._param.shape.read(node, place)
        hidden = Scalar(node.line, text, is_plain=node.is_plain, may_be_shown=False)
        return self._param.shape.read(hidden, place)


class _ColumnName(Text):
    """The name of one column. `(a, b)`, which means two where this format comes from, is none."""

    def __init__(self) -> None:
        super().__init__("the name of one column", max_length=MAX_COLUMN_LENGTH)

    def convert(self, node: Scalar) -> str:
        """Give the name as it is."""
        if node.text.startswith("("):
            raise UnfitError("an index has one column")
        return super().convert(node)


class _Indexes(Shape[tuple[IndexConfig, ...]]):
    """`indexes:`, columns with what they are to be."""

    expected = "a mapping of names of columns to enabled or unique"
    _column = _ColumnName()
    _kind = Choice("enabled", "unique")

    def read(self, node: Node, place: Place) -> tuple[IndexConfig, ...] | None:
        """Read the kind of each index; the data has to show whether it has the column."""
        if not isinstance(node, Mapping):
            if isinstance(node, Scalar) and node.is_null:
                place.fault(node.line, f"is empty: it must be {self.expected}, or be left out")
            else:
                place.fault(node.line, f"must be {self.expected}; found {place.found(node)}")
            return None
        found = []
        for entry in node.entries:
            where = place.field(shown_name(entry.name))
            name = Scalar(entry.line, entry.name, is_plain=False, may_be_shown=entry.name_may_be_shown)
            column, kind = self._column.read(name, where), self._kind.read(entry.value, where)
            if column is not None and kind is not None:
                found.append(IndexConfig(column=column, unique=kind == "unique"))
        return tuple(found)


class _Params(Section[dict[str, str]]):
    """The parameters of all connectors; which of them a dataset may have, its connector says."""

    def __init__(self) -> None:
        super().__init__(into(dict), *(Field(name=param.name, shape=_Param(param)) for param in all_params()))

    def refuse_unknown(self, entry: Entry, names: dict[str, str], place: Place) -> None:
        """Leave it to `_check_params`, which knows the connector, and so the names that may be meant."""


def _build_dataset(values: dict[str, Any], node: Mapping, place: Place) -> DatasetConfig | None:
    source: str = values.pop("from")
    name, _, rest = source.partition(":")
    connector = CONNECTORS[name]
    params: dict[str, str] = values.get("params", {})
    where = place.field("from")
    try:
        location = connector.locate(rest, place.reading.directory)
    except UnfitError as exc:
        hint = f" ({exc})" if str(exc) else ""
        where.fault(line_of(node, "from"), f"must be {name}: and {connector.expected}{hint}")
        return None
    for package in connector.packages:
        if location.startswith(package.only_for) and not package.is_installed:
            message = f"the connector {name} needs a library: {package.install_command}"
            where.fault(line_of(node, "from"), message)
    _check_params(connector, location, params, node, place)
    _check_time_column(values, node, place)
    return DatasetConfig(
        from_=source, connector=name, location=location, line=node.line, yaml_path=place.path, **values
    )


def _check_params(connector: Connector, location: str, params: dict[str, str], node: Mapping, place: Place) -> None:
    """Compare the parameters that are written with those that the connector has."""
    section = next((entry for entry in node.entries if entry.name == "params"), None)
    written = section.value.entries if section is not None and isinstance(section.value, Mapping) else ()
    where, known = place.field("params"), {param.name: param for param in connector.params}
    own = Section[dict[str, str]](into(dict), *(Field(name=name, shape=_Param(known[name])) for name in known))
    for entry in written:
        if entry.name not in known and entry.name not in _PARAM_NAMES:
            own.refuse_unknown(entry, {name: name for name in known}, where)
        elif entry.name not in known:
            names = ", ".join(known) or "none"
            message = f"is not a parameter of the connector {connector.name}, known there are: {names}"
            where.field(entry.name).fault(entry.line, message)
    given = {entry.name for entry in written}
    missing = [name for name, param in known.items() if param.is_required and name not in given]
    for name in missing:
        where.fault(line_of(node, "params"), f"lacks the field {name}: {known[name].shape.expected}")
    if missing or any(name in known and name not in params for name in given):
        return  # what is at fault already is absent here, which says nothing about the rest
    problem = connector.check(location, params)
    if problem is not None:
        where.fault(line_of(node, "params"), problem)


def _check_time_column(values: dict[str, Any], node: Mapping, place: Place) -> None:
    """Compare `time_column` with the mode: append goes by it; what upstream also uses it for is not here."""
    mode = values.get("acceleration", AccelerationConfig()).refresh_mode
    if mode == "append" and "time_column" not in values:
        place.fault(node.line, "lacks the field time_column: by it refresh_mode append tells which rows are newer")
    elif mode != "append" and "time_column" in values:
        where = place.field("time_column")
        where.warn(
            line_of(node, "time_column"),
            "has no effect unless refresh_mode is append, here or in a request for a refresh",
        )


def _build_acceleration(values: dict[str, Any], node: Mapping, place: Place) -> AccelerationConfig:
    acceleration = AccelerationConfig(**values)
    if acceleration.refresh_jitter_max_s is not None and not acceleration.refresh_jitter_enabled:
        where = place.field("refresh_jitter_max")
        where.warn(line_of(node, "refresh_jitter_max"), "has no effect without refresh_jitter_enabled: true")
    return acceleration


def _build_view(values: dict[str, Any], node: Mapping, place: Place) -> ViewConfig:
    return ViewConfig(line=line_of(node, "sql"), yaml_path=place.field("sql").path, **values)


DATASET = Section[DatasetConfig](
    _build_dataset,
    Field(name="from", shape=_Source(), is_required=True),
    Field(name="name", shape=_RelationName(), is_required=True),
    Field(name="on_schema_change", shape=Choice("fail", "accept")),
    Field(name="time_column", shape=Text("the name of a column", max_length=MAX_COLUMN_LENGTH)),
    Field(
        name="params",
        shape=_Params(),
    ),
    Field(
        name="acceleration",
        shape=Section(
            _build_acceleration,
            Field(name="enabled", shape=Boolean()),
            Field(name="refresh_mode", shape=Choice("full", "append")),
            Field(name="refresh_check_interval", attribute="refresh_check_interval_s", shape=Duration("100ms", "365d")),
            Field(name="refresh_jitter_enabled", shape=Boolean()),
            Field(name="refresh_jitter_max", attribute="refresh_jitter_max_s", shape=Duration("1ms", "365d")),
            Field(name="refresh_timeout", attribute="refresh_timeout_s", shape=Duration("1ms", "7d")),
            Field(
                name="refresh_sql",
                shape=Text("one SELECT statement", max_length=MAX_SQL_LENGTH, may_have_lines=True),
            ),
            Field(name="primary_key", shape=_ColumnName()),
            Field(name="indexes", shape=_Indexes()),
        ),
    ),
)

VIEW = Section[ViewConfig](
    _build_view,
    Field(name="name", shape=_RelationName(), is_required=True),
    Field(
        name="sql",
        shape=Text("one SELECT statement", max_length=MAX_SQL_LENGTH, may_have_lines=True),
        is_required=True,
    ),
)
