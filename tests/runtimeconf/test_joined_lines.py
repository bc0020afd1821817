"""In lines that YAML joins, `--` would hide the rest of a SQL text, such as the second condition of a filter."""

from pathlib import Path

import pytest

from runtimeconf.fields import InvalidValueError, SqlField
from runtimeconf.yaml_reader import Mapping, Scalar, read_document

FIELD = SqlField("SQL", max_length=1000)
JOINED = (
    "a: >\n  x = 1 -- mine\n  AND y = 2\nb: 1\n",
    "a: >-\n  x = 1\n  AND y = 2 -- both\n",
    "a: >\n  x = 1 -- mine\n  AND y = 2",
    "a: >+ # a comment\r\n  x = 1 -- mine\r\n\r\n  AND y = 2\r\n  AND z = 3\r\n\r\nb: 1\r\n",
    "a: x = 1 -- mine\n  AND y = 2\nb: 1\n",
    "a: 'x = 1 -- mine\n  AND y = 2'\n",
    'a: "x = 1 -- mine\n  AND\\n y = 2"\n',
    "a: {c: x = 1 -- mine\n  AND y = 2}\n",
)
KEPT = (
    "a: |\n  x = 1 -- mine\n  AND y = 2\nb: 1\n",
    "a: |-\n  x = 1 -- mine\n  AND y = 2",
    "a: x = 1 -- mine\n# a comment\nb: 1\n",
    "a: >\n  x = 1 -- mine\nb: 1\n",
    "a: >\n  x = 1 -- mine",
    "a: >\n  x = 1 -- mine\n\n  AND y = 2\n\n# a comment\nb: 1\n",
    "a: >\n\n  x = 1\n    -- mine\n  AND y = 2\n",
    'a: "x = 1 -- mine\\n AND y = 2"\n',
    "a: >\n  x = 1 /* mine */\n  AND y = 2\n",
)


def scalar(tmp_path: Path, text: str) -> Scalar:
    file = tmp_path / "runtime.yaml"
    file.write_bytes(text.encode())
    root = read_document(file, frozenset({"a", "b", "c"})).root
    node = root.get("a") if root is not None else None
    node = node.get("c") if isinstance(node, Mapping) else node
    assert isinstance(node, Scalar)
    return node


@pytest.mark.parametrize("text", JOINED)
def test_a_comment_in_joined_lines_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidValueError, match="YAML joins its lines"):
        FIELD.convert(scalar(tmp_path, text))


@pytest.mark.parametrize("text", KEPT)
def test_a_comment_that_ends_with_its_line_is_accepted(tmp_path: Path, text: str) -> None:
    assert "mine" in FIELD.convert(scalar(tmp_path, text))
