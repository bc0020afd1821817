"""All rows and curves, by name."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Curve, Row, Stage, Standalone
from benchmarks.rows import cluster, flight, growth, parts, statements, tpch, whole


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The stages with their rows, the standalone rows, and the curves, in order."""

    stages: tuple[Stage, ...]
    standalone: tuple[Standalone, ...]
    curves: tuple[Curve, ...]
    #: For the README: the row, the metric and the other subject of a target.
    highlights: tuple[tuple[str, str, str], ...] = ()

    @property
    def rows(self) -> tuple[Row | Standalone, ...]:
        """All rows, in the order of the report."""
        return (*(row for stage in self.stages for row in stage.rows), *self.standalone)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all rows and curves."""
        return (*(row.name for row in self.rows), *(curve.name for curve in self.curves))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The names of all subjects that take turns, without duplicates, in order."""
        rows: tuple[Row | Curve, ...] = (*(row for stage in self.stages for row in stage.rows), *self.curves)
        return tuple(dict.fromkeys(name for row in rows for name in row.subjects))


def catalogue(peers: Path) -> Catalogue:
    """Return the catalogue; *peers* is the virtual environment of the peers."""
    return Catalogue(
        stages=(statements.stage(peers), tpch.stage(peers), flight.stage(peers)),
        standalone=(*whole.ROWS, *parts.ROWS, *cluster.ROWS),
        curves=growth.CURVES,
        highlights=(
            ("point", "requests/s", "ROAPI"),
            ("tpch", "s", "ROAPI"),
            ("json-1m", "s", "ROAPI"),
            ("select-1-c16", "requests/s", "ROAPI"),
        ),
    )
