"""The schema of `acceleration` in datasets and views: when they are loaded, and which rows are kept."""

import re
from datetime import UTC, datetime
from typing import Any

from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from runtimeconf.fields import (
    BooleanField,
    ChoiceField,
    DurationField,
    Field,
    IgnoredField,
    IntegerField,
    InvalidValueError,
    ParsedField,
    ScalarField,
    Section,
    Setting,
    SqlField,
    TextField,
)
from runtimeconf.model import AccelerationConfig, IndexConfig, OnConflict
from runtimeconf.validation import YamlPath, shown_name
from runtimeconf.yaml_nodes import Mapping, Node, Scalar

MAX_SQL_LENGTH = 100_000
MAX_COLUMN_LENGTH = 1000

#: One query, which may span several lines.
SQL = SqlField("one SELECT statement", max_length=MAX_SQL_LENGTH)

#: The name of one column.
COLUMN_NAME = TextField("the name of a column", max_length=MAX_COLUMN_LENGTH)

_ONE_SNAPSHOT = "Every dataset is a DuckDB snapshot on disk, in runtime.state_dir."


class _ColumnNamesField(ScalarField[tuple[str, ...]]):
    """The name of one column, or of several in Spice.ai's notation `(a, b)`."""

    expected = "a column name, or several as (a, b)"

    def convert(self, node: Scalar) -> tuple[str, ...]:
        """Return the names unchanged."""
        match = re.fullmatch(r"\((.*)\)", node.text)
        names = [name.strip() for name in match[1].split(",")] if match else [node.text]
        columns = tuple(COLUMN_NAME.convert(replace(node, text=name)) for name in names)
        if len({name.lower() for name in columns}) < len(columns):
            raise InvalidValueError("a column is listed twice")
        return columns


_COLUMN_NAMES = _ColumnNamesField()


def _folded(columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower() for name in columns)


class _ByColumnsField(Field[dict[tuple[str, ...], str]]):
    """A mapping of columns to keywords."""

    def __init__(self, expected: str, *words: str) -> None:
        self.expected = expected
        self._word = ChoiceField(*words)

    def read(self, node: Node, path: YamlPath) -> dict[tuple[str, ...], str] | None:
        """Read the keyword of each column. The existence of the columns is checked when the data is loaded."""
        if not isinstance(node, Mapping):
            self.refuse(node, path)
            return None
        if not node.entries:
            path.warn(node.line, "is empty, so it has no effect")
        found: dict[tuple[str, ...], str] = {}
        for entry in node.entries:
            where = path.field(shown_name(entry.name))
            name = Scalar(entry.line, entry.name, is_plain=False, may_be_shown=entry.name_may_be_shown)
            columns, word = _COLUMN_NAMES.read(name, where), self._word.read(entry.value, where)
            if columns is not None and word is not None:
                if any(_folded(columns) == _folded(other) for other in found):
                    where.fault(entry.line, "is listed twice: column names are not case-sensitive")
                found[columns] = word
        return found


class _IndexesField(Field[tuple[IndexConfig, ...]]):
    """`indexes:`, a mapping of columns to kinds of index."""

    expected = "a mapping of columns to enabled or unique"
    _mapping = _ByColumnsField(expected, "enabled", "unique")

    def read(self, node: Node, path: YamlPath) -> tuple[IndexConfig, ...] | None:
        """Read the indexes, omitting those that the engine would not use."""
        found = self._mapping.read(node, path)
        if found is None:
            return None
        for columns, kind in found.items():
            if len(columns) > 1 and kind == "enabled":
                path.warn(
                    node.line, f"has no effect on ({', '.join(columns)}): the engine looks up single columns only"
                )
        return tuple(
            IndexConfig(columns=columns, unique=kind == "unique")
            for columns, kind in found.items()
            if len(columns) == 1 or kind == "unique"
        )


def _parse_cron(text: str) -> str:
    """Return a five-field cron expression that matches at some time in the future."""
    if len(text.split()) != 5:
        raise InvalidValueError("five fields: minute, hour, day of the month, month, day of the week")
    try:
        next(CronSim(text, datetime.now(UTC)))
    except (CronSimError, StopIteration, ValueError):  # ValueError for a number with thousands of digits
        raise InvalidValueError from None
    return text


