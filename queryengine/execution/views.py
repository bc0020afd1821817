"""The views of the YAML: their dependencies, the order in which they are created, and their faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from queryengine.engine import GatedStatement
from queryengine.errors import StatementError
from queryengine.gate.gate import Gate
from runtimeconf.errors import ConfigError, ConfigFault
from runtimeconf.model import ViewConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedView:
    """A view and its gated SQL; `statement.relations` are the datasets and views that it reads."""

    config: ViewConfig
    statement: GatedStatement


def gate_views(views: Sequence[ViewConfig], datasets: frozenset[str], gate: Gate, file: Path) -> tuple[GatedView, ...]:
    """
    Gate *views*, and put them in an order in which each reads only earlier ones, close to the order of the YAML.

    *datasets* are the lower-case names of the datasets; *file* is the YAML, for the faults.

    Raises:
        ConfigError: Names every view whose SQL is refused, or that is part of a circle.
    """
    known = datasets | {view.name.lower() for view in views}
    gated: dict[str, GatedView] = {}
    faults: dict[str, str] = {}
    for view in views:
        try:
            gated[view.name.lower()] = GatedView(config=view, statement=_gate(view, known, gate))
        except StatementError as exc:
            faults[view.name.lower()] = str(exc)
    ordered = _ordered(gated, datasets | faults.keys())
    left = {name: view for name, view in gated.items() if name not in ordered}
    faults |= {name: f"The views read each other in a circle: {circle}." for name, circle in _circles(left).items()}
    if faults:
        raise ConfigError(
            tuple(
                ConfigFault(file=file, line=view.line, yaml_path=view.yaml_path, message=faults[view.name.lower()])
                for view in views
                if view.name.lower() in faults
            )
        )
    return tuple(ordered.values())


def _gate(view: ViewConfig, known: frozenset[str], gate: Gate) -> GatedStatement:
    statement = gate.admit(view.sql, known)
    if statement.kind not in ("select", "show"):
        raise StatementError("A view is one SELECT, and a PIVOT names its values with IN (...).")
    if statement.parameters:
        raise StatementError("A view takes no parameters.")
    return statement


def _ordered(views: Mapping[str, GatedView], placed: frozenset[str]) -> dict[str, GatedView]:
    """Repeatedly place the first view that reads only placed relations."""
    ordered: dict[str, GatedView] = {}
    waiting = dict(views)
    while ready := next((name for name, view in waiting.items() if view.statement.relations <= placed), None):
        ordered[ready] = waiting.pop(ready)
        placed |= {ready}
    return ordered


def _circles(views: Mapping[str, GatedView]) -> dict[str, str]:
    """Return the circle that each view is part of, as text; a view that only reads from a circle has none."""
    found: dict[str, str] = {}
    for name in views:
        if name not in found and (circle := _path_back(name, views)):
            text = " -> ".join(views[step].config.name for step in [*circle, circle[0]])
            found |= dict.fromkeys(circle, text)
    return found


def _path_back(start: str, views: Mapping[str, GatedView]) -> list[str]:
    """Return the shortest path from a view over its dependencies back to itself; empty if there is none."""
    paths = [[start]]
    seen: set[str] = set()
    for path in paths:  # grows while it is read: breadth first
        for name in sorted(views[path[-1]].statement.relations & views.keys()):
            if name == start:
                return path
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return []
