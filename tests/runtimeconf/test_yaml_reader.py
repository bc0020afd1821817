"""Documents as source text: what is kept, what is refused, and that no message quotes the file."""

import os
import resource
import socket
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from runtimeconf.yaml_nodes import Entry, Mapping, Scalar, Sequence
from runtimeconf.yaml_reader import MAX_ALIASES, MAX_DEPTH, MAX_FILE_BYTES, _TreeBuilder, read_document
from tests.corpus import each
from tests.runtimeconf.configurations import Faults

NAMES = frozenset({"runtime", "auth", "api-key", "enabled", "keys", "datasets"})


def read(file: Path, text: str) -> tuple[Mapping | None, list[str]]:
    """The tree of *text*, and its faults as `line: path: message`."""
    file.write_text(text, encoding="utf-8", newline="")
    document = read_document(file, NAMES)
    return document.root, [f"{fault.line}: {fault.yaml_path}: {fault.message}" for fault in document.faults]


def plain(line: int, text: str, *, may_be_shown: bool = True) -> Scalar:
    return Scalar(line, text, is_plain=True, may_be_shown=may_be_shown)


def quoted(line: int, text: str) -> Scalar:
    return Scalar(line, text, is_plain=False)


def test_keeps_source_text_lines_and_quoting(yaml_file: Path) -> None:
    found = read(yaml_file, "a: 0123\nb:\n  - 'x y'\n  - ~\nc: {d: \"e\\n\"}\n")

    entries = (
        Entry(1, "a", plain(1, "0123")),
        Entry(2, "b", Sequence(3, (quoted(3, "x y"), plain(4, "~")))),
        Entry(5, "c", Mapping(5, (Entry(5, "d", quoted(5, "e\n")),))),
    )
    assert found == (Mapping(1, entries), [])
    assert [node.is_null for node in (plain(1, "~"), quoted(1, "~"), plain(1, "x"))] == [True, False, False]


@each(
    "text",
    [
        pytest.param("\ufeffa: 1\n", id="a UTF-8 byte order mark"),
        pytest.param("a: 1\r\nb: 2\r\n", id="CRLF"),
        pytest.param("%YAML 1.2\n---\na: 1\n...\n", id="a directive and document marks"),
        pytest.param("? a\n: 1\n", id="an explicit field name"),
        pytest.param("a: &x 1\nb: *x\n", id="an alias"),
        pytest.param("'<<': 1\n", id="a quoted name that looks like a merge key"),
        pytest.param("a: \U0001f600\n", id="a character beyond the BMP"),
    ],
)
def test_takes_harmless_yaml(yaml_file: Path, text: str) -> None:
    root, faults = read(yaml_file, text)

    assert (root is not None, faults) == (True, [])


def test_a_value_with_an_anchor_may_not_be_shown(yaml_file: Path) -> None:
    found = read(yaml_file, "a: &x [{b: c}]\nd: *x\ne: f\n")

    hidden = Sequence(1, (Mapping(1, (Entry(1, "b", plain(1, "c", may_be_shown=False), name_may_be_shown=False),)),))
    assert found == (Mapping(1, (Entry(1, "a", hidden), Entry(2, "d", hidden), Entry(3, "e", plain(3, "f")))), [])


def test_nodes_do_not_print_their_text() -> None:
    scalar = plain(1, "canary")
    nodes = [scalar, Sequence(1, (scalar,)), entry := Entry(1, "canary", scalar), Mapping(1, (entry,))]

    assert "canary" not in repr(nodes)


EMPTY = "0: : is empty: it contains only comments or white space"
NO_MAPPING = "must be a mapping such as `version: v1`; found"
SECOND = "2: : a second document begins here: a file can contain only one document"


