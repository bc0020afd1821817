"""Everything that can be measured, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Alone, Curve, Row, Stage
from benchmarks.rows import flight, growth, parts, statements, tpch, whole


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The stages with their rows, the rows that start what they need themselves, and the curves, in their order."""

    stages: tuple[Stage, ...]
    alone: tuple[Alone, ...]
    curves: tuple[Curve, ...]

    @property
    def rows(self) -> tuple[Row | Alone, ...]:
        """All rows, in the order of the report."""
        return (*(row for stage in self.stages for row in stage.rows), *self.alone)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all rows and curves."""
        return (*(row.name for row in self.rows), *(curve.name for curve in self.curves))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The names of all subjects that take turns, each once, in the order in which they come up."""
        rows: tuple[Row | Curve, ...] = (*(row for stage in self.stages for row in stage.rows), *self.curves)
        return tuple(dict.fromkeys(name for row in rows for name in row.subjects))


def catalogue(peers: Path) -> Catalogue:
    """Return what there is, its peers installed below that directory."""
    return Catalogue(
        stages=(statements.stage(peers), tpch.stage(peers), flight.stage(peers)),
        alone=(*whole.ROWS, *parts.ROWS),
        curves=growth.CURVES,
    )
