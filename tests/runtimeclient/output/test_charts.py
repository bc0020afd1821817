from collections.abc import Sequence
from pathlib import Path

import pytest

from runtimeclient.errors import ClientError
from runtimeclient.http.results import JsonValue, Number
from runtimeclient.output.charts import Chart, draw_text, make_chart, vega_lite
from runtimeclient.output.terminal import KINDS, ChartRequest, Kind, Style
from tests.corpus import each
from tests.runtimeclient.remote import Remote, Reply, with_schema

THREE = with_schema('[{"carrier":"UA","n":40},{"carrier":"DL","n":10.5},{"carrier":null,"n":null}]', "carrier", "n")


def n(*numbers: float) -> list[JsonValue]:
    return [Number(number) for number in numbers]


def drawn(chart: Chart, *, is_colored: bool = False, is_quiet: bool = False) -> list[str]:
    style = Style(columns=60, is_colored=is_colored, is_quiet=is_quiet)
    return "".join(draw_text(chart, style)).splitlines()


DAYS: list[list[JsonValue]] = [["2013-01-01", *n(1, 5)], ["2013-01-02T12:00:00Z", *n(2, 4)]]


@each(
    ("rows", "request_", "kind", "names", "scale"),
    [
        ([["a", *n(1, 2)]], ChartRequest(), "bar", ["a", "b", "c"], "text"),
        ([["a", *n(1, 2)]], ChartRequest(kind="line", x="b"), "line", ["b", "c"], "number"),
        ([n(1, 2, 3)], ChartRequest(), "line", ["a", "b", "c"], "number"),
        ([n(1, 2, 3)], ChartRequest(kind="scatter"), "scatter", ["a", "b"], "number"),
        ([n(1, 2, 3)], ChartRequest(kind="bar", y=("a",)), "bar", ["b", "a"], "number"),
        ([n(1, 2, 3)], ChartRequest(y=("a", "b")), "line", ["c", "a", "b"], "number"),
        (DAYS, ChartRequest(kind="line"), "line", ["a", "b", "c"], "time"),
        ([["x", *n(1, 2)]], ChartRequest(kind="scatter", y=("c",)), "scatter", ["b", "c"], "number"),
        ([["x", "y", *n(2)]], ChartRequest(kind="line"), "line", ["a", "c"], "text"),
    ],
)
def test_columns_are_chosen(
    rows: list[Sequence[JsonValue]], request_: ChartRequest, kind: str, names: list[str], scale: str
) -> None:
    chart = make_chart(("a", "b", "c"), rows, request_)

    assert (chart.kind, chart.x_name, list(chart.series), chart.scale) == (kind, names[0], names[1:], scale)


@each(
    ("rows", "request_", "said"),
    [
        ([], ChartRequest(), "There is nothing to draw: the result has no rows."),
        ([["x", None]], ChartRequest(), "There is nothing to draw: every row lacks a value."),
        ([["x", "y"]], ChartRequest(), "A chart needs a numeric column for y"),
        ([["x", "y"]], ChartRequest(y=("b",)), "The column b cannot be y, because it is not numeric."),
        ([["x", *n(1)]], ChartRequest(x="z"), "The result has no column z. Its columns are a, b."),
        ([["x", *n(1)]], ChartRequest(x="b", y=("b",)), "The column b cannot be both x and y."),
        ([n(1, 2)], ChartRequest(y=("a", "b")), "A chart needs a column for x in addition to those for y."),
        ([["x", *n(1)]], ChartRequest(kind="scatter", x="a"), "A scatter chart needs numbers or times for x"),
        *[([[Number("1"), Number(y)]], ChartRequest(), "A number in the result is too") for y in ("1e999", "-1.7e308")],
        ([["x", *n(1)]] * 101, ChartRequest(), "A bar chart has at most 100 rows"),
        ([n(1, 1)] * 20_001, ChartRequest(), "A chart has at most 20,000 rows"),
        ([n(*range(10))], ChartRequest(x="a", y=tuple("bcdefghij")), "A chart has at most 8 y columns"),
    ],
)
def test_a_result_that_cannot_be_drawn_is_an_error(
    rows: list[Sequence[JsonValue]], request_: ChartRequest, said: str
) -> None:
    columns = "abcdefghij"[: len(rows[0])] if rows else "ab"
    with pytest.raises(ClientError, match=f"^{said}"):
        make_chart(columns, rows, request_)