@each(
    ("text", "expected"),
    [
        pytest.param("", EMPTY, id="C23 empty file"),
        pytest.param(" \n\n", EMPTY, id="white space only"),
        pytest.param("# a\n# b\n", EMPTY, id="C23 comments only"),
        pytest.param("---\n", EMPTY, id="an empty document"),
        pytest.param("~\n", EMPTY, id="null root"),
        pytest.param("- a\n", f"1: : {NO_MAPPING} a list", id="C23 list root"),
        pytest.param("\ncanary\n", f"2: : {NO_MAPPING} a single value", id="C23 scalar root"),
        pytest.param("a: 1\n---\nb: 1\n", SECOND, id="C23 two"),
        pytest.param("---\n---\na: 1\n", SECOND, id="C23 empty first"),
        pytest.param("runtime:\n\tauth: 1\n", "2: : is not valid YAML: indented with a tab", id="C23 tab"),
        pytest.param("a: 'canary\nb: 1\n", "1: : is not valid YAML: a quoted string that begins here", id="open quote"),
        pytest.param(
            "b: 1\na: [1, 2\nc: 1\n", "3: : is not valid YAML: a comma or closing bracket is missing", id="open list"
        ),
        pytest.param(
            "a: @canary\n", "1: : is not valid YAML: a string cannot begin with this", id="reserved character"
        ),
        pytest.param("a: b: canary\n", "1: : is not valid YAML: unexpected colon", id="two colons"),
        pytest.param("a: 1\ncanary\nb: 2\n", "3: : is not valid YAML: a field name lacks a colon", id="no colon"),
        pytest.param("a:\n  b: 1\n c: 2\n", "3: : is not valid YAML: the indentation does not match", id="indentation"),
        pytest.param('a: "\\q"\n', "1: : is not valid YAML: a double-quoted string contains an unknown", id="escape"),
        pytest.param("%YAML 7.1\n---\na: 1\n", "1: : is not valid YAML: it cannot be parsed", id="another YAML"),
        pytest.param('a: "\\UFFFFFFFF"\n', "0: ?: is not valid YAML: an escape or directive", id="escape too large"),
        pytest.param(f"%YAML 1.{'9' * 5000}\n---\na: 1\n", "0: : is not valid YAML: an escape or", id="huge version"),
        pytest.param("a: *canary\n", "1: ?: an alias (*name) refers to an anchor", id="unknown alias"),
        pytest.param("a: &x [*x]\n", "1: ?[0]: an alias (*name) refers to an anchor", id="alias to itself"),
    ],
)
def test_a_document_without_a_tree_has_one_fault_without_its_text(yaml_file: Path, text: str, expected: str) -> None:
    root, faults = read(yaml_file, text)

    assert root is None
    assert len(faults) == 1
    assert faults[0].startswith(expected)
    assert "canary" not in faults[0]