def _build_acceleration(values: dict[str, Any], node: Mapping, path: YamlPath) -> AccelerationConfig:
    for name in ("engine", "mode", "params", "refresh_on_startup", "on_zero_results"):
        values.pop(name, None)  # validated only; their notes describe their effect
    conflict: dict[tuple[str, ...], OnConflict] = values.pop("on_conflict", {})
    if not values.pop("retention_check_enabled", False):
        _has_no_effect(("retention_period", "retention_check_interval"), "retention_check_enabled: true", node, path)
        values.pop("retention_period_s", None)
        values.pop("retention_check_interval_s", None)
    else:
        for name in ("retention_period", "retention_check_interval"):
            if f"{name}_s" not in values and node.get(name) is None:  # An invalid value already has an error.
                path.fault(node.line, f"lacks the field {name}, which retention_check_enabled needs")
    acceleration = AccelerationConfig(**values)
    if conflict:
        acceleration = _with_conflict(acceleration, conflict, node, path)
    if acceleration.refresh_cron is not None and acceleration.refresh_check_interval_s is not None:
        message = "and refresh_check_interval both set the refresh schedule: remove one"
        path.field("refresh_cron").fault(node.line_of("refresh_cron"), message)
    if not acceleration.refresh_jitter_enabled:
        _has_no_effect(("refresh_jitter_max",), "refresh_jitter_enabled: true", node, path)
    elif acceleration.refresh_jitter_max_s is None and acceleration.refresh_check_interval_s is None:
        message = "has no effect without refresh_check_interval or refresh_jitter_max"
        path.field("refresh_jitter_enabled").warn(node.line_of("refresh_jitter_enabled"), message)
    _warn_of_retries(acceleration, node, path)
    _warn_of_idle_fields(acceleration, node, path)
    return acceleration


def _warn_of_retries(acceleration: AccelerationConfig, node: Mapping, path: YamlPath) -> None:
    if not acceleration.refresh_retry_enabled:
        _has_no_effect(("refresh_retry_max_attempts",), "refresh_retry_enabled: true", node, path)
    elif acceleration.refresh_retry_max_attempts == 0 and node.get("refresh_retry_enabled") is not None:
        message = "is true and refresh_retry_max_attempts is 0: failed loads are not retried"
        path.field("refresh_retry_enabled").warn(node.line_of("refresh_retry_enabled"), message)


def _warn_of_idle_fields(acceleration: AccelerationConfig, node: Mapping, path: YamlPath) -> None:
    known = path.validation.known_paths.keys() - _WITHOUT_ENABLED  # An unknown name may be a key.
    idle = [entry.name for entry in node.entries if entry.name in known]
    if idle and not acceleration.enabled:
        message = f"is false, so these have no effect: {', '.join(idle)}"
        path.field("enabled").warn(node.line_of("enabled"), message)


#: Settings that `enabled: false` does not turn off (because the dataset is still loaded once), or that never have an
#: effect.
_WITHOUT_ENABLED = frozenset(
    {
        *("enabled", "engine", "mode", "params", "refresh_on_startup", "on_zero_results"),
        *("refresh_timeout", "refresh_retry_enabled", "refresh_retry_max_attempts"),
    }
)


def _has_no_effect(names: tuple[str, ...], without: str, node: Mapping, path: YamlPath) -> None:
    for name in names:
        if node.get(name) is not None:
            path.field(name).warn(node.line_of(name), f"has no effect without {without}")


def _with_conflict(
    acceleration: AccelerationConfig, conflict: dict[tuple[str, ...], OnConflict], node: Mapping, path: YamlPath
) -> AccelerationConfig:
    """Return *acceleration* with the handling of two rows with the same primary key."""
    where, line = path.field("on_conflict"), node.line_of("on_conflict")
    key = {name.lower() for name in acceleration.primary_key}
    if len(conflict) > 1 or any({name.lower() for name in columns} != key for columns in conflict):
        where.fault(line, "must name only the primary_key")
    elif acceleration.refresh_mode != "append":
        where.warn(line, "has no effect unless refresh_mode is append: a full refresh replaces all rows")
    (action, *_) = conflict.values()
    return replace(acceleration, on_conflict=action)


