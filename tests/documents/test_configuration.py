"""`docs/configuration.md` agrees with the schema, and the guide for those who move from ROAPI is one that loads."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from runtimeconf.fields import Section
from runtimeconf.key_texts import KeyField
from runtimeconf.model import (
    DEFAULT_STATE_DIR,
    AccelerationConfig,
    FlightConfig,
    HistoryConfig,
    ResultsCacheConfig,
    RuntimeConfig,
)
from runtimeconf.schema import MAX_SOCKET_PATH_BYTES, ROOT, SOCKET_NAME_BYTES
from runtimeconf.yaml_reader import MAX_FILE_BYTES
from tests.corpus import each
from tests.runtimeconf.configurations import KEY, Load

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
TABLES = "\n".join(
    (DOCS / "internals" / f"{name}.md").read_text(encoding="utf-8") for name in ("source-parameters", "spicepod-fields")
)
TOP_LEVEL = {"version", "kind", "name", "metadata", "secrets", "runtime", "datasets", "views", "dependencies"}
ROWS = {
    row[1]: row[0]
    for row in re.finditer(r"^\| `([^`]+)` \|.*\|$", f"{PAGE}\n{TABLES}", re.MULTILINE)
    if "." in row[1] or row[1].removesuffix("[]") in TOP_LEVEL
}
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = YAML.findall(PAGE)
(DEFAULTS,) = (block for block in BLOCKS if "temp_directory_limit" in block)


SWITCHED = {
    path: setting
    for path, section in ROOT.walk("")
    if isinstance(section, Section)
    for setting in section.settings
    if setting.name == "enabled"
}
#: Sections that are on by default.
ON_BY_DEFAULT: dict[str, FlightConfig | HistoryConfig | AccelerationConfig | ResultsCacheConfig] = {
    "runtime.flight": FlightConfig(),
    "runtime.history": HistoryConfig(),
    "datasets[].acceleration": AccelerationConfig(),
    "views[].acceleration": AccelerationConfig(),
    "runtime.caching.sql_results": ResultsCacheConfig(enabled=True),
}


@each("path", SWITCHED)
def test_enabled_is_required_unless_the_documented_default_is_on(path: str) -> None:
    if SWITCHED[path].is_required:
        assert "| required |" in ROWS[f"{path}.enabled"]
    else:
        assert ON_BY_DEFAULT[path].enabled
        assert "| `true` |" in ROWS[f"{path}.enabled"]


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    assert set(ROWS) == {path for path, _ in ROOT.walk("")}


def test_the_page_has_the_limit_of_the_file() -> None:
    assert f"The file must be UTF-8, at most {MAX_FILE_BYTES // 1024**2} MiB" in PAGE


def shortened(expected: str) -> str:
    """Without the examples that "How values are written" has once."""
    examples = r"(?: in bytes)? such as (?:30s|1048576), .* or \w+, from|(?<=an address) such as .*"
    return re.sub(examples, lambda found: " from" * found[0].endswith("from"), expected)


def test_each_row_shows_the_expected_value() -> None:
    assert [path for path, field in ROOT.walk("") if f"| {shortened(field.expected)} |" not in ROWS[path]] == []


@each("block", range(len(BLOCKS)))
def test_every_example_loads(load_text: Load, block: int) -> None:
    load_text(BLOCKS[block], {"API_KEY": KEY, "PREFIX": "a", "ID": KEY})


def test_the_configuration_for_those_who_move_from_roapi_loads(load_text: Load) -> None:
    (block,) = YAML.findall((DOCS / "how-to" / "moving-from-roapi.md").read_text(encoding="utf-8"))

    config = load_text(block, {"API_KEY": KEY, "MYSQL": "secret"})

    assert [dataset.name for dataset in config.datasets] == ["cities", "blogs", "posts"]


def test_the_defaults_on_the_page_match_the_model(load_text: Load, yaml_file: Path) -> None:
    config = load_text(DEFAULTS)

    assert config == RuntimeConfig(file=yaml_file, state_dir=yaml_file.with_name(DEFAULT_STATE_DIR))


def test_the_defaults_in_the_rows_match_the_block() -> None:
    for section in ("http", "flight", "query"):
        for path, row in ROWS.items():
            default = re.fullmatch(rf"runtime\.{section}\.(\w+)", path) and row.split(" | ")[2]
            if default and default.startswith("`"):
                name = path.rpartition(".")[2]
                assert re.search(rf"\b{name}: \"?{re.escape(default.strip('`'))}\"?", DEFAULTS), path


def test_the_page_names_every_field_in_which_a_secret_reference_is_resolved() -> None:
    resolving = {
        re.sub(r"(?<=\.params)\.\w+$", "", path)
        for path, field in ROOT.walk("")
        if isinstance(field, KeyField) or ".resolve(" in inspect.getsource(type(field))
    }
    (sentences,) = re.findall(r"References are allowed in (.*?)anywhere else", PAGE, re.DOTALL)

    assert resolving == {
        *("runtime.auth.api-key.keys[]", "runtime.auth.api-key.named_keys[].key", "runtime.traces.headers"),
        *("datasets[].params", "runtime.snapshots.params", "runtime.engine.params"),
    }
    assert [path for path in resolving if f"`{path}`" not in sentences and "api-key" not in path] == []


def constants(node: ast.AST) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def assignments(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
                found.setdefault(target.id, []).append(node.value)
    return found


def warnings_in(file: Path) -> Iterator[str]:
    """Yield the longest constant part of each sentence that a module warns with, also of one that a variable holds."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        assigned = assignments(tree.body) | assignments(ast.walk(function))
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "warn":
                sentence = call.args[-1]
                names = [node.id for node in ast.walk(sentence) if isinstance(node, ast.Name)]
                latest = [[one for one in assigned.get(name, ()) if one.lineno < call.lineno][-1:] for name in names]
                for source in (sentence, *chain(*latest)):
                    yield max("{}".join(constants(source)).split("{}"), key=len)


def test_every_warning_has_a_row_and_every_row_a_warning() -> None:
    section = (DOCS / "internals" / "startup-warnings.md").read_text(encoding="utf-8")
    messages = [row.split(" | ")[1] for row in section.splitlines() if row.startswith("| ")][1:]
    others = [DOCS.parent / "supervisor" / "startup.py", DOCS.parent / "cluster" / "config.py"]
    files = [*(DOCS.parent / "runtimeconf").rglob("*.py"), *others]
    warned = {part.strip(" .,:()") for file in files for part in warnings_in(file)}
    written = "\n".join(part for file in files for part in constants(ast.parse(file.read_text(encoding="utf-8"))))

    assert len(warned) > 15
    assert sorted(part for part in warned if part not in section) == []
    for message in messages:
        parts = [part.strip(" ,:()") for part in re.split(r"\.\.\.|\. |[0-9]+|`|fields differ in meaning", message)]
        assert max(parts, key=len) in written, message


def test_the_longest_state_directory_on_the_page_is_the_real_one() -> None:
    assert f"must not exceed {MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES} bytes" in " ".join(PAGE.split())