@each(
    ("data", "expected"),
    [
        pytest.param("a: 1\n".encode("utf-16"), "is UTF-16, not UTF-8", id="UTF-16 with its mark"),
        pytest.param("a: 1\n".encode("utf-16-be"), "contains a NUL", id="UTF-16 without a mark"),
        pytest.param("a: 1\n".encode("utf-32"), "is UTF-16, not UTF-8", id="UTF-32 begins like UTF-16"),
        pytest.param("a: 1\nb: é\n".encode("latin-1"), "is not UTF-8", id="Latin-1"),
        pytest.param(b"a: 1\nb: \0\n", "contains a NUL", id="a NUL"),
        pytest.param(b"a: 1\nb: \x1b[0m\n", "contains the control character U+001B", id="an escape sequence"),
        pytest.param(b"a: 1\nb: \x7f\n", "contains the control character U+007F", id="DEL"),
        pytest.param(
            "a: 1\nb: x\u2028c: 1\n".encode(), "contains the control character U+2028", id="a hidden line break"
        ),
        pytest.param("a: 1\nb: x\x85c: 1\n".encode(), "contains the control character U+0085", id="NEL"),
        pytest.param(b"a: 1\nb: \xed\xa0\x80\n", "is not UTF-8", id="an encoded surrogate"),
    ],
)
def test_refuses_other_encodings_and_control_characters(faults: Faults, data: bytes, expected: str) -> None:
    (only,) = faults(data)

    assert expected in only.message
    assert only.line in {1, 2}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("keys: [${ secrets:x }]\n", id="C12 in a list"),
        pytest.param("keys: [${secrets:x}, ${secrets:y}]\n", id="C12 without spaces"),
        pytest.param("keys: [abc, $ {secrets:x}]\n", id="C12 second item"),
        pytest.param("{keys: ${ secrets:x }}\n", id="C12 in a mapping"),
        pytest.param("keys: ${ secrets: x }\n", id="a space after the colon"),
    ],
)
def test_c12_an_unquoted_reference_in_brackets_gets_a_hint(yaml_file: Path, text: str) -> None:
    _, faults = read(yaml_file, f"a: 1\n{text}" if text[0] != "{" else f"\n{text}")

    hint = 'that contains ": " or is inside [...] or {...} must be quoted, as in "${ secrets:name }"'
    assert faults == [f"2: : is not valid YAML: a secret reference {hint}"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('a: !!python/object/apply:os.system ["touch pwned"]\n', id="C18 a call"),
        pytest.param("a: !!python/name:os.system\n", id="C18 a name"),
        pytest.param("a: !!str x\n", id="a standard tag"),
        pytest.param("a: ! x\n", id="the non-specific tag"),
        pytest.param("a: !!binary aGk=\n", id="binary"),
        pytest.param("!!map\na: 1\n", id="on the root"),
        pytest.param("!x a: 1\n", id="on a name"),
        pytest.param("%TAG ! tag:yaml.org,2002:\n---\na: !str x\n", id="by a directive"),
    ],
)
def test_c18_tags_are_refused_and_nothing_runs(
    yaml_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.chdir(tmp_path)

    _, faults = read(yaml_file, text)

    assert len(faults) == 1
    assert "YAML tags (! or !!) are not supported" in faults[0]
    assert not (tmp_path / "pwned").exists()


ESCAPE = "a quoted string contains an escape for a NUL or a lone surrogate"


@each(
    ("text", "expected"),
    [
        pytest.param(
            "runtime:\n  enabled: true\n  enabled: false\n",
            "3: runtime.enabled: duplicate field: first on line 2, again on line 3",
            id="C20 in a section",
        ),
        pytest.param(
            "runtime: {}\nruntime: {}\n",
            "2: runtime: duplicate field: first on line 1, again on line 2",
            id="C20 root",
        ),
        pytest.param(
            "datasets:\n  - {}\n  - {keys: 1, 'keys': 2}\n",
            "3: datasets[1].keys: duplicate field: first on line 3, again on line 3",
            id="C20 in a list, differently quoted",
        ),
        pytest.param(
            "auth:\n  canary: 1\n  canary: 2\n",
            "3: auth: duplicate field: first on line 2, again on line 3",
            id="a name that nobody knows is not shown",
        ),
        pytest.param('keys: "\\0"\n', f"1: keys: {ESCAPE}", id="an escape for a NUL"),
        pytest.param('keys: "\\ud800"\n', f"1: keys: {ESCAPE}", id="an escape for half a surrogate pair"),
        pytest.param('"\\x00": a\n', f"1: : {ESCAPE}", id="an escape for a NUL in a field name"),
        pytest.param("auth:\n  <<: {enabled: true}\n", "2: auth: merge keys (<<) are not supported", id="merge key"),
        pytest.param("auth:\n  ? [canary]\n  : 1\n", "2: auth: a field name must be a string", id="a list as a name"),
        pytest.param("auth:\n  {canary: 1}: 1\n", "2: auth: a field name must be a string", id="a mapping as a name"),
    ],
)
def test_c20_ambiguous_mappings_and_odd_escapes_are_refused_and_the_rest_is_kept(
    yaml_file: Path, text: str, expected: str
) -> None:
    root, faults = read(yaml_file, text)

    assert root is not None
    assert len(faults) == 1
    assert faults[0].startswith(expected)
    assert "canary" not in faults[0]


PIECES = st.sampled_from(
    [
        *(
            "b: ",
            "- ",
            "\n  ",
            "\n    ",
            ": ",
            ", ",
            "''",
            "&x ",
            "*x",
            "|\n",
            ">-\n",
            " #c",
            "~",
            "---\n",
            "...\n",
            "!t ",
        ),
        *("\\n", "\\ud800", "%YAML 1.1\n", "<<: ", "0123", "${ secrets:x }", *"ab\n{}[]'\"#é "),
    ]
)


@given(st.lists(PIECES, max_size=14).map("".join))
@example("a: 'x\n\n y'\nb: >\n z\n")
def test_the_two_parsers_read_the_same(text: str) -> None:
    """
    What the faster one refuses, the other one decides.

    Here are neither tabs, of which the faster one allows more, nor `?`: the line of an absent value after it differs.
    """
    fast, slow = (_TreeBuilder(Path("x"), text, NAMES, loader) for loader in (yaml.CSafeLoader, yaml.SafeLoader))
    found = fast.build(), slow.build()

    if not fast.is_invalid:
        assert not slow.is_invalid
        assert found[0] == found[1]
        assert fast.faults == slow.faults


def bomb(levels: int, width: int) -> str:
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(bomb(10, 9), "more than 300,000 values", id="C19 nine to the tenth"),
        pytest.param(bomb(40, 2), "more than 300,000 values", id="C19 two to the fortieth"),
        pytest.param(
            f"a: &a x\nb: [{', '.join(['*a'] * (MAX_ALIASES + 1))}]\n", "more than 100 aliases", id="C19 many aliases"
        ),
        pytest.param(f"a: {'[' * 5000}{']' * 5000}\n", "more than 32 levels deep", id="C19 5,000 lists deep"),
        pytest.param(f"a: {'{a: ' * 5000}{'}' * 5000}\n", "more than 32 levels deep", id="C19 5,000 mappings deep"),
        pytest.param("- " * 5000, "more than 32 levels deep", id="C19 5,000 dashes deep"),
        pytest.param("".join(f"{' ' * n}a:\n" for n in range(1300)), "more than 32 levels deep", id="C19 deep blocks"),
        pytest.param(f"a: [{'x, ' * 400_000}]\n", "more than 300,000 values", id="C19 many values"),
    ],
)
def test_c19_bombs_fail_cleanly_and_fast(yaml_file: Path, text: str, expected: str) -> None:
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()

    _, faults = read(yaml_file, text)

    assert time.process_time() - begin < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before < 200 * 1024
    assert [expected in fault for fault in faults] == [True]


