"""The report of a run, as JSON and as Markdown."""

import json
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Curve, Effort, Results, Row, Standalone
from benchmarks.catalogue import Catalogue
from benchmarks.samples import Samples, Target

_BLOCK = re.compile(r"(<!-- measured: ([a-z-]+) -->\n).*?(<!-- /measured -->)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run: its results, the machine and the effort."""

    machine: Mapping[str, str]
    effort: Effort
    results: Results

    def to_json(self, catalogue: Catalogue) -> str:
        """Return all samples, and the verdicts on the targets of *catalogue*."""
        found = {
            "machine": self.machine,
            "effort": {"rounds": self.effort.rounds, "seconds": self.effort.seconds},
            "took_s": round(self.results.seconds),
            "targets": [
                {"row": row.name, **asdict(target), **asdict(self.results.rows[row.name].judge(target))}
                for row in catalogue.rows
                if row.name in self.results.rows
                for target in row.targets
            ],
            "rows": {name: _fields(samples) for name, samples in self.results.rows.items()},
            "curves": {
                name: {str(point): _fields(samples) for point, samples in points.items()}
                for name, points in self.results.curves.items()
            },
        }
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report that `to_json` wrote."""
        found = json.loads(text)
        results = Results(
            rows={name: Samples(**fields) for name, fields in found["rows"].items()},
            curves={
                name: {int(point): Samples(**fields) for point, fields in points.items()}
                for name, points in found["curves"].items()
            },
            seconds=found["took_s"],
        )
        return cls(machine=found["machine"], effort=Effort(**found["effort"]), results=results)


def _fields(samples: Samples) -> dict[str, Any]:
    return {"values": samples.values, "failures": samples.failures}


def blocks(report: Report, catalogue: Catalogue, picture: Callable[[str], str | None]) -> dict[str, str]:
    """
    Return the parts of the report in Markdown: `machine`, `highlights`, `summary`, `rows` and `curves`.

    *picture* returns the link to the picture of a curve by its name, or None.
    """
    results = report.results
    rows = [row for row in catalogue.rows if row.name in results.rows]
    curves = [curve for curve in catalogue.curves if curve.name in results.curves]
    return {
        "machine": "\n".join(_machine(report)),
        "highlights": "\n".join(_highlights(rows, results, catalogue.highlights)),
        "summary": "\n".join(_summary(rows, results)),
        "rows": "\n\n".join("\n".join(_row(row, results.rows[row.name])) for row in rows),
        "curves": "\n\n".join(
            "\n".join(_curve(curve, results.curves[curve.name], picture(curve.name))) for curve in curves
        ),
    }


def whole(parts: Mapping[str, str]) -> str:
    """Return all parts as one page."""
    titles = {"summary": "Targets", "rows": "Rows", "curves": "Curves", "machine": "Machine"}
    return "\n".join(f"## {title}\n\n{parts[name]}\n" for name, title in titles.items() if parts[name])


def rewrite(page: Path, parts: Callable[[Path], Mapping[str, str]]) -> None:
    """
    Replace the text between the markers `<!-- measured: NAME -->` and `<!-- /measured -->` of a page.

    A missing page becomes the whole report. A part without figures is left unchanged. *parts* takes the directory that
    links are relative to.
    """
    found = parts(page.parent)
    if not page.exists():
        page.write_text(whole(found), encoding="utf-8")
        return

    def replaced(match: re.Match[str]) -> str:
        text = found[match[2]]
        return f"{match[1]}\n{text}\n\n{match[3]}" if text else match[0]

    page.write_text(_BLOCK.sub(replaced, page.read_text(encoding="utf-8")), encoding="utf-8")


def _machine(report: Report) -> Iterator[str]:
    took = f"{report.results.seconds / 60:.0f} minutes"
    effort = f"{report.effort.rounds} rounds, {report.effort.seconds:g} s of sending in each turn, {took} in all"
    yield from _table(["", ""], [[name, value] for name, value in {**report.machine, "effort": effort}.items()])


def _summary(rows: Sequence[Row | Standalone], results: Results) -> Iterator[str]:
    lines = [_target(row, target, results.rows[row.name]) for row in rows for target in row.targets]
    if lines:
        head = ["What", "Querykeep", "Compared with", "Ratio (lowest and highest round)", "Target", "Verdict"]
        yield from _table(head, lines)


def _highlights(
    rows: Sequence[Row | Standalone], results: Results, chosen: Sequence[tuple[str, str, str]]
) -> Iterator[str]:
    found = {
        (row.name, target.metric, target.against): _target(row, target, results.rows[row.name])[:4]
        for row in rows
        for target in row.targets
    }
    if lines := [found[one] for one in chosen if one in found]:
        yield from _table(["What", "Querykeep", "Compared with", "Ratio (lowest and highest round)"], lines)


def _target(row: Row | Standalone, target: Target, samples: Samples) -> list[str]:
    judged = samples.judge(target)
    ours, theirs = (samples.of(name, target.metric) if name else [] for name in (target.of, target.against))
    beside = f"{target.against} {number(statistics.median(theirs))}" if target.against and theirs else ""
    spread = ""
    if judged.found and target.against:
        spread = f"**{judged.found.value:.2f}** ({judged.found.low:.2f} to {judged.found.high:.2f})"
    verdict = f"{judged.verdict}: {_cell(judged.reason)}" if judged.reason else judged.verdict
    what = f"{row.title}: {_unit(target.metric)}" + (f" ({target.of})" if target.of != "Querykeep" else "")
    return [what, number(statistics.median(ours)) if ours else "", beside, spread, target.limit, verdict]


def _row(row: Row | Standalone, samples: Samples) -> Iterator[str]:
    yield f"### {row.name}: {row.title}"
    yield ""
    metrics = list(dict.fromkeys(metric for found in samples.values.values() for metric in found))
    lines = [
        [subject, *(_spread(samples.of(subject, metric)) for metric in metrics)] for subject in _order(row, samples)
    ]
    yield from _table(["", *map(_unit, metrics)], lines)
    for subject, reason in samples.failures.items():
        yield ""
        yield f"Not measured: {subject}. {_cell(reason)}"


def _order(row: Row | Standalone, samples: Samples) -> list[str]:
    """Return the subjects that have figures, in the order of the row."""
    order = list(row.subjects) if isinstance(row, Row) else ["Querykeep"]
    return sorted(samples.values, key=lambda name: order.index(name) if name in order else len(order))


def _curve(curve: Curve, points: Mapping[int, Samples], picture: str | None) -> Iterator[str]:
    yield f"### {curve.name}: {curve.title}"
    yield ""
    if picture:
        yield f"![{curve.title}: {' and '.join(curve.shown)}.]({picture})"
        yield ""
    subjects = [name for name in curve.subjects if any(name in samples.values for samples in points.values())]
    metrics = list(
        dict.fromkeys(metric for samples in points.values() for found in samples.values.values() for metric in found)
    )
    for subject in subjects:
        lines = [
            [f"{point:,}", *(_spread(samples.of(subject, metric)) for metric in metrics)]
            for point, samples in points.items()
        ]
        yield from _table([f"{subject}: {curve.along}", *map(_unit, metrics)], lines)
        yield ""
    for point, samples in points.items():
        for subject, reason in samples.failures.items():
            yield f"Not measured: {subject} at {point:,}. {_cell(reason)}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _spread(values: Sequence[float]) -> str:
    """Format a median, followed by the lowest and the highest sample."""
    if not values:
        return ""
    median = number(statistics.median(values))
    return f"{median} ({number(min(values))} to {number(max(values))})" if len(values) > 1 else median


def number(value: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}" if abs(value) >= 0.001 else f"{value:.2g}"


def _unit(metric: str) -> str:
    return metric.replace(" us", " µs")


def _cell(text: str) -> str:
    """Escape text for a table cell, and strip directories of this machine."""
    return re.sub(r"(?<![\w.])/(?:[\w.,+ -]+/)+", "", text).replace("|", "\\|")


def link(target: Path, start: Path) -> str:
    """Return a relative link from a page in the directory *start*."""
    return Path(os.path.relpath(target, start)).as_posix()
