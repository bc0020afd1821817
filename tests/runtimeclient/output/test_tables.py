import re
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest

from runtimeclient.errors import OutputError
from runtimeclient.http.results import JsonValue, Number
from runtimeclient.output.tables import SAMPLE_ROWS, cell, markdown, table
from runtimeclient.output.terminal import DOT_COMMANDS, Style

PLAIN = Style()


def lines_of(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]], style: Style) -> list[str]:
    return "".join(table(columns, rows, style)).splitlines()


@pytest.mark.parametrize(
    ("columns", "rows", "shown"),
    [
        pytest.param(
            ("carrier", "n"),
            [["UA", Number("58665")], ["B6", Number("5.0")]],
            [" carrier |     n", "---------+-------", " UA      | 58665", " B6      |   5.0", "(2 rows)"],
            id="numbers to the right, texts to the left",
        ),
        pytest.param(("a",), [[True]], [" a", "------", " true", "(1 row)"], id="one row"),
        pytest.param(("a", "name"), [], [" a | name", "---+------", "(0 rows)"], id="no rows"),
        pytest.param(
            ("n",), [[None], [Number("12345")]], ["     n", "-------", "  NULL", " 12345", "(2 rows)"], id="NULL"
        ),
        pytest.param(
            ("s", "t"),
            [["日本", "a"], ["abcd", "b"], ["e\u0301", "c"]],
            [" s    | t", "------+---", " 日本 | a", " abcd | b", " e\u0301    | c", "(3 rows)"],
            id="wide characters",
        ),
    ],
)
def test_columns_are_aligned(columns: Sequence[str], rows: list[list[JsonValue]], shown: list[str]) -> None:
    assert lines_of(columns, rows, PLAIN) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "NULL"),
        ("NULL", '"NULL"'),
        ("", ""),
        ("null", "null"),
        ({"a": [Number("1.50"), None, True, 'x"'], "é": {}}, '{"a":[1.50,null,true,"x\\""],"é":{}}'),
    ],
)
def test_a_cell_is_unambiguous(value: JsonValue, shown: str) -> None:
    assert cell(value) == shown


def test_long_cells_are_not_cut_and_do_not_pad_all_others() -> None:
    below = lines_of(("x", "y"), [["a", "b"]] * SAMPLE_ROWS + [["long" * 100, "b"]], PLAIN)
    first = lines_of(("x", "y"), [["x" * 10_000, "b"], ["a", "b"]], PLAIN)

    assert below[-2:] == [f" {'long' * 100} | b", f"({SAMPLE_ROWS + 1} rows)"]
    assert first[2] == f" {'x' * 10_000} | b"
    assert len(first[3]) < 200


@pytest.mark.parametrize(
    ("style", "shown"),
    [
        (Style(max_rows=3), [" 0", " 1", " 2", "(3 rows)"]),
        (Style(max_rows=2), [" 0", " 1", "(the first 2 rows; there are more: --max-rows 0 shows all)"]),
        (Style(is_quiet=True), [" 0", " 1", " 2"]),
        (Style(is_quiet=True, max_rows=1), [" 0", "(the first 1 row; there are more: --max-rows 0 shows all)"]),
    ],
)
def test_a_row_limit_is_reported_when_reached_even_if_quiet(style: Style, shown: list[str]) -> None:
    assert lines_of(("n",), [[Number(number)] for number in range(3)], style)[2:] == shown


def test_x12_cells_and_column_names_are_escaped() -> None:
    rows: list[list[JsonValue]] = [["\x1b]0;pwn\x07"], [["\u202e"]], [{"\r": "\x07"}]]

    text = "".join(table(("\x1b[2J",), rows, PLAIN))

    assert set(text) & {"\x1b", "\x07", "\r", "\u202e"} == set()
    assert r"\x1b]0;pwn\x07" in text


def test_memory_does_not_grow_with_the_rows() -> None:
    def rows() -> Iterator[Sequence[JsonValue]]:
        for number in range(50_000):
            yield [Number(number), "x" * 100]

    tracemalloc.start()
    try:
        count = sum(1 for _ in table(("n", "x"), rows(), PLAIN))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count == 50_003
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("cell_size", "style", "lines", "expected"),
    [
        pytest.param(400_000, PLAIN, 1, 3, id="a few huge cells are the sample"),
        pytest.param(1, Style(max_rows=SAMPLE_ROWS + 5), None, SAMPLE_ROWS + 6, id="one more than the row limit"),
    ],
)
def test_only_the_necessary_rows_are_read(cell_size: int, style: Style, lines: int | None, expected: int) -> None:
    rows: Iterator[list[JsonValue]] = iter([["x" * cell_size]] * 100_000)

    list(islice(table(("x",), rows, style), lines))

    assert sum(1 for _ in rows) == 100_000 - expected


