"""What a run found, as JSON to keep and as Markdown to read."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Alone, Curve, Effort, Results, Row
from benchmarks.catalogue import Catalogue
from benchmarks.samples import Samples, Target

_BLOCK = re.compile(r"(<!-- measured: ([a-z-]+) -->\n).*?(<!-- /measured -->)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run: what was found, where, and with how much effort."""

    machine: Mapping[str, str]
    effort: Effort
    results: Results

    def to_json(self, catalogue: Catalogue) -> str:
        """Return everything: each sample of each round, and what came of the targets of *catalogue*."""
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
    def from_json(cls, text: str) -> Report:
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
    Return the parts of the report in Markdown: `machine`, `summary`, `rows` and `curves`.

    *picture* says by the name of a curve what a link to its picture has to be, None when there is none.
    """
    results = report.results
    rows = [row for row in catalogue.rows if row.name in results.rows]
    curves = [curve for curve in catalogue.curves if curve.name in results.curves]
    return {
        "machine": "\n".join(_machine(report)),
        "summary": "\n".join(_summary(rows, results)),
        "rows": "\n\n".join("\n".join(_row(row, results.rows[row.name])) for row in rows),
        "curves": "\n\n".join(
            "\n".join(_curve(curve, results.curves[curve.name], picture(curve.name))) for curve in curves
        ),
    }


def whole(parts: Mapping[str, str]) -> str:
    """Return all parts one below the other, for a reader without a page to put them on."""
    titles = {"summary": "Targets", "rows": "Rows", "curves": "Curves", "machine": "Machine"}
    return "\n".join(f"## {title}\n\n{parts[name]}\n" for name, title in titles.items() if parts[name])


def rewrite(page: Path, parts: Callable[[Path], Mapping[str, str]]) -> None:
    """
    Put the parts between the markers `<!-- measured: NAME -->` and `<!-- /measured -->` of a page.

    A page that is not there becomes the whole report. A part that was not measured leaves what the page has.
    *parts* is asked for the directory that the links of the page begin at.
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


def _summary(rows: Sequence[Row | Alone], results: Results) -> Iterator[str]:
    lines = [_target(row, target, results.rows[row.name]) for row in rows for target in row.targets]
    if lines:
        head = ["What", "Querykeep", "Beside it", "Ratio (lowest and highest round)", "Target", "Verdict"]
        yield from _table(head, lines)


def _target(row: Row | Alone, target: Target, samples: Samples) -> list[str]:
    judged = samples.judge(target)
    ours, theirs = (samples.of(name, target.metric) if name else [] for name in (target.of, target.against))
    beside = f"{target.against} {number(statistics.median(theirs))}" if target.against and theirs else ""
    spread = ""
    if judged.found and target.against:
        spread = f"**{judged.found.value:.2f}** ({judged.found.low:.2f} to {judged.found.high:.2f})"
    verdict = f"{judged.verdict}: {_cell(judged.reason)}" if judged.reason else judged.verdict
    what = f"{row.title}: {_unit(target.metric)}" + (f" ({target.of})" if target.of != "Querykeep" else "")
    return [what, number(statistics.median(ours)) if ours else "", beside, spread, target.limit, verdict]


def _row(row: Row | Alone, samples: Samples) -> Iterator[str]:
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


def _order(row: Row | Alone, samples: Samples) -> list[str]:
    """Return the subjects that have figures, in the order of the row: turns began with another one each round."""
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
    """Return a median with the lowest and the highest sample behind it."""
    if not values:
        return ""
    median = number(statistics.median(values))
    return f"{median} ({number(min(values))} to {number(max(values))})" if len(values) > 1 else median


def number(value: float) -> str:
    """Return a number with three digits that count, and thousands apart."""
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}" if abs(value) >= 0.001 else f"{value:.2g}"


def _unit(metric: str) -> str:
    return metric.replace(" us", " µs")


def _cell(text: str) -> str:
    """Return text for a table: one line, without what would end a cell, and without paths of a machine."""
    return re.sub(r"(?<![\w.])/(?:[\w.,+ -]+/)+", "", text).replace("|", "\\|")


def link(target: Path, start: Path) -> str:
    """Return a relative link from a page in the directory *start*."""
    return Path(os.path.relpath(target, start)).as_posix()
