"""
The schema of `datasets` and `views`.

The connector that `from` names decides which `params` are valid; `runtimeconf.connectors` declares them.
"""

import re
from dataclasses import replace
from typing import Any

from runtimeconf.connectors import ABSENT, CONNECTORS, Connector, Param, all_params
from runtimeconf.connectors import VIEW as CONNECTOR_OF_VIEWS
from runtimeconf.connectors.file_formats import kind_of, misplaced
from runtimeconf.fields import (
    BooleanField,
    ChoiceField,
    DurationField,
    Field,
    InvalidValueError,
    ParsedField,
    Section,
    Setting,
    TextField,
    into,
    refuse_unknown,
)
from runtimeconf.model import AccelerationConfig, DatasetConfig, IndexConfig, MaterializedView, ViewConfig
from runtimeconf.references import holds_reference
from runtimeconf.validation import YamlPath, shown_name
from runtimeconf.yaml_reader import Mapping, Node, Scalar

MAX_SQL_LENGTH = 100_000
MAX_COLUMN_LENGTH = 1000

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RESERVED_NAMES = frozenset({"information_schema", "pg_catalog", "runtime", "main"})
_RESERVED_PREFIXES = ("_catalog", "duckdb_", "pg_", "sqlite_", "pragma_")
_RESERVED_SNAPSHOT = re.compile(r"_s(?:[0-9]+|[0-9a-f]{12})")

_PARAM_NAMES = frozenset(param.name for param in all_params())


def parse_relation_name(text: str) -> str:
    """Return *text* if it is a valid name of a dataset or view. Raises InvalidValueError."""
    if IDENTIFIER.fullmatch(text) is None:
        raise InvalidValueError
    folded = text.lower()
    is_reserved = folded in _RESERVED_NAMES or folded.startswith(_RESERVED_PREFIXES)
    if is_reserved or _RESERVED_SNAPSHOT.fullmatch(folded):
        raise InvalidValueError("the engine reserves this name")
    return text


#: The name of a dataset or view in SQL.
RELATION_NAME = ParsedField(
    "a name of letters, digits and _, no digit first, 63 characters at most", parse_relation_name
)


class _SourceField(TextField):
    """`from:` of a dataset: a connector, a colon, and the location for the connector."""

    def __init__(self) -> None:
        super().__init__("a connector and where the data is, such as file:data/flights.parquet", max_length=4096)

    def read(self, node: Node, path: YamlPath) -> str | None:
        # The text after the colon may be a connection string with a password.
        if isinstance(node, Scalar) and ":" in node.text:
            node = replace(node, may_be_shown=False)
        return super().read(node, path)

    def convert(self, node: Scalar) -> str:
        text = super().convert(node)
        name, separator, _ = text.partition(":")
        if not separator or re.fullmatch(r"[a-z][a-z0-9_+.-]*", name) is None:
            raise InvalidValueError("write file: before a path")
        if name not in CONNECTORS:
            reason = ABSENT.get(name) or f"the connectors are: {', '.join(CONNECTORS)}"
            raise InvalidValueError(f"the connector {name} is not supported; {reason}")
        return text


class _ParamField(Field[str]):
    """A parameter of a connector. Secret references in it are resolved before its field reads it."""

    def __init__(self, param: Param) -> None:
        self._param = param
        self.expected = param.field.expected

    def read(self, node: Node, path: YamlPath) -> str | None:
        if isinstance(node, Scalar):
            text = path.resolve(node)
            if text is None:
                return None
            is_reference = holds_reference(node.text)
            if self._param.is_secret and not is_reference and not node.is_null:
                path.warn(node.line, "is written out: a secret reference keeps it out of this file")
            is_hidden = self._param.is_hidden or self._param.is_secret or is_reference
            node = replace(node, text=text, may_be_shown=node.may_be_shown and not is_hidden)
        value = self._param.field.read(node, path)
        if value is None:
            return None
        return str(path.validation.directory / value if self._param.is_path else value)


class _ColumnNameField(TextField):
    """The name of one column. `(a, b)`, which names two columns in Spice.ai, is refused."""

    def __init__(self) -> None:
        super().__init__("the name of one column", max_length=MAX_COLUMN_LENGTH)

    def convert(self, node: Scalar) -> str:
        """Return the name unchanged."""
        if node.text.startswith("("):
            raise InvalidValueError("an index has one column")
        return super().convert(node)


class _IndexesField(Field[tuple[IndexConfig, ...]]):
    """`indexes:`, a mapping of columns to kinds of index."""

    expected = "a mapping of names of columns to enabled or unique"
    _column = _ColumnNameField()
    _kind = ChoiceField("enabled", "unique")

    def read(self, node: Node, path: YamlPath) -> tuple[IndexConfig, ...] | None:
        """Read the kind of each index. Whether the column exists is known when the data is loaded."""
        if not isinstance(node, Mapping):
            self.refuse(node, path)
            return None
        found = []
        for entry in node.entries:
            where = path.field(shown_name(entry.name))
            name = Scalar(entry.line, entry.name, is_plain=False, may_be_shown=entry.name_may_be_shown)
            column, kind = self._column.read(name, where), self._kind.read(entry.value, where)
            if column is not None and kind is not None:
                found.append(IndexConfig(column=column, unique=kind == "unique"))
        return tuple(found)


#: The parameters of all connectors. `_check_params` checks that the connector of the dataset has them.
_PARAMS = Section[dict[str, str]](
    into(dict), *(Setting(param.name, _ParamField(param)) for param in all_params()), refuses_unknown=False
)


