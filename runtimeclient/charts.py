"""What a chart of an answer is made of: which columns, read as what. Drawing is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Literal, TypeAlias

from runtimeclient.errors import ChartError
from runtimeclient.json_stream import JsonValue, Number
from runtimeclient.tables import cell

Kind: TypeAlias = Literal["bar", "line", "scatter"]
Picture: TypeAlias = Literal["svg", "png", "html"]

KINDS: tuple[Kind, ...] = ("bar", "line", "scatter")
#: What a file of a chart can be, by the end of its name.
PICTURES: Mapping[str, Picture] = {".svg": "svg", ".png": "png", ".html": "html"}
#: More cannot be told apart in a chart, and would be read into memory for nothing.
MOST_POINTS = 20_000
MOST_BARS = 100
MOST_SERIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRequest:
    """
    The chart that was asked for.

    Attributes:
        kind: None lets the columns decide.
        x: A column; None takes the first that fits.
        y: Columns; none takes all others that hold numbers, for a scatter chart the first.
        picture: Draw it in such a file, not as text.
    """

    kind: Kind | None = None
    x: str | None = None
    y: tuple[str, ...] = ()
    picture: Picture | None = None


class Scale(Enum):
    """What the values of x are."""

    NUMBER = "number"
    TIME = "time"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """
    A chart that can be drawn.

    Attributes:
        kind: Of which kind it is.
        x_name: What x is called.
        scale: What x is.
        labels: The values of x as text.
        xs: The values of x: numbers, or seconds since 1970 for a time; the place in the answer for a text.
        series: The values of y by name; None is a gap.
        left_out: Rows without x, or without any y.
    """

    kind: Kind
    x_name: str
    scale: Scale
    labels: Sequence[str]
    xs: Sequence[float]
    series: Mapping[str, Sequence[float | None]]
    left_out: int


def make_chart(columns: Sequence[str], rows: Iterable[Sequence[JsonValue]], request: ChartRequest) -> Chart:
    """
    Choose the columns and read their values.

    Raises:
        ChartError: The answer cannot be drawn so.
    """
    taken = _take(rows, request)
    values = dict(zip(columns, map(list, zip(*taken, strict=True)), strict=True))
    for name in filter(None, (request.x, *request.y)):
        if name not in values:
            raise ChartError(f"The answer has no column {name}: it has {', '.join(columns)}.")
    numeric = [name for name in columns if all(value is None or isinstance(value, Number) for value in values[name])]
    x = request.x or _choose_x(columns, numeric, values, request)
    scale = _scale(values[x])
    kind = request.kind or ("bar" if scale is Scale.TEXT else "line")
    if kind == "scatter" and scale is Scale.TEXT:
        raise ChartError(f"A scatter chart needs numbers or times along x: {x} holds others. A bar chart takes it.")
    if kind == "bar" and len(taken) > MOST_BARS:
        raise ChartError(f"A bar chart takes up to {MOST_BARS} rows: group them, or add a LIMIT.")
    ys = request.y or [name for name in numeric if name != x][: 1 if kind == "scatter" else MOST_SERIES]
    _check_ys(ys, numeric)
    series = {name: list(map(_number, values[name])) for name in ys}
    kept = [
        place
        for place, value in enumerate(values[x])
        if (value is not None or kind == "bar") and any(series[name][place] is not None for name in ys)
    ]
    if not kept:
        raise ChartError("There is nothing to draw: every row lacks a value.")
    shown = "bar" if kind == "bar" else scale
    return Chart(
        kind=kind,
        x_name=x,
        scale=scale,
        labels=[cell(values[x][place]) for place in kept],
        xs=[_position(values[x][place], place) if shown in {Scale.NUMBER, Scale.TIME} else place for place in kept],
        series={name: [numbers[place] for place in kept] for name, numbers in series.items()},
        left_out=len(taken) - len(kept),
    )


def _take(rows: Iterable[Sequence[JsonValue]], request: ChartRequest) -> list[Sequence[JsonValue]]:
    taken: list[Sequence[JsonValue]] = []
    for row in rows:
        if len(taken) == MOST_POINTS:
            raise ChartError(f"A chart takes up to {MOST_POINTS:,} rows: group them, add a LIMIT or USING SAMPLE.")
        taken.append(row)
    if not taken:
        raise ChartError("There is nothing to draw: the answer has no rows.")
    if request.x is not None and request.x in request.y:
        raise ChartError(f"The column {request.x} cannot be both x and y.")
    return taken


def _choose_x(
    columns: Sequence[str],
    numeric: Sequence[str],
    values: Mapping[str, Sequence[JsonValue]],
    request: ChartRequest,
) -> str:
    """Take the first column that is not to be drawn: for bars one that holds no numbers, if there is any."""
    free = [name for name in columns if name not in request.y]
    if request.kind in {"bar", None} and (texts := [name for name in free if name not in numeric]):
        return texts[0]
    fitting = [name for name in free if request.kind == "bar" or _scale(values[name]) is not Scale.TEXT]
    if not free:
        raise ChartError("A chart needs a column for x beside those for y.")
    is_only_y = not request.y and fitting == numeric and len(numeric) == 1
    return fitting[0] if fitting and not is_only_y else free[0]


def _check_ys(ys: Sequence[str], numeric: Sequence[str]) -> None:
    if not ys:
        raise ChartError("A chart needs a column of numbers for y, beside the one for x: the answer has none.")
    if others := [name for name in ys if name not in numeric]:
        raise ChartError(f"The column {others[0]} does not hold numbers: it cannot be y.")
    if len(ys) > MOST_SERIES:
        raise ChartError(f"A chart takes up to {MOST_SERIES} columns as y.")


def _scale(values: Sequence[JsonValue]) -> Scale:
    present = [value for value in values if value is not None]
    if all(isinstance(value, Number) for value in present):
        return Scale.NUMBER
    return Scale.TIME if all(_moment(value) is not None for value in present) else Scale.TEXT


def _position(value: JsonValue, place: int) -> float:
    position = _number(value) if isinstance(value, Number) else _moment(value)
    return place if position is None else position


def _number(value: JsonValue) -> float | None:
    if not isinstance(value, Number):
        return None
    number = float(value)
    if math.isinf(number):
        raise ChartError("A number of the answer is too large to draw.")
    return number


def _moment(value: JsonValue) -> float | None:
    """Read a date or a timestamp as seconds since 1970; one without a zone is UTC."""
    if not isinstance(value, str) or isinstance(value, Number):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
