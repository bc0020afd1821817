"""
The schema of `runtime.engine`, which runs statements instead of DuckDB.

The text before the colon in `from` names the engine.
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from runtimeconf.fields import Field, InvalidValueError, ParsedField, Section, Setting
from runtimeconf.model import EngineConfig, QueryConfig
from runtimeconf.plugins import ENGINES, PluginError
from runtimeconf.validation import YamlPath
from runtimeconf.yaml_nodes import Mapping, Node, Scalar


class _EngineField(Field[EngineConfig]):
    """A mapping whose fields the engine's plug-in declares."""

    expected = "a mapping"

    def read(self, node: Node, path: YamlPath) -> EngineConfig | None:
        """Read the mapping as the section of its engine."""
        source = node.get("from") if isinstance(node, Mapping) else None
        name = source.text.partition(":")[0] if isinstance(source, Scalar) else ""
        try:
            engine = ENGINES.get(name)
        except PluginError as exc:
            path.field("from").fault(node.line, f"names the engine {name}, which cannot be loaded: {exc}")
            return None
        if engine is None:
            return _UNKNOWN.read(node, path)
        found = engine.section.read(node, path)
        path.validation.reads_in_place = found is not None
        for package in engine.packages if found is not None and path.validation.needs_libraries else ():
            if not package.is_installed:
                path.fault(node.line, f"needs a library: {package.install_command}")
        return found

    def walk(self, path: str) -> Iterator[tuple[str, Field[Any]]]:
        """Yield this field and the fields of the built-in engines."""
        yield path, self
        for engine in ENGINES.built_in.values():
            yield from list(engine.section.walk(path))[1:]


def _refuse(_text: str) -> EngineConfig:
    raise InvalidValueError


def _source() -> ParsedField[EngineConfig]:
    """Return the field for a `from:` that names no known engine. Its text may contain a password or a token."""
    known = [engine.section.field_of("from") for engine in ENGINES.built_in.values()]
    shown = " or ".join(field.expected for field in known if field is not None)
    return ParsedField(shown or "the address of an engine, but no engine is installed", _refuse, is_hidden=True)


_UNKNOWN: Final = Section[EngineConfig](
    lambda _values, _node, _path: None,
    Setting("from", _source(), is_required=True),
    may_be_empty=False,
    refuses_unknown=False,
)

ENGINE: Final = _EngineField()


def with_engine_limits(query: QueryConfig, engine: EngineConfig, node: Mapping, path: YamlPath) -> QueryConfig:
    """
    Return *query* with the limits of *engine*. Record an error for each limit that `runtime.query` also sets.

    A statement on another engine occupies one worker, which waits for the result.
    """
    written = node.get("query")
    replaced = {"workers": "max_running"}
    if engine.statement_timeout_s is not None:
        replaced["timeout"] = "statement_timeout"
    for name, instead in replaced.items():
        if isinstance(written, Mapping) and written.get(name) is not None:
            message = f"has no effect with runtime.engine: set {instead} there"
            path.field("query").field(name).fault(written.line_of(name), message)
    timeout_s = query.timeout_s if engine.statement_timeout_s is None else engine.statement_timeout_s
    return replace(query, workers=engine.max_running, timeout_s=timeout_s)