def _build_dataset(values: dict[str, Any], node: Mapping, path: YamlPath) -> DatasetConfig | None:
    source: str = values.pop("from")
    name, _, rest = source.partition(":")
    connector = CONNECTORS[name]
    params: dict[str, str] = values.get("params", {})
    where = path.field("from")
    try:
        location = connector.locate(rest, path.validation.directory)
    except InvalidValueError as exc:
        hint = f" ({exc})" if str(exc) else ""
        where.fault(node.line_of("from"), f"must be {name}: and {connector.expected}{hint}")
        return None
    for package in connector.packages if path.validation.needs_libraries else ():
        if package.is_needed(location, params) and not package.is_installed:
            message = f"this source needs a library (the extra sources has it): {package.install_command}"
            where.fault(node.line_of("from"), message)
    _check_params(connector, location, params, node, path)
    _check_time_column(values, node, path)
    return DatasetConfig(from_=source, connector=name, location=location, line=node.line, yaml_path=path.text, **values)


def _check_params(connector: Connector, location: str, params: dict[str, str], node: Mapping, path: YamlPath) -> None:
    """Compare the given parameters with those of the connector."""
    section = node.get("params")
    written = section.entries if isinstance(section, Mapping) else ()
    where, known = path.field("params"), {param.name: param for param in connector.params}
    for entry in written:
        if entry.name not in known and entry.name not in _PARAM_NAMES:
            refuse_unknown(entry, {name: name for name in known}, where)
        elif entry.name not in known:
            names = ", ".join(known) or "none"
            message = f"is not a parameter of the connector {connector.name}; its parameters are: {names}"
            where.field(entry.name).fault(entry.line, message)
    unfit = misplaced(params, kind_of(location, params))
    for entry in written:
        if entry.name in unfit:
            where.field(entry.name).fault(entry.line, unfit[entry.name])
    given = {entry.name for entry in written}
    missing = [name for name, param in known.items() if param.is_required and name not in given]
    for name in missing:
        where.fault(node.line_of("params"), f"lacks the field {name}: {known[name].field.expected}")
    if missing or any(name in known and name not in params for name in given):
        return  # an invalid parameter is absent here, so the check below would be wrong
    problem = connector.check(location, params)
    if problem is not None:
        where.fault(node.line_of("params"), problem)


def _check_time_column(values: dict[str, Any], node: Mapping, path: YamlPath) -> None:
    """Check that `time_column` is given for append, the only mode that uses it."""
    mode = values.get("acceleration", AccelerationConfig()).refresh_mode
    if mode == "append" and "time_column" not in values:
        path.fault(node.line, "lacks the field time_column, which tells refresh_mode append which rows are newer")
    elif mode != "append" and "time_column" in values:
        where = path.field("time_column")
        where.warn(
            node.line_of("time_column"),
            "has no effect unless refresh_mode is append, here or in a request for a refresh",
        )


def _build_acceleration(values: dict[str, Any], node: Mapping, path: YamlPath) -> AccelerationConfig:
    acceleration = AccelerationConfig(**values)
    if acceleration.refresh_jitter_max_s is not None and not acceleration.refresh_jitter_enabled:
        where = path.field("refresh_jitter_max")
        where.warn(node.line_of("refresh_jitter_max"), "has no effect without refresh_jitter_enabled: true")
    return acceleration


_SQL = TextField("one SELECT statement", max_length=MAX_SQL_LENGTH, may_have_lines=True)

DATASET = Section[DatasetConfig](
    _build_dataset,
    Setting("from", _SourceField(), is_required=True),
    Setting("name", RELATION_NAME, is_required=True),
    Setting("on_schema_change", ChoiceField("fail", "accept")),
    Setting("required_for_ready", BooleanField()),
    Setting("time_column", TextField("the name of a column", max_length=MAX_COLUMN_LENGTH)),
    Setting("params", _PARAMS),
    Setting(
        "acceleration",
        Section(
            _build_acceleration,
            Setting("enabled", BooleanField()),
            Setting("refresh_mode", ChoiceField("full", "append")),
            Setting("refresh_check_interval", DurationField("100ms", "365d"), attribute="refresh_check_interval_s"),
            Setting("refresh_jitter_enabled", BooleanField()),
            Setting("refresh_jitter_max", DurationField("1ms", "365d"), attribute="refresh_jitter_max_s"),
            Setting("refresh_timeout", DurationField("1ms", "7d"), attribute="refresh_timeout_s"),
            Setting("refresh_sql", _SQL),
            Setting("primary_key", _ColumnNameField()),
            Setting("indexes", _IndexesField()),
        ),
    ),
)


def _build_view(values: dict[str, Any], node: Mapping, path: YamlPath) -> ViewConfig | DatasetConfig:
    is_materialized = values.pop("materialized", False)
    required_for_ready = values.pop("required_for_ready", None)
    view = ViewConfig(line=node.line_of("sql"), yaml_path=path.field("sql").text, **values)
    if not is_materialized:
        if required_for_ready is not None:
            message = "has no effect unless materialized is true: readiness waits for data only"
            path.field("required_for_ready").warn(node.line_of("required_for_ready"), message)
        return view
    return DatasetConfig(
        name=view.name,
        from_=f"{CONNECTOR_OF_VIEWS}:{view.name}",
        connector=CONNECTOR_OF_VIEWS,
        on_schema_change="accept",  # what it reads decides
        required_for_ready=required_for_ready is not False,
        acceleration=AccelerationConfig(),
        view=MaterializedView(sql=view.sql),
        line=view.line,
        yaml_path=view.yaml_path,
    )


VIEW = Section[ViewConfig | DatasetConfig](
    _build_view,
    Setting("name", RELATION_NAME, is_required=True),
    Setting("sql", _SQL, is_required=True),
    Setting("materialized", BooleanField()),
    Setting("required_for_ready", BooleanField()),
)
