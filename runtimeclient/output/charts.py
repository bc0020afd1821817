"""Charts of a result: chooses the columns, reads their values, and draws text or Vega-Lite to a file."""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypeAlias

from runtimeclient.distribution import install_command
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.http.results import JsonValue, Number
from runtimeclient.output.tables import cell
from runtimeclient.output.terminal import ChartFormat, ChartRequest, Kind, Style
from runtimeclient.output.text import plural, visible, width

#: The maximum number of points. Larger charts would be unreadable and only take memory.
MAX_POINTS = 20_000
MAX_BARS = 100
MAX_SERIES = 8
# The difference of two numbers below the largest is finite, and so is the reciprocal of one above the smallest.
_MAX_NUMBER, _MIN_NUMBER = 1e300, 1e-300

#: The type of the values of x.
Scale: TypeAlias = Literal["number", "time", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, ready to be drawn."""

    kind: Kind
    x_name: str
    scale: Scale
    labels: Sequence[str]  # the x values as text
    xs: Sequence[float]  # the x values: numbers, seconds since 1970 for times, row numbers for text
    series: Mapping[str, Sequence[float | None]]  # the y values by column name; None is a gap
    left_out: int  # rows skipped because they have no x or no y


def make_chart(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]], request: ChartRequest) -> Chart:
    """Choose the columns and read their values. Raises ClientError if the result cannot be drawn as requested."""
    taken = _take(rows, request)
    values = dict(zip(columns, map(list, zip(*taken, strict=True)), strict=True))
    for name in filter(None, (request.x, *request.y)):
        if name not in values:
            raise ClientError(f"The result has no column {name}. Its columns are {', '.join(columns)}.")
    numeric = [name for name in columns if all(value is None or isinstance(value, Number) for value in values[name])]
    x = request.x or _choose_x(columns, numeric, values, request)
    scale = _scale(values[x])
    kind = request.kind or ("bar" if scale == "text" else "line")
    if kind == "scatter" and scale == "text":
        raise ClientError(f"A scatter chart needs numbers or times for x, but {x} has other values. Try a bar chart.")
    if kind == "bar" and len(taken) > MAX_BARS:
        raise ClientError(f"A bar chart has at most {MAX_BARS} rows: group the rows, or add LIMIT.")
    ys = request.y or [name for name in numeric if name != x][: 1 if kind == "scatter" else MAX_SERIES]
    if not ys:
        raise ClientError("A chart needs a numeric column for y in addition to x, but the result has none.")
    if others := [name for name in ys if name not in numeric]:
        raise ClientError(f"The column {others[0]} cannot be y, because it is not numeric.")
    if len(ys) > MAX_SERIES:
        raise ClientError(f"A chart has at most {MAX_SERIES} y columns.")
    series = {name: list(map(_number, values[name])) for name in ys}
    kept = [
        index
        for index, value in enumerate(values[x])
        if (value is not None or kind == "bar") and any(series[name][index] is not None for name in ys)
    ]
    if not kept:
        raise ClientError("There is nothing to draw: every row lacks a value.")
    shown = "bar" if kind == "bar" else scale
    return Chart(
        kind=kind,
        x_name=x,
        scale=scale,
        labels=[cell(values[x][index]) for index in kept],
        xs=[_position(values[x][index], index) if shown in {"number", "time"} else index for index in kept],
        series={name: [numbers[index] for index in kept] for name, numbers in series.items()},
        left_out=len(taken) - len(kept),
    )


def _take(rows: Iterable[Sequence[JsonValue]], request: ChartRequest) -> list[Sequence[JsonValue]]:
    taken = list(islice(rows, MAX_POINTS + 1))
    if len(taken) > MAX_POINTS:
        raise ClientError(f"A chart has at most {MAX_POINTS:,} rows: group the rows, or add LIMIT or USING SAMPLE.")
    if not taken:
        raise ClientError("There is nothing to draw: the result has no rows.")
    if request.x is not None and request.x in request.y:
        raise ClientError(f"The column {request.x} cannot be both x and y.")
    return taken


def _choose_x(
    columns: Sequence[str],
    numeric: Sequence[str],
    values: Mapping[str, Sequence[JsonValue]],
    request: ChartRequest,
) -> str:
    """Choose the first column that is not a y column. For bars, prefer a column without numbers."""
    free = [name for name in columns if name not in request.y]
    if request.kind in {"bar", None} and (texts := [name for name in free if name not in numeric]):
        return texts[0]
    fitting = [name for name in free if request.kind == "bar" or _scale(values[name]) != "text"]
    if not free:
        raise ClientError("A chart needs a column for x in addition to those for y.")
    is_only_y = not request.y and fitting == numeric and len(numeric) == 1
    return fitting[0] if fitting and not is_only_y else free[0]


def _scale(values: Sequence[JsonValue]) -> Scale:
    present = [value for value in values if value is not None]
    if all(isinstance(value, Number) for value in present):
        return "number"
    return "time" if all(_moment(value) is not None for value in present) else "text"


def _position(value: JsonValue, index: int) -> float:
    position = _number(value) if isinstance(value, Number) else _moment(value)
    return index if position is None else position


def _number(value: JsonValue) -> float | None:
    if not isinstance(value, Number):
        return None
    number = float(value)
    if abs(number) > _MAX_NUMBER:
        raise ClientError("A number in the result is too large to draw.")
    return number if abs(number) >= _MIN_NUMBER else 0.0


def _moment(value: JsonValue) -> float | None:
    """Parse a date or timestamp as seconds since 1970. Without a zone it is in UTC."""
    if not isinstance(value, str) or isinstance(value, Number):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_COLUMNS, _LINES = 80, 18
_MAX_LABEL = 30
# The distance between two axis labels, and their maximum length.
_TICK_SPACING, _MAX_TICK = 16, 14
# The eighths of a full block character.
_PARTS = " ▏▎▍▌▋▊▉"
# plotext writes all digits of y. Within these limits, there is room for them.
_MIN_Y, _MAX_Y = 1e-9, 1e15
_Y_TICKS = 7
# The first and the last second of a date.
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
# Distinguish the series when there are no colours.
_MARKS = "●x+o◆*▲#"
# Colours of the 256-colour palette that are readable on black and on white.
_COLORS = (33, 208, 35, 170, 37, 160, 99, 136)
_PLAIN = "\x1b[0m"
# The size of a drawing in a file, in pixels.
_WIDTH, _HEIGHT = 640, 360
_LETTER_WIDTH = 8
# The policy blocks all network access. Vega compiles expressions, which needs unsafe-eval.
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<title>Chart</title>
<script>{bundle}</script>
</head>
<body>
<div id="chart"></div>
<script>vegaEmbed("#chart", {spec}, {{renderer: "svg", actions: {{editor: false}}}});</script>
</body>
</html>
"""


def draw_text(chart: Chart, style: Style) -> Iterator[str]:
    """Yield the lines of a chart, with line breaks, no wider than the terminal, and the number of rows."""
    columns = style.columns or _COLUMNS
    yield from _bars(chart, columns, style) if chart.kind == "bar" else _plot(chart, columns, style)
    if not style.is_quiet:
        left_out = f", {chart.left_out:,} without a value left out" if chart.left_out else ""
        yield f"({plural(len(chart.xs), 'row')}{left_out})\n"


def _bars(chart: Chart, columns: int, style: Style) -> Iterator[str]:
    labels = [_cut(label) for label in chart.labels]
    values = [value for numbers in chart.series.values() for value in numbers if value is not None]
    texts = {value: f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}" for value in values}
    low, high = min(0.0, *values), max(0.0, *values)
    label_width = max(width(chart.x_name), *map(width, labels))
    room = max(columns - label_width - max(map(len, texts.values())) - 5, 8)
    scale = room / (high - low or 1)
    zero = round(-low * scale)
    names = list(chart.series)
    yield f"{_right(visible(chart.x_name), label_width)} │ {_legend(names, style)}\n"
    for index, label in enumerate(labels):
        for number, name in enumerate(names):
            value = chart.series[name][index]
            head = _right("" if number else label, label_width)
            if value is None:
                yield f"{head} │\n"
                continue
            bar = _bar(value * scale, zero, room, _MARKS[number] if len(names) > 1 and not style.is_colored else "")
            color = f"\x1b[38;5;{_COLORS[number]}m" if style.is_colored else ""
            yield f"{head} │{color}{bar}{_PLAIN if color else ''} {texts[value]}\n"


def _bar(length: float, zero: int, room: int, mark: str) -> str:
    """Draw one bar. A negative value extends to the left of the column *zero*."""
    if length < 0:
        size = min(max(round(-length), 1), zero)
        return " " * (zero - size) + (mark or "█") * size
    whole = min(int(length), room - zero)
    part = "" if mark else _PARTS[int((length - int(length)) * 8)].strip()
    return " " * zero + ((mark or "█") * whole + part or (mark or _PARTS[1]) * (length > 0))


def _plot(chart: Chart, columns: int, style: Style) -> Iterator[str]:
    plotext: Any = importlib.import_module("plotext")  # imported late because it is slow to import; it has no types
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(columns, _LINES)
    plotext.theme("clear")
    draw = plotext.plot if chart.kind == "line" else plotext.scatter
    is_single = len(chart.series) == 1
    for number, numbers in enumerate(chart.series.values()):
        points = [(x, y) for x, y in zip(chart.xs, numbers, strict=True) if y is not None]
        marker = "braille" if chart.kind == "line" and (is_single or style.is_colored) else _MARKS[number]
        color = _COLORS[number] if style.is_colored else "default"
        draw([x for x, _ in points], [y for _, y in points], marker=marker, color=color)
    plotext.xticks(*_ticks(chart, max(columns // _TICK_SPACING, 2)))
    ys = [y for numbers in chart.series.values() for y in numbers if y is not None]
    if not _MIN_Y <= max(map(abs, ys)) < _MAX_Y:
        positions = _positions(ys, _Y_TICKS)
        plotext.yticks(positions, [f"{position:.6g}" for position in positions])
    text: str = plotext.build()
    yield f" {_legend(list(chart.series), style)}\n"
    for line in (text if style.is_colored else plotext.uncolorize(text)).splitlines():
        yield line.rstrip() + "\n"
    name = visible(chart.x_name)
    yield " " * max((columns - width(name)) // 2, 0) + name + "\n"


def _legend(names: Sequence[str], style: Style) -> str:
    if style.is_colored:
        return "  ".join(f"\x1b[38;5;{_COLORS[n]}m{visible(name)}{_PLAIN}" for n, name in enumerate(names))
    if len(names) == 1:
        return visible(names[0])
    return "  ".join(f"{_MARKS[n]} {visible(name)}" for n, name in enumerate(names))


def _ticks(chart: Chart, count: int) -> tuple[Sequence[float], Sequence[str]]:
    """Choose axis positions and their labels, because plotext only handles numbers."""
    if chart.scale == "text":
        step = -(-len(chart.xs) // count)
        return list(chart.xs[::step]), [_cut(label, _MAX_TICK) for label in chart.labels[::step]]
    positions = _positions(chart.xs, count)
    if chart.scale == "time":
        return positions, [_tick(position, positions[-1] - positions[0]) for position in positions]
    return positions, [f"{position:,.6g}" for position in positions]


def _positions(numbers: Sequence[float], count: int) -> Sequence[float]:
    """Return *count* positions, evenly spaced over the range of *numbers*, or one if all numbers are equal."""
    low, high = min(numbers), max(numbers)
    return [low + (high - low) * n / (count - 1) for n in range(count)] if high > low else [low]


def _tick(seconds: float, span_s: float) -> str:
    """Format a time with the precision that the span of the chart needs."""
    # In UTC, a time with an offset may lie just outside the years 1 to 9999.
    moment = datetime.fromtimestamp(min(max(seconds, _FIRST_S), _LAST_S), UTC)
    if span_s > 4 * 86_400:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%m-%d %H:%M}" if span_s > 300 else f"{moment:%H:%M:%S}"


def _cut(label: str, longest: int = _MAX_LABEL) -> str:
    # Measuring a label of megabytes would be slow. An emoji may consist of eight characters.
    start = label[: 8 * longest]
    if label == start and width(label) <= longest:
        return label
    while width(start) > longest - 1:
        start = start[:-1]
    return start + "…"


def _right(text: str, columns: int) -> str:
    return " " * (columns - width(text)) + text


def file_drawer(file_format: ChartFormat) -> Callable[[Chart], bytes]:
    """Return a function that draws a chart as SVG, PNG, or a self-contained HTML page. Raises UsageError."""
    try:
        vl_convert = importlib.import_module("vl_convert")
    except ImportError as exc:
        raise UsageError(f"A chart in a file needs vl-convert: {install_command('charts')}") from exc

    def draw(chart: Chart) -> bytes:
        spec = vega_lite(chart)
        if file_format == "png":
            return bytes(vl_convert.vegalite_to_png(spec, scale=2, allowed_base_urls=[]))  # sharp on dense screens
        if file_format == "svg":
            return str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])).encode()
        # In a script element, "<" may end the script or start a comment, even inside quotes.
        text = json.dumps(spec).replace("<", "\\u003c")
        return _PAGE.format(bundle=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), spec=text).encode()

    return draw


def vega_lite(chart: Chart) -> dict[str, Any]:
    """Describe a chart in Vega-Lite 6. Fields do not use column names, which Vega may parse as paths."""
    is_bar = chart.kind == "bar"
    names = list(map(visible, chart.series))  # XML has no control characters
    x_title, y_title = _title(visible(chart.x_name)), _title(names[0]) if len(names) == 1 else None
    # Vega uses milliseconds.
    times = [x * 1000 for x in chart.xs] if chart.scale == "time" else chart.xs
    xs = chart.labels if is_bar or chart.scale == "text" else times
    values = [
        {"x": x, "y": y, "series": name}
        for name, numbers in zip(names, chart.series.values(), strict=True)
        for x, y in zip(xs, numbers, strict=True)
    ]
    kind = "nominal" if is_bar else {"number": "quantitative", "time": "temporal", "text": "nominal"}[chart.scale]
    x: dict[str, Any] = {"field": "x", "title": x_title, "type": kind}
    y = {"field": "y", "title": y_title, "type": "quantitative"}
    if kind == "nominal":
        # Keep labels horizontal if they fit, because rotated labels are hard to read.
        fits = sum(map(len, chart.labels)) * _LETTER_WIDTH < _WIDTH
        x |= {"sort": None, "axis": {"labelAngle": 0 if fits else -40}}  # in the order of the rows
    else:
        # The runtime uses UTC, so do not convert times to the viewer's time zone.
        x["scale"] = {"type": "utc"} if kind == "temporal" else {"zero": False}
    tooltip = [{"field": "x", "title": x_title, "type": kind}, {"field": "y", "type": "quantitative"}]
    encoding: dict[str, Any] = {"x": x, "y": y, "tooltip": tooltip}
    if len(names) > 1:
        encoding["color"] = {"field": "series", "type": "nominal", "title": None, "sort": names}
        if is_bar:
            encoding["xOffset"] = {"field": "series", "type": "nominal", "sort": names}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": _WIDTH,
        "height": _HEIGHT,
        "data": {"values": values},
        "mark": {"bar": "bar", "line": "line", "scatter": "point"}[chart.kind],
        "encoding": encoding,
    }


def _title(name: str) -> str:
    """Return a title that Vega-Lite can put into its expressions, where it escapes quotes but no backslashes."""
    return name.replace("\\", "\N{REVERSE SOLIDUS OPERATOR}")
