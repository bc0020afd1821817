"""
The schema of `datasets` and `views`.

The connector that `from` names declares which `params` are valid: see `runtimeconf.connector`.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, get_args

from msgspec.structs import replace

from runtimeconf.acceleration_schema import ACCELERATION, COLUMN_NAME, SQL, VIEW_ACCELERATION
from runtimeconf.connector import Param
from runtimeconf.fields import (
    BooleanField,
    ChoiceField,
    Field,
    InvalidValueError,
    ListField,
    ParsedField,
    Section,
    Setting,
    TextField,
    TextsField,
    into,
    refuse_unknown,
)
from runtimeconf.file_formats import kind_of, misplaced
from runtimeconf.in_place import is_read_in_place
from runtimeconf.model import (
    LOCALPOD,
    AccelerationConfig,
    DatasetConfig,
    Documentation,
    MaterializedView,
    TimeFormat,
    ViewConfig,
)
from runtimeconf.plugins import CONNECTORS, PluginError
from runtimeconf.plugins import VIEW as CONNECTOR_OF_VIEWS
from runtimeconf.secret_stores import holds_reference
from runtimeconf.validation import YamlPath, nearest
from runtimeconf.yaml_nodes import Mapping, Node, Scalar, Sequence

#: A name, optionally preceded by a schema name and a dot.
IDENTIFIER = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}")
_RESERVED_NAMES = frozenset({"information_schema", "pg_catalog", "runtime", "main"})
_RESERVED_SCHEMAS = frozenset({"system", "temp", "memory", "recurring", "_copies", "_macros"})
#: Name prefixes that the engine uses, with the objects that have such names.
_RESERVED_PREFIXES = {
    "_catalog": "the engine's table catalogs",
    "duckdb_": "the engine's own tables",
    "pg_": "the engine's system tables, as in PostgreSQL",
    "pragma_": "the engine's pragma functions",
    "sqlite_": "the engine's system tables, as in SQLite",
}
_RESERVED_SNAPSHOT = re.compile(r"_s(?:[0-9]+|[0-9a-f]{12})")

#: Connectors that users look for but that do not exist, with the reason and an alternative.
ABSENT = {
    "mariadb": "it uses the MySQL protocol: write mysql:",
    **dict.fromkeys(("dremio", "spiceai", "spice.ai"), "it supports Flight SQL: write flightsql:"),
    **dict.fromkeys(("smb", "nfs"), "copy the files to a local disk and write file:"),
    **dict.fromkeys(("databricks", "unity_catalog"), "read the table's files with delta_lake:"),
    **dict.fromkeys(("glue", "hadoop_catalog"), "read the table's files with iceberg:"),
    **dict.fromkeys(
        ("clickhouse", "dynamodb", "elasticsearch", "mongodb", "odbc", "oracle", "redshift", "scylladb"),
        "export the table to Parquet and write file: or s3:",
    ),
    **dict.fromkeys(("bigquery", "snowflake"), "export the table to Parquet and write file: or s3:"),
    **dict.fromkeys(("debezium", "kafka"), "have a consumer write files, and append from them"),
    **dict.fromkeys(("git", "github", "imap", "sharepoint"), "have a job export the data to files, and write file:"),
    **dict.fromkeys(("memory", "sink"), "clients cannot write to the runtime"),
}


def parse_relation_name(text: str) -> str:
    """Return *text* if it is a valid dataset or view name. Raises InvalidValueError."""
    if IDENTIFIER.fullmatch(text) is None:
        raise InvalidValueError
    schema, _, name = text.lower().rpartition(".")
    for part in (schema, name):
        if part in _RESERVED_NAMES:
            raise InvalidValueError("the engine reserves this name")
        for prefix, what in _RESERVED_PREFIXES.items():
            if part.startswith(prefix):
                raise InvalidValueError(f"names that begin with {prefix} are reserved for {what}")
        if _RESERVED_SNAPSHOT.fullmatch(part):
            raise InvalidValueError(f"names such as {part} are reserved for the engine's snapshots")
    if schema in _RESERVED_SCHEMAS:
        raise InvalidValueError("the engine reserves this name")
    return text


#: The name of a dataset or view in SQL.
RELATION_NAME = ParsedField(
    "a name of letters, digits and _, not starting with a digit, at most 63 characters", parse_relation_name
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
        if text.startswith("spice.ai/"):  # Spice.ai's syntax for its cloud connector
            name, separator = "spice.ai", ":"
        if not separator or re.fullmatch(r"[a-z][a-z0-9_+.-]*", name) is None:
            raise InvalidValueError("write file: before a path")
        if name == LOCALPOD and IDENTIFIER.fullmatch(text.partition(":")[2]) is None:
            raise InvalidValueError(f"write {LOCALPOD}: and the name of another dataset")
        if name not in CONNECTORS and name != LOCALPOD:
            meant = nearest(name, CONNECTORS)
            known = f"the connectors are: {', '.join(CONNECTORS)}"
            reason = ABSENT.get(name) or (f"did you mean {meant}:? {known}" if meant else known)
            raise InvalidValueError(f"the connector {name} is not supported; {reason}")
        if name in CONNECTORS:
            try:
                CONNECTORS[name]
            except PluginError as exc:
                raise InvalidValueError(f"the connector {name} cannot be used: {exc}") from exc
        return text


class ParamField(Field[Any]):
    """
    A connector parameter. Secret references in it are resolved before its field reads it.

    If this node does not read sources, a parameter with a reference is omitted, so that the secret need not exist.
    """

    def __init__(self, param: Param) -> None:
        self._param = param
        self.expected = param.field.expected

    def read(self, node: Node, path: YamlPath) -> Any | None:
        """Read the parameter and make paths absolute."""
        if isinstance(node, Scalar) and not self._param.is_code:
            if not path.validation.reads_sources and holds_reference(node.text):
                return None
            text = path.resolve(node)
            if text is None:
                return None
            is_reference = holds_reference(node.text)
            if self._param.is_secret and not is_reference and not node.is_null:
                path.warn(node.line, "is in plain text: use a secret reference to keep it out of this file")
            is_hidden = self._param.is_hidden or self._param.is_secret or is_reference
            node = replace(node, text=text, may_be_shown=node.may_be_shown and not is_hidden)
        value = self._param.field.read(node, path)
        if value is None:
            return None
        return str(path.validation.directory / value) if self._param.is_path else value


def params_section(params: Iterable[Param], *, refuses_unknown: bool = True) -> Section[dict[str, Any]]:
    """Return a section with these parameters."""
    settings = (Setting(param.name, ParamField(param)) for param in params)
    return Section[dict[str, Any]](into(dict), *settings, refuses_unknown=refuses_unknown)


@cache
def _all_params() -> dict[str, Param]:
    """Return the parameters of all built-in connectors, by name. Importing all of them takes 30 ms of CPU."""
    found = [param for connector in CONNECTORS.built_in.values() for param in connector.params.declared.values()]
    return {param.name: param for param in reversed(found)}


class _ParamsSection(Section[dict[str, Any]]):
    """Stands for the parameters of any connector."""

    def walk(self, path: str) -> Iterator[tuple[str, Field[Any]]]:
        """Yield the parameters of all built-in connectors."""
        return params_section(_all_params().values()).walk(path)


class _DatasetSection(Section[DatasetConfig]):
    """
    A dataset, whose connector declares its `params`.

    If `from` names an unknown connector, all known parameters are valid.
    """

    def field_in(self, node: Mapping, setting: Setting) -> Field[Any]:
        """Return the field that reads *setting*."""
        source = node.get("from")
        name = source.text.partition(":")[0] if isinstance(source, Scalar) else ""
        connector = CONNECTORS.usable(name)
        if setting.name != "params":
            return setting.field
        declared = _all_params() if connector is None else connector.params.declared
        # `_check_params` refuses unknown ones.
        return params_section(declared.values(), refuses_unknown=False)


def _build_dataset(values: dict[str, Any], node: Mapping, path: YamlPath) -> DatasetConfig | None:
    source: str = values.pop("from")
    name, _, rest = source.partition(":")
    for checked in ("access", "mode", "unsupported_type_action", "check_availability"):
        values.pop(checked, None)  # These settings state what is always the case.
    if values.pop("ready_state", "on_load") == "on_registration":
        sentence = "It is required_for_ready: false. Until the dataset is loaded, queries on it get 503."
        path.field("ready_state").note(node.line_of("ready_state"), sentence)
        values["required_for_ready"] = False
    values["documentation"] = _documentation(values, node, path)
    if name == LOCALPOD:
        return _build_localpod(source, values, node, path)
    connector = CONNECTORS[name]
    params: dict[str, Any] = values.get("params", {})
    where = path.field("from")
    try:
        location = connector.locate(name, rest, path.validation.directory)
    except InvalidValueError as exc:
        hint = f" ({exc})" if str(exc) else ""
        where.fault(node.line_of("from"), f"must be {name}: and {connector.expected}{hint}")
        return None
    is_in_place = path.validation.reads_in_place and is_read_in_place(name, location, values, node, path)
    needs_libraries = path.validation.needs_libraries and path.validation.reads_sources and not is_in_place
    for package in connector.packages if needs_libraries else ():
        if package.is_needed(location, params) and not package.is_installed:
            message = f"this source needs a library from the sources extra: {package.install_command}"
            where.fault(node.line_of("from"), message)
    _check_params(name, location, params, node, path)
    _check_time_column(values, node, path)
    return DatasetConfig(
        from_=source,
        connector=name,
        location=location,
        is_in_place=is_in_place,
        line=node.line,
        yaml_path=path.text,
        **values,
    )


def _build_localpod(source: str, values: dict[str, Any], node: Mapping, path: YamlPath) -> DatasetConfig | None:
    """Return a dataset derived from another dataset, as a materialized view."""
    if path.validation.reads_in_place:
        message = f"{LOCALPOD} is not supported with runtime.engine: declare a view with the same name"
        path.field("from").fault(node.line_of("from"), message)
    acceleration: AccelerationConfig = values.get("acceleration", AccelerationConfig())
    instead = (
        "a localpod dataset is a copy of another dataset: to transform its data, declare a view with materialized: true"
    )
    for field in ("on_schema_change", "on_empty", "time_column", "time_format", "params"):
        if field in values:
            path.field(field).fault(node.line_of(field), f"is not available with localpod: {instead}")
    interval_s = acceleration.refresh_check_interval_s
    if acceleration != AccelerationConfig(enabled=acceleration.enabled, refresh_check_interval_s=interval_s):
        message = "accepts only enabled, engine, mode, params and refresh_check_interval with localpod"
        path.field("acceleration").fault(node.line_of("acceleration"), f"{message}: {instead}")
    path.field("from").note(
        node.line_of("from"),
        "The dataset is a materialized view of the other dataset and is refreshed whenever that dataset is.",
    )
    view = ViewConfig(
        name=values["name"],
        sql="FROM " + ".".join(f'"{part}"' for part in source.partition(":")[2].split(".")),
        documentation=values["documentation"],
        line=node.line,
        yaml_path=path.field("from").text,
    )
    return _materialized(view, source, required_for_ready=values.get("required_for_ready", True))


def _check_params(name: str, location: str, params: dict[str, Any], node: Mapping, path: YamlPath) -> None:
    """Compare the given parameters with the parameters of the connector."""
    section = node.get("params")
    written = section.entries if isinstance(section, Mapping) else ()
    where, known = path.field("params"), CONNECTORS[name].params.declared
    for entry in written:
        if entry.name in known:
            continue
        if entry.name not in _all_params():
            refuse_unknown(entry, {one: one for one in known}, where)
        else:
            names = ", ".join(known) or "none"
            message = f"is not a parameter of the connector {name}; its parameters are: {names}"
            where.field(entry.name).fault(entry.line, message)
    unfit = misplaced(params, kind_of(location, params.get("file_format")))
    for entry in written:
        if entry.name in unfit:
            where.field(entry.name).fault(entry.line, unfit[entry.name])
    given = {entry.name for entry in written}
    missing = [one for one, param in known.items() if param.is_required and one not in given]
    for one in missing:
        where.fault(node.line_of("params"), f"lacks the field {one}: {known[one].field.expected}")
    if missing or any(one in known and one not in params for one in given):
        return  # an invalid parameter is absent here, so the check below would be wrong
    problem = CONNECTORS[name].params.of(params).problem(location)
    if problem is not None:
        where.fault(node.line_of("params"), problem)


def _check_time_column(values: dict[str, Any], node: Mapping, path: YamlPath) -> None:
    """Check that `time_column` is set if it is needed, and that it is used if it is set."""
    acceleration: AccelerationConfig = values.get("acceleration", AccelerationConfig())
    uses = {
        "refresh_mode append to find newer rows": acceleration.refresh_mode == "append",
        "refresh_data_window to find the rows within the window": acceleration.refresh_data_window_s is not None,
        "retention_period to find expired rows": acceleration.retention_period_s is not None,
    }
    needed = [use for use, is_used in uses.items() if is_used]
    if needed and "time_column" not in values:
        path.fault(node.line, f"lacks the field time_column, which is required by {needed[0]}")
    if "time_format" in values and "time_column" not in values:
        path.field("time_format").fault(
            node.line_of("time_format"), "requires time_column because it describes that column's values"
        )
    elif "time_column" in values and not needed:
        where = path.field("time_column")
        where.warn(
            node.line_of("time_column"),
            "has no effect unless refresh_mode is append (here or in a refresh request) or rows expire",
        )


_DESCRIPTION = TextField("a string", max_length=10_000, may_have_lines=True)

_COLUMN = Section[tuple[str, str | None]](
    lambda values, _node, _path: (values["name"], values.get("description")),
    Setting("name", COLUMN_NAME, is_required=True),
    Setting("description", _DESCRIPTION),
    unavailable={
        "embeddings": "Remove it: semantic search is not supported.",
        "full_text_search": "Remove it: full-text indexes are not supported. Use LIKE or regexp_matches.",
        "metadata": "Move it to the description.",
    },
)

#: The settings that describe a dataset or view to its users.
_DOCUMENTATION = (
    Setting("description", _DESCRIPTION),
    Setting("metadata", TextsField(_DESCRIPTION)),
    Setting("columns", ListField(_COLUMN)),
)


def _documentation(values: dict[str, Any], node: Mapping, path: YamlPath) -> Documentation:
    """Remove the documentation settings from *values* and return them."""
    columns: tuple[tuple[str, str | None], ...] = values.pop("columns", ())
    listed = node.get("columns")
    known: set[str] = set()
    for item in listed.items if isinstance(listed, Sequence) else ():
        name = item.get("name") if isinstance(item, Mapping) else None
        if isinstance(name, Scalar):
            if name.text.lower() in known:
                path.field("columns").fault(name.line, f"lists a column twice; found {path.found(name)} again")
            known.add(name.text.lower())
    return Documentation(
        description=values.pop("description", None),
        metadata=values.pop("metadata", {}),
        columns={name: description for name, description in columns if description is not None},
        undescribed=tuple(name for name, description in columns if description is None),
    )


#: Spice.ai settings of datasets and views that this runtime does not support.
_UNAVAILABLE = {
    "embeddings": "Remove it: semantic search is not supported.",
    "invalid_type_action": "Remove it: a refresh always fails if a value cannot be read.",
    "load": "Remove it: every dataset is loaded at startup.",
    "metrics": "Use runtime.metrics, which covers every dataset.",
    "ref": "Declare the dataset here, or list its Spicepod in dependencies.",
    "replication": "Remove it.",
    "sql_ref": "Move the SELECT to sql.",
    "time_partition_column": "Remove it: the engine already skips row groups by their minimum and maximum values.",
    "time_partition_format": "Remove it.",
    "vectors": "Remove it: semantic search is not supported.",
}

DATASET = _DatasetSection(
    _build_dataset,
    Setting("from", _SourceField(), is_required=True),
    Setting("name", RELATION_NAME, is_required=True),
    *_DOCUMENTATION,
    Setting("access", ChoiceField("read")),
    Setting("mode", ChoiceField("read")),
    Setting("on_schema_change", ChoiceField("fail", "accept")),
    Setting("on_empty", ChoiceField("accept", "fail")),
    Setting("unsupported_type_action", ChoiceField("error")),
    Setting(
        "check_availability",
        ChoiceField("auto", "disabled"),
        note="The source is not contacted between refreshes because queries never read it.",
    ),
    Setting("required_for_ready", BooleanField()),
    Setting("ready_state", ChoiceField("on_load", "on_registration")),
    Setting("time_column", COLUMN_NAME),
    Setting("time_format", ChoiceField(*get_args(TimeFormat))),
    Setting("params", _ParamsSection(into(dict))),
    Setting("acceleration", ACCELERATION),
    unavailable=_UNAVAILABLE,
)


def _build_view(values: dict[str, Any], node: Mapping, path: YamlPath) -> ViewConfig | DatasetConfig:
    is_materialized = values.pop("materialized", False) | values.pop("acceleration", False)
    required_for_ready = values.pop("required_for_ready", None)
    documentation = _documentation(values, node, path)
    where = path.field("sql").text
    view = ViewConfig(line=node.line_of("sql"), yaml_path=where, documentation=documentation, **values)
    if not is_materialized:
        if required_for_ready is not None:
            message = "has no effect unless materialized is true: readiness waits for data only"
            path.field("required_for_ready").warn(node.line_of("required_for_ready"), message)
        return view
    if path.validation.reads_in_place:
        message = "is not supported with runtime.engine: remove it, and the cluster runs the view's query each time"
        field = "materialized" if node.get("materialized") is not None else "acceleration"
        path.field(field).fault(node.line_of(field), message)
    return _materialized(view, f"{CONNECTOR_OF_VIEWS}:{view.name}", required_for_ready=required_for_ready is not False)


def _materialized(view: ViewConfig, source: str, *, required_for_ready: bool) -> DatasetConfig:
    return DatasetConfig(
        name=view.name,
        from_=source,
        connector=CONNECTOR_OF_VIEWS,
        on_schema_change="accept",  # the schema follows from what the view reads
        required_for_ready=required_for_ready,
        documentation=view.documentation,
        acceleration=AccelerationConfig(),
        view=MaterializedView(sql=view.sql, is_copy=source.startswith(f"{LOCALPOD}:")),
        line=view.line,
        yaml_path=view.yaml_path,
    )


VIEW = Section[ViewConfig | DatasetConfig](
    _build_view,
    Setting("name", RELATION_NAME, is_required=True),
    Setting("sql", SQL, is_required=True),
    *_DOCUMENTATION,
    Setting("materialized", BooleanField()),
    Setting("required_for_ready", BooleanField()),
    Setting("acceleration", VIEW_ACCELERATION, note="An accelerated view is one with materialized: true."),
    unavailable=_UNAVAILABLE,
)
