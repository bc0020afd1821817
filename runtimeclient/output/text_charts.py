"""Charts as text: bars drawn with block characters, lines and points with plotext."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import plotext as _untyped

from runtimeclient.output.charts import Chart
from runtimeclient.output.console import Style
from runtimeclient.output.text import plural, visible, width

plotext: Any = _untyped  # it has no types

_COLUMNS, _LINES = 80, 18
_MAX_LABEL = 30
# Distance between two axis labels, and their maximum length.
_TICK_SPACING, _MAX_TICK = 16, 14
# Eighths of a character.
_PARTS = " ▏▎▍▌▋▊▉"
# Distinguish the series when there are no colours.
_MARKS = "●x+o◆*▲#"
# Of the 256-colour palette: readable on black and on white.
_COLORS = (33, 208, 35, 170, 37, 160, 99, 136)
_PLAIN = "\x1b[0m"


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
    """Draw one bar; a negative value extends to the left of the column *zero*."""
    if length < 0:
        size = min(max(round(-length), 1), zero)
        return " " * (zero - size) + (mark or "█") * size
    whole = min(int(length), room - zero)
    part = "" if mark else _PARTS[int((length - int(length)) * 8)].strip()
    return " " * zero + ((mark or "█") * whole + part or (mark or _PARTS[1]) * (length > 0))


def _plot(chart: Chart, columns: int, style: Style) -> Iterator[str]:
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
    """Choose axis positions and their labels: plotext only handles numbers."""
    if chart.scale == "text":
        step = -(-len(chart.xs) // count)
        return list(chart.xs[::step]), [_cut(label, _MAX_TICK) for label in chart.labels[::step]]
    low, high = min(chart.xs), max(chart.xs)
    positions = [low + (high - low) * n / (count - 1) for n in range(count)] if high > low else [low]
    if chart.scale == "time":
        return positions, [_moment(position, high - low) for position in positions]
    return positions, [f"{position:,.6g}" for position in positions]


def _moment(seconds: float, span_s: float) -> str:
    """Format a time with the precision that the span of the chart needs."""
    moment = datetime.fromtimestamp(seconds, UTC)
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
