"""The log lines of the product, as its source code says."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.system.harness import REPOSITORY

LEVELS = {
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
    "log": "any",
}

#: What a message that is not in the source code shows as.
SENTENCE = "*a sentence*"

#: Loggers that a module gets from its caller.
PASSED = {"queryengine.query_log": "sqlapi.queries, flightapi.queries"}

_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
_PACKAGES = set(_PROJECT["tool"]["importlinter"]["root_packages"]) - {"runtimeclient"}


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """A row of the table: the fields that the line may have are in the order of the alphabet."""

    logger: str
    message: str
    level: str
    fields: tuple[str, ...]

    @property
    def row(self) -> str:
        """The row in `docs/internals/log-lines.md`."""
        fields = ", ".join(f"`{name}`" for name in self.fields)
        loggers = ", ".join(f"`{name}`" for name in self.logger.split(", "))
        message = self.message if self.message == SENTENCE else f"`{self.message}`"
        return f"| {loggers} | {self.level} | {message} | {fields} |"


def lines() -> Iterator[Line]:
    """Yield every line that the product may log. Lines for debugging are never written."""
    files = (path for package in sorted(_PACKAGES) for path in sorted((REPOSITORY / package).rglob("*.py")))
    trees = {path: ast.parse(text) for path in files if "logg" in (text := path.read_text())}
    constants = {
        node.targets[0].id: node.value.value
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for path, tree in trees.items():
        yield from _Module(path, tree, constants).lines()


class _Module:
    def __init__(self, path: Path, tree: ast.Module, constants: dict[str, str]) -> None:
        self._name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        self._tree, self._constants = tree, constants
        self._loggers = {
            node.targets[0].id: node.value.args[0]
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "logging.getLogger"
        }
        self._all_functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self._functions = {node.name: node for node in self._all_functions}

    def lines(self) -> Iterator[Line]:
        for function in (self._tree, *self._all_functions):
            for call in _own_nodes(function):
                if isinstance(call, ast.Call) and (found := self._line(call, function)):
                    yield found

    def _line(self, call: ast.Call, function: ast.AST) -> Line | None:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in LEVELS:
            return None
        logger = self._logger(call.func.value)
        if logger is None:
            return None
        message = call.args[1 if call.func.attr == "log" else 0]
        extra = next((one.value for one in call.keywords if one.arg == "extra"), None)
        fields: set[str] = set()
        if extra is not None:
            assert isinstance(extra, ast.Dict), f"{self._name}:{call.lineno}: write extra={{'fields': ...}}"
            fields = self._keys(extra.values[0], function)
        return Line(logger, self._text(message), LEVELS[call.func.attr], tuple(sorted(fields)))

    def _logger(self, of: ast.expr) -> str | None:
        if isinstance(of, ast.Name) and of.id in self._loggers:
            name = self._loggers[of.id]
            return str(name.value) if isinstance(name, ast.Constant) else self._name
        if isinstance(of, ast.Attribute) and of.attr == "logger":
            return PASSED[self._name]
        if isinstance(of, ast.Call) and ast.unparse(of.func) == "logging.getLogger":
            return ast.unparse(of.args[0]).strip("'")
        return "root" if isinstance(of, ast.Name) and of.id == "logging" else None

    def _text(self, message: ast.expr) -> str:
        if isinstance(message, ast.Name):
            text = self._constants.get(message.id, "…")
        elif isinstance(message, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in message.values)
        else:
            text = str(message.value) if isinstance(message, ast.Constant) else "…"
        text = re.sub(r"%[sdgr]", "…", text)
        return SENTENCE if text == "…" else text

    def _keys(self, value: ast.expr, function: ast.AST) -> set[str]:
        """Return the keys that *value* may have where *function* uses it."""
        match value:
            case ast.Dict():
                pairs = zip(value.keys, value.values, strict=True)
                return set().union(*(self._key(key, item, function) for key, item in pairs))
            case ast.BinOp(one, ast.BitOr(), other) | ast.IfExp(_, one, other):
                return self._keys(one, function) | self._keys(other, function)
            case ast.Name(name):
                return self._keys_of_name(name, function)
            case ast.Call(ast.Name("log_fields")) | ast.Attribute(_, "log_fields") if (
                "log_fields" not in self._functions
            ):
                return {"trace_id"}
            case ast.Call(ast.Name(name)) | ast.Attribute(_, name) if name in self._functions:
                called = self._functions[name]
                returned = [node.value for node in _own_nodes(called) if isinstance(node, ast.Return) and node.value]
                given = self._arguments(value, called, function)
                return set().union(*(self._keys(one, called) for one in returned), given)
            case ast.Attribute(ast.Name("self")):  # what the maker of the object gave it
                return {"…"}
        raise AssertionError(f"{self._name}:{value.lineno}: which fields are {ast.unparse(value)}?")

    def _arguments(self, call: ast.expr, called: ast.FunctionDef, function: ast.AST) -> set[str]:
        """Return the keys of a mapping that is passed on as the argument `fields`."""
        if not isinstance(call, ast.Call) or "fields" not in [one.arg for one in called.args.args]:
            return set()
        return self._keys(call.args[[one.arg for one in called.args.args].index("fields")], function)

    def _key(self, key: ast.expr | None, item: ast.expr, function: ast.AST) -> set[str]:
        if key is None:
            return self._keys(item, function)
        assert isinstance(key, ast.Constant)
        return {str(key.value)}

    def _keys_of_name(self, name: str, function: ast.AST) -> set[str]:
        found: set[str] = set()
        if isinstance(function, ast.FunctionDef) and name in [one.arg for one in function.args.args]:
            return found  # `_arguments` has them.
        sources = [function, *(other for other in self._all_functions if function in ast.walk(other))]
        for node in (node for source in sources for node in _own_nodes(source)):
            match node:
                case ast.Assign([ast.Name(target)], value) | ast.AugAssign(ast.Name(target), ast.BitOr(), value):
                    found |= self._keys(value, function) if target == name else set()
                case ast.AnnAssign(ast.Name(target), value=ast.expr() as value):
                    found |= self._keys(value, function) if target == name else set()
                case ast.Assign([ast.Subscript(ast.Name(target), ast.Constant(key))]) if target == name:
                    found.add(str(key))
                case ast.Assign([ast.Subscript(ast.Name(target), ast.Name(key))]) if target == name:
                    found |= self._loop_values(key, function)
        assert found, f"{self._name}: which fields are {name}?"
        return found

    def _loop_values(self, name: str, function: ast.AST) -> set[str]:
        """Return the texts that a loop of *function* gives to *name*."""
        loops = [node for node in _own_nodes(function) if isinstance(node, ast.For)]
        return {text for loop in loops if ast.unparse(loop.target) == name for text in ast.literal_eval(loop.iter)}


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of *function* but those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own_nodes(child)
