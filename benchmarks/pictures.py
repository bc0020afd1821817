"""Curves as SVG."""

import statistics
from collections.abc import Mapping
from pathlib import Path

import altair as alt

from benchmarks.bench import Curve
from benchmarks.samples import Samples

_WIDTH, _HEIGHT = 300, 200
#: Two colours that also differ in lightness.
_COLOURS = ["#0b6e4f", "#c1440e"]


def draw(curve: Curve, points: Mapping[int, Samples], path: Path) -> None:
    """Draw the metrics of a curve side by side: a line per subject through the medians, bars for the range."""
    charts = []
    for metric in curve.shown:
        values = [
            {"x": point, "who": subject, "median": statistics.median(found), "low": min(found), "high": max(found)}
            for point, samples in points.items()
            for subject in curve.subjects
            if (found := samples.of(subject, metric))
        ]
        base = alt.Chart(alt.InlineData(values=values)).encode(
            x=alt.X("x:Q", title=curve.along, scale=alt.Scale(type="log", nice=False), axis=_axis(curve)),
            color=alt.Color("who:N", title=None, scale=alt.Scale(domain=list(curve.subjects), range=_COLOURS)),
        )
        low = alt.Scale(domainMin=0)
        lines = base.mark_line(point=True).encode(y=alt.Y("median:Q", title=metric, scale=low))
        spread = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q"), y2="high:Q")
        charts.append((spread + lines).properties(width=_WIDTH, height=_HEIGHT))
    chart = alt.hconcat(*charts, background="white").configure_legend(orient="bottom")
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.save(str(path), format="svg")


def _axis(curve: Curve) -> alt.Axis:
    return alt.Axis(values=list(curve.points), format="~s", grid=False, labelOverlap=True)