#: Spice.ai settings below `acceleration` that this runtime does not support.
_UNAVAILABLE = {
    "engine_secret": "Remove it: no engine needs a login.",
    "partition_by": "Remove it: the engine already skips row groups by their minimum and maximum values.",
    "refresh_append_overlap": "Use refresh_mode: full, which also picks up late rows.",
    "retention_sql": "Add a WHERE clause to refresh_sql that selects the rows to keep.",
    "snapshots": "Remove it: every refresh writes a snapshot, which survives a restart.",
    "snapshots_trigger": "Remove it: every refresh writes a snapshot.",
    "snapshots_trigger_threshold": "Remove it: every refresh writes a snapshot.",
    "snapshots_compaction": "Remove it: snapshots are always compact.",
    "storage_profile": "Remove it.",
    "synchronize": "Remove it: a snapshot is replaced as a whole.",
}

_STORAGE = (
    Setting("enabled", BooleanField()),
    Setting("engine", ChoiceField("arrow", "duckdb", "sqlite", "turso", "cayenne"), note=_ONE_SNAPSHOT),
    Setting("mode", ChoiceField("memory", "file", "file_create", "file_update"), note=_ONE_SNAPSHOT),
    Setting(
        "params",
        IgnoredField(),
        note="They have no effect: they configure Spice's engines. Use runtime.query to configure this one.",
    ),
)

ACCELERATION = Section[AccelerationConfig](
    _build_acceleration,
    *_STORAGE,
    Setting("refresh_mode", ChoiceField("full", "append")),
    Setting("refresh_check_interval", DurationField("100ms", "365d"), attribute="refresh_check_interval_s"),
    Setting("refresh_cron", ParsedField("a cron expression such as 0 4 * * *", _parse_cron)),
    Setting("refresh_jitter_enabled", BooleanField()),
    Setting("refresh_jitter_max", DurationField("1ms", "365d"), attribute="refresh_jitter_max_s"),
    Setting("refresh_timeout", DurationField("1ms", "7d"), attribute="refresh_timeout_s"),
    Setting("refresh_retry_enabled", BooleanField()),
    Setting("refresh_retry_max_attempts", IntegerField(0, 1_000_000)),
    Setting(
        "refresh_on_startup",
        ChoiceField("auto", "always"),
        note="The source is read at every startup unless it reports that its data is unchanged.",
    ),
    Setting("refresh_sql", SQL),
    Setting(
        "refresh_data_window",
        DurationField("1s", "36500d"),
        attribute="refresh_data_window_s",
    ),
    Setting("retention_check_enabled", BooleanField()),
    Setting("retention_period", DurationField("1s", "36500d"), attribute="retention_period_s"),
    Setting(
        "retention_check_interval",
        DurationField("1s", "365d"),
        attribute="retention_check_interval_s",
    ),
    Setting("on_zero_results", ChoiceField("return_empty")),
    Setting("primary_key", _COLUMN_NAMES),
    Setting("indexes", _IndexesField()),
    Setting("on_conflict", _ByColumnsField("a mapping of the primary_key to upsert or drop", "upsert", "drop")),
    unavailable=_UNAVAILABLE,
)

_COMPUTED = "Remove it: the view is recomputed as soon as new data is published for anything it reads."

#: Settings below `acceleration` that datasets have and views do not.
_UNAVAILABLE_IN_VIEWS = {
    **dict.fromkeys(("refresh_cron", "refresh_jitter_enabled", "refresh_jitter_max", "refresh_on_startup"), _COMPUTED),
    **dict.fromkeys(("refresh_retry_enabled", "refresh_retry_max_attempts"), _COMPUTED),
    **dict.fromkeys(
        ("refresh_data_window", "retention_check_enabled", "retention_check_interval", "retention_period"),
        "Add a WHERE clause to the view's SELECT.",
    ),
    **dict.fromkeys(("indexes", "on_conflict", "primary_key"), "Remove it: views have no keys or indexes."),
    "on_zero_results": "Remove it: queries never read the source.",
    "refresh_sql": "Add it to the view's SELECT.",
    "refresh_timeout": "Remove it: views use the default timeout for datasets.",
}

#: `views[].acceleration`, which only determines whether the view is materialized.
VIEW_ACCELERATION = Section[bool](
    lambda values, _node, _path: values.get("enabled", True),
    *_STORAGE,
    Setting("refresh_mode", ChoiceField("full")),
    Setting(
        "refresh_check_interval",
        DurationField("100ms", "365d"),
        note="The view is recomputed as soon as new data is published for anything it reads.",
    ),
    unavailable=_UNAVAILABLE | _UNAVAILABLE_IN_VIEWS,
)
