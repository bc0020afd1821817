"""The data of a chart: the columns of a result and how to read them. Drawing is elsewhere."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, TypeAlias

from runtimeclient.errors import ClientError
from runtimeclient.http.results import JsonValue, Number
from runtimeclient.output.console import ChartRequest, Kind
from runtimeclient.output.tables import cell

#: A chart of more points cannot be read, and they would only take memory.
MAX_POINTS = 20_000
MAX_BARS = 100
MAX_SERIES = 8

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
        raise ClientError(f"A scatter chart needs numbers or times for x: {x} has other values. Try a bar chart.")
    if kind == "bar" and len(taken) > MAX_BARS:
        raise ClientError(f"A bar chart has at most {MAX_BARS} rows: group them, or add a LIMIT.")
    ys = request.y or [name for name in numeric if name != x][: 1 if kind == "scatter" else MAX_SERIES]
    if not ys:
        raise ClientError("A chart needs a numeric column for y in addition to x: the result has none.")
    if others := [name for name in ys if name not in numeric]:
        raise ClientError(f"The column {others[0]} cannot be y: it does not hold numbers.")
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
        raise ClientError(f"A chart has at most {MAX_POINTS:,} rows: group them, add a LIMIT or USING SAMPLE.")
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
    """Take the first column that is not a y column: for bars, one without numbers if possible."""
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
    if math.isinf(number):
        raise ClientError("A number in the result is too large to draw.")
    return number


def _moment(value: JsonValue) -> float | None:
    """Parse a date or timestamp as seconds since 1970; one without a zone is UTC."""
    if not isinstance(value, str) or isinstance(value, Number):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
