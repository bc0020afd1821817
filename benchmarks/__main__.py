"""
Compare this runtime with its peers on the same data, in one run.

    python -m benchmarks                               everything, Markdown on standard output
    python -m benchmarks --only point,json-1m          two rows
    python -m benchmarks --against Querykeep,ROAPI     these subjects only
    python -m benchmarks --from-json FILE --markdown PAGE    write a page from an earlier run
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import machine, pictures, report
from benchmarks.bench import Curve, Effort, Environment, Results, Row, run_curve, run_stage, run_standalone, say
from benchmarks.catalogue import Catalogue, catalogue
from benchmarks.report import Report
from benchmarks.tables import Tables


def main() -> int:
    options = _parser().parse_args()
    everything = catalogue(options.peers.resolve())
    if options.list:
        for row in (*everything.rows, *everything.curves):
            print(f"{row.name:16} {row.title}")
        return 0
    if options.from_json:
        found = Report.from_json(options.from_json.read_text(encoding="utf-8"))
    else:
        chosen = _listed(options.only, everything.names)
        everything = _only_against(everything, _listed(options.against, everything.subjects))
        found = _measure(everything, chosen, options)
    _write(found, everything, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Effort()
    parser.add_argument("--list", action="store_true", help="list the names of rows and curves")
    parser.add_argument("--only", metavar="ROW,ROW", help="measure these rows and curves only")
    parser.add_argument("--against", metavar="NAME,NAME", help="measure these subjects only")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="number of rounds (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=default.seconds, help="seconds of load per round (default: %(default)s)"
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path(sys.prefix) / "peers",
        help="the virtual environment with requirements/peers.txt (default: peers in Python's own)",
    )
    parser.add_argument("--tables", type=Path, help="directory that keeps the data for the next run")
    parser.add_argument("--tpch-scale", type=int, default=1, help="scale factor of TPC-H (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="PAGE",
        action="append",
        default=[],
        help="write between the markers of a page, or a new page; may be repeated",
    )
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="draw the curves as SVG")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="report the figures of --json, measure nothing")
    return parser


def _listed(option: str | None, names: Sequence[str]) -> set[str]:
    """Return the *names* that an option lists, or all of them without it; exit if a name is unknown."""
    listed = set(option.split(",")) if option else set(names)
    if unknown := listed - set(names):
        sys.stderr.write(f"Unknown name {', '.join(sorted(unknown))}; the names are {', '.join(names)}\n")
        sys.exit(2)
    return listed


def _only_against(everything: Catalogue, names: set[str]) -> Catalogue:
    """Restrict the catalogue to these subjects; standalone rows are not restricted."""

    def kept(given: Row | Curve) -> list[str]:
        return [name for name in given.subjects if name in names]

    return Catalogue(
        stages=tuple(
            replace(stage, rows=[replace(row, subjects=kept(row)) for row in stage.rows if kept(row)])
            for stage in everything.stages
        ),
        standalone=everything.standalone,
        curves=tuple(replace(curve, subjects=kept(curve)) for curve in everything.curves if kept(curve)),
    )


def _measure(everything: Catalogue, chosen: set[str], options: argparse.Namespace) -> Report:
    effort = Effort(rounds=options.rounds, seconds=options.seconds)
    results = Results()
    began = time.monotonic()
    facts = machine.facts(options.peers)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            tables = Tables((options.tables or Path(scratch) / "tables").resolve(), options.tpch_scale)
            environment = Environment(scratch=Path(scratch), peers=options.peers.resolve(), tables=tables)
            _run(everything, chosen, environment, effort, results)
    except KeyboardInterrupt:
        say("stopped: reporting the figures so far")
    results.seconds = time.monotonic() - began
    say(f"done after {results.seconds / 60:.1f} minutes")
    return Report(machine=facts, effort=effort, results=results)


def _run(everything: Catalogue, chosen: set[str], environment: Environment, effort: Effort, results: Results) -> None:
    for stage in everything.stages:
        if any(row.name in chosen for row in stage.rows):
            run_stage(stage, chosen, environment, effort, results)
    for row in everything.standalone:
        if row.name in chosen:
            run_standalone(row, environment, effort, results)
    for curve in everything.curves:
        if curve.name in chosen:
            run_curve(curve, environment, effort, results)


def _write(found: Report, everything: Catalogue, options: argparse.Namespace) -> None:
    if options.json:
        options.json.write_text(found.to_json(everything), encoding="utf-8")
    drawn: dict[str, Path] = {}
    if options.pictures:
        for curve in everything.curves:
            if curve.name in found.results.curves:
                drawn[curve.name] = options.pictures / f"{curve.name}.svg"
                pictures.draw(curve, found.results.curves[curve.name], drawn[curve.name])

    def parts(start: Path) -> Mapping[str, str]:
        picture: Callable[[str], str | None] = lambda name: report.link(drawn[name], start) if name in drawn else None  # noqa: E731
        return report.blocks(found, everything, picture)

    for page in options.markdown:
        report.rewrite(page, parts)
    if not options.markdown:
        print(report.whole(parts(Path.cwd())))


if __name__ == "__main__":
    sys.exit(main())