def test_a_deeply_nested_value_is_an_error() -> None:
    value: JsonValue = None
    for _ in range(100_000):
        value = [value]

    with pytest.raises(OutputError, match="json"):
        cell(value)
    while value:
        value = value[0]  # type: ignore[index] # taken apart, or freeing it would nest as deep


# On a terminal


def test_a_wide_table_becomes_records() -> None:
    rows: list[list[JsonValue]] = [[Number("1"), "x" * 20], [None, "日本"]]

    shown = lines_of(("n", "日本text"), rows, Style(columns=20))

    assert shown == [
        "-[ row 1 ]----------",
        "n        | 1",
        f"日本text | {'x' * 20}",
        "-[ row 2 ]----------",
        "n        | NULL",
        "日本text | 日本",
        "(2 rows)",
    ]


@pytest.mark.parametrize(
    ("style", "is_expanded"),
    [
        (Style(columns=8), False),
        (Style(columns=7), True),
        (Style(columns=6, expanded="off"), False),
        (Style(expanded="on"), True),
        (Style(), False),
    ],
)
def test_expanded_applies_to_wide_tables_unless_set(style: Style, is_expanded: bool) -> None:
    shown = lines_of(("a", "b"), [["x", "yz"]], style)

    assert shown[0].startswith("-[ row 1 ]") is is_expanded


WIDE = tuple(f"c{number}" for number in range(6))
WIDE_ROWS: list[list[JsonValue]] = [[Number(str(number)) for number in range(6)], [None, *"vwxyz"]]


def test_a_wide_table_leaves_out_middle_columns_and_reports_it_even_if_quiet() -> None:
    assert lines_of(WIDE, WIDE_ROWS, Style(columns=26, elides=True)) == [
        "   c0 | c1 | … | c4 | c5",
        "------+----+---+----+----",
        "    0 | 1  | … | 4  | 5",
        " NULL | v  | … | y  | z",
        "(2 rows; 6 columns (4 shown): --expanded on shows all)",
    ]
    quiet = Style(columns=26, elides=True, is_quiet=True, max_rows=1, hints=DOT_COMMANDS)
    assert lines_of(WIDE, WIDE_ROWS, quiet)[-1] == (
        "(the first 1 row; there are more: .maxrows 0 shows all; 6 columns (4 shown): .expanded on shows all)"
    )


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        pytest.param(31, [*WIDE], id="all"),
        pytest.param(30, ["c0", "c1", "c2", "…", "c4", "c5"], id="all but one"),
        pytest.param(29, ["c0", "c1", "…", "c4", "c5"], id="one less"),
        pytest.param(15, ["c0", "…", "c5"], id="the edges"),
        pytest.param(14, [], id="records"),
    ],
)
def test_as_few_columns_as_possible_are_left_out(columns: int, shown: list[str]) -> None:
    lines = lines_of(WIDE, WIDE_ROWS, Style(columns=columns, elides=True))

    assert [name.strip() for name in lines[0].split("|") if "row" not in name] == shown
    assert all(len(line) <= columns for line in lines[:-1])


@pytest.mark.parametrize("style", [Style(columns=20, elides=True, expanded="off"), Style(elides=True)])
def test_no_column_is_left_out_without_elides(style: Style) -> None:
    assert lines_of(WIDE, WIDE_ROWS, style)[0].count("|") == 5


def test_colours_do_not_change_the_alignment() -> None:
    rows: list[list[JsonValue]] = [[None, Number("1")], ["abcdef", None]]

    for style in (Style(is_colored=True), Style(is_colored=True, expanded="on")):
        colored = "\n".join(lines_of(("a", "b"), rows, style))
        assert "\x1b[2mNULL\x1b[0m" in colored
        assert re.sub(r"\x1b\[\d*m", "", colored).split("\n") == [
            line.rstrip() for line in lines_of(("a", "b"), rows, replace(style, is_colored=False))
        ]


def test_markdown_syntax_is_escaped() -> None:
    rows: list[list[JsonValue]] = [["a|b\n*c* <i> `d` \\", Number("1.50")], ["snake_case _e_", None]]

    assert "".join(markdown(("x[1]", "n"), rows)) == (
        "| x\\[1\\] | n |\n"
        "| --- | ---: |\n"
        "| a\\|b\\\\n\\*c\\* \\<i\\> \\`d\\` \\\\ | 1.50 |\n"
        "| snake_case \\_e\\_ | NULL |\n"
    )