def test_rows_without_x_or_y_are_left_out_and_counted() -> None:
    chart = make_chart(("x", "y"), [n(1, 2), [None, *n(3)], [*n(3), None], n(4, 5)], ChartRequest())

    assert chart.xs == [1, 4]
    assert drawn(chart)[-1] == "(2 rows, 2 without a value left out)"
    assert drawn(chart, is_quiet=True)[-1].strip() == "x"


def test_bars_are_proportional_and_keep_the_order() -> None:
    rows: list[list[JsonValue]] = [["b\x1b", *n(40)], ["日本", *n(-20)], [None, *n(0.001)], ["x" * 50, None]]
    chart = make_chart(("carrier", "y"), rows[:3], ChartRequest())

    lines = drawn(chart)

    assert lines[0] == "carrier │ y"
    assert lines[1].startswith("  b\\x1b │")
    assert lines[1].count("█") == pytest.approx(2 * lines[2].count("█"), abs=2)
    assert lines[2].startswith("   日本 │█")
    assert lines[3].strip().startswith("NULL │")
    assert lines[3].rstrip().endswith("▏ 0.001")
    assert lines[4] == "(3 rows)"
    assert max(map(len, lines)) <= 60


def test_labels_and_numbers_of_any_length_fit() -> None:
    rows: list[list[JsonValue]] = [["x" * 1_000_000, *n(1e300)], ["é" * 30, *n(-1e300)]]
    decomposed = "e\u0301" * 30
    chart = make_chart(("a", "y"), [*rows, [decomposed, *n(1e14)]], ChartRequest())
    two = make_chart(("a", "y", "z"), [["x" * 50, *n(1), None], ["y", *n(2_000_000, 1)]], ChartRequest())

    lines, of_two = drawn(chart), drawn(two)

    assert of_two[0].endswith("│ ● y  x z")
    assert of_two[1].startswith("x" * 29 + "… │●")
    assert of_two[2].endswith("│")
    assert "2,000,000" in of_two[3]

    assert lines[1].startswith("x" * 29 + "… │")
    assert lines[1].endswith(" 1e+300")
    assert lines[3].startswith(decomposed + " │")
    assert lines[3].endswith(" 100,000,000,000,000")
    assert max(map(len, lines[:3])) <= 60


@each("ys", [[-1e300, 1e300], [1e200, 2e200], [-5e-324, 1e-320], [1e-300, 2e-300], [-3e-40, 1e-40]])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_any_size_are_drawn(kind: Kind, ys: list[float]) -> None:
    chart = make_chart(("x", "y"), [n(y, y) for y in ys], ChartRequest(kind=kind, x="x", y=("y",)))

    lines = drawn(chart)

    assert max(map(len, lines)) <= 60
    assert f"{max(ys):.6g}" in "\n".join(lines) or max(ys) < 1e-300


@pytest.mark.parametrize("kind", ["line", "scatter"])
@pytest.mark.parametrize("is_colored", [False, True])
def test_lines_and_points_have_readable_axes(kind: str, is_colored: bool) -> None:
    chart = make_chart(
        ("day", "delay\x07", "other"),
        [*DAYS, ["2013-06-01", *n(0), None], ["2013-12-01", None, *n(5)]],
        ChartRequest(kind="line" if kind == "line" else "scatter", y=("delay\x07", "other")),
    )

    lines = drawn(chart, is_colored=is_colored)

    text = "\n".join(lines)
    assert r"delay\x07" in lines[0]
    assert "2013-01-01" in text
    assert "2013-12-01" in text
    assert lines[-2].strip() == "day"
    assert ("\x1b[" in text) is is_colored
    if not is_colored:
        assert max(map(len, lines)) <= 60
        assert "●" in text