def test_depth_is_counted_exactly(yaml_file: Path) -> None:
    deepest = f"a: {'[' * (MAX_DEPTH - 1)}{']' * (MAX_DEPTH - 1)}\n"

    assert not read(yaml_file, deepest)[1]
    assert read(yaml_file, deepest.replace("[]", "[[]]"))[1] == [
        "1: : lists and mappings are nested more than 32 levels deep"
    ]


def test_c19_a_file_of_four_mebibytes_is_read_and_no_larger_one(yaml_file: Path) -> None:
    longest = "a: 1\n".ljust(MAX_FILE_BYTES, "\n")

    assert not read(yaml_file, longest)[1]
    for larger in (longest + "\n", "#" * 5_000_000):
        assert read(yaml_file, larger) == (None, ["0: : cannot be read: it is larger than 4096 KiB"])


EXPECTED_OF_FILES = {
    "absent": "no such file: set RUNTIME_CONFIG or --config to the configuration file",
    "directory": "it is a directory, not a regular file",
    "pipe": "it is a named pipe, not a regular file",
    "/dev/zero": "it is a device, not a regular file",
    "loop": "too many levels of symbolic links",
    "plain/below": "not a directory",
    "a\0b": "its name contains a NUL",
    "n" * 300: "file name too long",
    "socket": "no such device or address",
    "/proc/self/mem": "input/output error",
}


def test_c23_files_that_cannot_be_read_have_distinct_faults(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "plain").write_text("a: 1\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))

        messages = {
            path: read_document(tmp_path / path, NAMES).faults[0].message.removeprefix("cannot be read: ")
            for path in EXPECTED_OF_FILES
        }

    assert messages == EXPECTED_OF_FILES
