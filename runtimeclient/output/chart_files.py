"""Charts as files: SVG, PNG, or a self-contained HTML page. Altair describes them, vl-convert draws them."""

import json
from typing import IO, Any

from runtimeclient.distribution import install_command
from runtimeclient.errors import UsageError
from runtimeclient.http.results import SqlAnswer
from runtimeclient.output.charts import Chart, make_chart
from runtimeclient.output.console import ChartRequest, Picture
from runtimeclient.output.formats import read_rows

try:
    import altair as alt
    import vl_convert
except ImportError as exc:
    raise UsageError(f"A chart in a file needs altair and vl-convert: {install_command('charts')}") from exc

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


def write_picture(answer: SqlAnswer, chart: ChartRequest, stream: IO[bytes]) -> None:
    """
    Draw the result of a statement to a file.

    Raises:
        AnswerCutError: The answer is incomplete.
        ClientError: The result cannot be drawn.
        OSError: The file cannot be written.
    """
    assert chart.picture is not None  # noqa: S101 (for the type checker)
    stream.write(_draw(_spec(make_chart(*read_rows(answer), chart)), chart.picture))


def _draw(spec: dict[str, Any], picture: Picture) -> bytes:
    if picture == "png":
        return vl_convert.vegalite_to_png(spec, scale=2, allowed_base_urls=[])  # sharp on dense screens
    if picture == "svg":
        return vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode()
    # In a script element, "<" may end the script or start a comment, even inside quotes.
    text = json.dumps(spec).replace("<", "\\u003c")
    return _PAGE.format(bundle=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), spec=text).encode()


def _spec(chart: Chart) -> dict[str, Any]:
    """Describe a chart in Vega-Lite. Fields do not use column names, which Vega may parse as paths."""
    is_bar = chart.kind == "bar"
    names = list(chart.series)
    # Vega uses milliseconds.
    times = [x * 1000 for x in chart.xs] if chart.scale == "time" else chart.xs
    xs = chart.labels if is_bar or chart.scale == "text" else times
    values = [
        {"x": x, "y": y, "series": name}
        for name, numbers in chart.series.items()
        for x, y in zip(xs, numbers, strict=True)
    ]
    kind = {"number": "quantitative", "time": "temporal", "text": "nominal"}[chart.scale]
    x_encoding: dict[str, Any] = {"title": chart.x_name, "type": "nominal" if is_bar else kind}
    if is_bar or chart.scale == "text":
        x_encoding["sort"] = None  # in the order of the rows
        # Horizontal if they fit: rotated labels are hard to read.
        fits = sum(map(len, chart.labels)) * _LETTER_WIDTH < _WIDTH
        x_encoding["axis"] = alt.Axis(labelAngle=0 if fits else -40)
    elif chart.scale == "time":
        # The runtime uses UTC; do not convert to the viewer's time zone.
        x_encoding["scale"] = alt.Scale(type="utc")
    elif chart.scale == "number":
        x_encoding["scale"] = alt.Scale(zero=False)
    data: Any = alt.Data(values=values)  # type: ignore[no-untyped-call] # made from a schema
    base = alt.Chart(data, width=_WIDTH, height=_HEIGHT)
    marked = {"bar": base.mark_bar, "line": base.mark_line, "scatter": base.mark_point}[chart.kind]()
    encodings: dict[str, Any] = {
        "x": alt.X("x", **x_encoding),
        "y": alt.Y("y", type="quantitative", title=names[0] if len(names) == 1 else None),
        "tooltip": [
            alt.Tooltip("x", type=x_encoding["type"], title=chart.x_name),
            alt.Tooltip("y", type="quantitative"),
        ],
    }
    if len(names) > 1:
        encodings["color"] = alt.Color("series", type="nominal", title=None, sort=names)
        if is_bar:
            encodings["xOffset"] = alt.XOffset("series", type="nominal", sort=names)
    spec: dict[str, Any] = marked.encode(**encodings).to_dict()
    return spec