@pytest.mark.parametrize(
    ("values", "tick"),
    [
        (["2013-01-01T00:00:00", "2013-01-01T12:00:00"], "01-01 06:00"),
        (["2013-01-01T00:00:00", "2013-01-01T00:01:00"], "00:00:30"),
        (["2013-01-01", "2013-01-01"], "00:00:00"),
        (["0001-01-01T00:00:00+14:00", "2013-01-01"], "1-01-01"),
        (["2013-01-01", "9999-12-31T23:59:59-14:00"], "9999-12-31"),
        (["9999-12-31T23:59:59.999999"], "23:59:59"),
        (["alpha", "beta"], "alpha"),
    ],
)
def test_ticks_have_the_precision_of_the_span(values: list[str], tick: str) -> None:
    rows = [[value, *n(place)] for place, value in enumerate(values)]
    chart = make_chart(("t", "y"), rows, ChartRequest(kind="line"))

    assert tick in "\n".join(drawn(chart))


def test_vega_lite_has_utc_times_rows_in_order_and_no_column_name_as_a_field() -> None:
    line = vega_lite(make_chart(("a.b", "y"), [["1970-01-01T00:00:02", *n(1)]], ChartRequest()))
    bars = vega_lite(make_chart(("a", "y", "z"), [["q", *n(1, 2)], ["b", *n(3, 4)]], ChartRequest()))

    assert line["data"]["values"] == [{"x": 2000, "y": 1, "series": "y"}]
    assert line["encoding"]["x"] == {"field": "x", "title": "a.b", "type": "temporal", "scale": {"type": "utc"}}
    assert [value["x"] for value in bars["data"]["values"]] == ["q", "b", "q", "b"]
    assert bars["encoding"]["x"]["sort"] is None
    assert bars["encoding"]["xOffset"]["sort"] == bars["encoding"]["color"]["sort"] == ["y", "z"]


def test_a_result_is_drawn_as_text_or_to_a_file_that_is_complete(remote: Remote, tmp_path: Path) -> None:
    remote.on_sql(THREE)
    done = remote.call("sql", "x", "--chart", "bar")
    file = tmp_path / "a.svg"

    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == "carrier │ n"
    assert done.out.splitlines()[-1] == "(2 rows, 1 without a value left out)"
    remote.on_sql(Reply(body=THREE.body[:-5], content_type=THREE.content_type))
    assert remote.call("sql", "x", "--chart-file", str(file)).status == 3
    assert list(tmp_path.iterdir()) == []
    for x in ("1", '"2013-01-01T00:00:00"'):
        remote.on_sql(with_schema(f'[{{"x":{x},"n":1}}]', "x", "n"))
        assert remote.call("sql", "x", "--chart-file", str(file)).status == 0
        assert "<svg" in file.read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "begin", "kind"),
    [
        ("a.svg", b"<svg", "bar"),
        ("a.svg", b"<svg", "line"),
        ("a.svg", b"<svg", "scatter"),
        ("a.PNG", b"\x89PNG\r\n\x1a\n", "bar"),
        ("a.html", b"<!DOCTYPE html>", "line"),
    ],
)
def test_a_chart_file_is_written(remote: Remote, tmp_path: Path, name: str, begin: bytes, kind: str) -> None:
    # XML has no control characters, and Vega-Lite puts titles into expressions.
    name_of_x, name_of_y = r"\u0001</script><b>\"", r"\\\"+\u0001"
    row = f'{{"{name_of_x}":"{name_of_x}","{name_of_y}":1,"m":2}}'
    remote.on_sql(with_schema(f"[{row}]", '\1</script><b>"', '\\"+\1', "m"))
    file = tmp_path / name

    done = remote.call("sql", "x", "--chart", kind, "--chart-file", str(file))

    assert (done.status, done.out, done.err) == (0, "", "")
    content = file.read_bytes()
    assert content.lstrip().startswith(begin)
    assert b"\1" not in content or begin.startswith(b"\x89")
    # Values are text, not a part of the page.
    assert b"</script><b>" not in content
    # The page loads nothing from the network.
    assert b'src="http' not in content
