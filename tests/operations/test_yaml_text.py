"""Items are added to the text of a YAML file: what it meant before is kept, and so is every line."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from operations.yaml_text import NotEditableError, append_items

ITEM = "- from: new\n  name: new\n"
ADDED = {"from": "new", "name": "new"}

_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def extended(before: Any) -> Any:
    before = before or {}
    return {**before, "datasets": [*(before.get("datasets") or []), ADDED]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "a: 1",
        "---\na: 1\n",
        "datasets:\n",
        "datasets:",
        "datasets:  # none yet\n# - from: x\nb: 2\n",
        "datasets:\n- a: 1  # one\n  b: 2\n\n# tail\nz: 1\n",
        "datasets:\n  - a: |\n      x\n\n# c\nz: 1",
        "datasets:\n  - a: |+\n      x\n\n\n",
        "datasets:\n  - a: >-\n      x y\n      z\nz: 1",
        "datasets:\n    -   a: &x 1\n        b: *x  # c\n\n    # about the next\nz: 1",
        "x: &x [1]\ndatasets:\n  - a: *x\nz: 1\n",
        "datasets:\n  - a: {b: 1,\n     c: 2}  # d\nz: 1",
        'datasets:\n  - "a\n     b"\n# c',
        "datasets:\n  -\n    a:\n  -\nz: 1\n",
        "datasets:\n  - - a\n    - b\n",
        "datasets:\n  - a: 1\n  # - b: 2\n",
        '"datasets":\n  - a\n',
        "? datasets\n:\n  - a\nz: 1",
        "x:\n  datasets:\n    - a\n",
        "- datasets\n",
        "datasets:\r\n  - a: 1\r\nz: 2\r\n",
        "\ufeffdatasets:\n  - a\nb: 1\n",
        "é: ü\ndatasets:\n  - ö: 1  # 订单\n",
    ],
)
def test_an_item_is_added_and_every_line_is_kept(text: str) -> None:
    if text.startswith("- "):
        with pytest.raises(NotEditableError):
            append_items(text, "datasets", ITEM)
        return

    result = append_items(text, "datasets", ITEM)

    assert yaml.safe_load(result) == extended(yaml.safe_load(text))
    new = result.splitlines()
    for line in text.splitlines():
        assert line in new
    assert ("\r\n" in result) is ("\r\n" in text)


@pytest.mark.parametrize(
    "text",
    [
        *("datasets: null\n", "datasets: []\n", "datasets: [a]\n", "datasets: {a: 1}\n", "datasets:\n  a: 1\n"),
        *("x: &d\n  - q: 1\ndatasets: *d\n", "datasets: &d\n  - q\n", "datasets: !!seq\n  - a\n"),
        *("{a: 1}\n", "a\n", "a: 1\n...\n", "a: 1\n---\nb: 2\n", "a: [\n", "a: \x00\n"),
    ],
)
def test_a_text_without_an_obvious_place_is_refused(text: str) -> None:
    with pytest.raises(NotEditableError):
        append_items(text, "datasets", ITEM)


@given(
    st.dictionaries(st.text(max_size=4), _VALUES, max_size=3), st.lists(_VALUES, min_size=1, max_size=3), st.booleans()
)
def test_whatever_a_file_holds_is_kept(others: dict[str, Any], items: list[Any], is_first: bool) -> None:
    parts = [{"datasets": items}, others]
    content = {**parts[not is_first], **parts[is_first], "datasets": items}
    text = yaml.safe_dump(content, default_flow_style=False, sort_keys=False, allow_unicode=True)

    # PyYAML does not read every text that it writes, such as U+0085, as the same.
    assert yaml.safe_load(append_items(text, "datasets", ITEM)) == extended(yaml.safe_load(text))
