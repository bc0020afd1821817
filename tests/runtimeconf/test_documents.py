"""`docs/configuration.md` agrees with the schema, and the guide for those who move from ROAPI is one that loads."""

import re
from pathlib import Path

import pytest

from runtimeconf.model import DEFAULT_STATE_DIR, RuntimeConfig
from runtimeconf.schema import MAX_SOCKET_PATH_BYTES, ROOT, SOCKET_NAME_BYTES
from tests.runtimeconf.configurations import KEY, Load

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
TOP_LEVEL = {"version", "kind", "name", "metadata", "secrets", "runtime", "datasets", "views", "dependencies"}
ROWS = {
    row[1]: row[0]
    for row in re.finditer(r"^\| `([^`]+)` \|.*\|$", PAGE, re.MULTILINE)
    if "." in row[1] or row[1].removesuffix("[]") in TOP_LEVEL
}
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = YAML.findall(PAGE)
(DEFAULTS,) = (block for block in BLOCKS if "temp_directory_limit" in block)


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    assert set(ROWS) == {path for path, _ in ROOT.walk("")}


def test_each_row_shows_the_expected_value() -> None:
    assert [path for path, field in ROOT.walk("") if f"| {field.expected} |" not in ROWS[path]] == []


@pytest.mark.parametrize("block", range(len(BLOCKS)))
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


def test_the_longest_state_directory_on_the_page_is_the_real_one() -> None:
    assert f"has at most {MAX_SOCKET_PATH_BYTES - SOCKET_NAME_BYTES} bytes" in " ".join(PAGE.split())
