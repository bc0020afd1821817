"""
Make the pictures of docs/history.md and docs/monitoring.md from a real runtime under load and a real Prometheus.

Run `.venv/bin/python -m docs.pictures.make`. It needs Debian's package prometheus, and takes two minutes.
"""

import io
import json
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import altair as alt
import httpx

from docs.captures.make import svg
from tests.runtimeclient.terminal import Terminal
from tests.system.harness import K1, Server, free_port, wait_for
from tests.system.prometheus import Prometheus

PICTURES = Path(__file__).parent
DASHBOARD = PICTURES.parents[1] / "deploy" / "grafana" / "querykeep.json"

_COLUMNS, _LINES = 112, 32
_CALLERS = 6
_LOAD_S = 60.0
_STEP_S = 3
_RATE = "10s"

#: The panels of the picture: a selection, so that it stays small.
_PANELS = (
    *("Requests by route and status", "Statements by outcome", "Quantiles"),
    *("Mean time by phase", "Execution slots", "Workers"),
    *("Age", "Processor time by part", "Memory by part"),
)
_UNITS = {"reqps": "per second", "s": "seconds", "bytes": "bytes", "short": ""}

_STATEMENTS: tuple[tuple[str, int], ...] = (
    ("SELECT count(*) AS n, avg(amount) AS mean FROM orders WHERE id < {}", 12),
    ("SELECT name, amount FROM orders WHERE id = {}", 12),
    ("SELECT id % 7 AS part, sum(amount) AS total FROM big_orders GROUP BY 1 LIMIT {}", 3),
    ("SELECT count(*) AS n FROM range({}0000) a WHERE hash(a.range) % 3 = 0", 2),
    ("SELECT * FROM nothing LIMIT {}", 1),
)
_SLOW = "SELECT count(*) AS pairs FROM range({}0000) a, range(30000) b WHERE hash(a.range + b.range) % 5 = 0"


def main() -> None:
    """Make all of them."""
    metrics = f"127.0.0.1:{free_port()}"
    runtime = {
        "metrics": {"enabled": True, "bind": metrics},
        "history": {"sql": True},
        "query": {"workers": 4},
        "auth": {"api-key": {"enabled": True, "named_keys": [{"name": "analyst", "key": K1}]}},
    }
    acceleration = {"enabled": True, "refresh_mode": "full", "refresh_check_interval": "20s"}
    datasets = [{"from": "file:orders.parquet", "name": "orders", "acceleration": acceleration}]
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(Path(directory), changes={"runtime": runtime, "datasets": datasets}) as server,
        Prometheus(Path(directory), metrics) as prometheus,
        load(server),
    ):
        began = time.time()
        time.sleep(_LOAD_S)
        draw_top(server)
        draw_dashboard(prometheus, began, time.time())


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Send statements of all kinds until the end of the block."""
    stops = threading.Event()

    def ask() -> None:
        texts = [text for text, weight in _STATEMENTS for _ in range(weight)]
        for number in count(1):
            if stops.wait(random.random() / 20):  # noqa: S311 (not a secret)
                return
            with suppress(httpx.TransportError):
                server.sql(random.choice(texts).format(number % 3 + 1))  # noqa: S311 (as above)

    def ask_slowly(number: int) -> None:
        while not stops.is_set():
            with suppress(httpx.TransportError):
                server.sql(_SLOW.format(number))

    callers = [threading.Thread(target=ask) for _ in range(_CALLERS)]
    callers += [threading.Thread(target=ask_slowly, args=(number,)) for number in (1, 2)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        stops.set()
        for caller in callers:
            caller.join()


def draw_top(server: Server) -> None:
    """Take a picture of the screen of `querykeep top`."""
    environ = {"RUNTIME_HTTP_ENDPOINT": server.url, "RUNTIME_API_KEY": K1}
    with Terminal("top", environ=environ, columns=_COLUMNS, lines=_LINES) as terminal:
        terminal.shows("SELECT count(*) AS pairs")
        (PICTURES / "top.svg").write_text(svg("querykeep top", terminal, _COLUMNS, _LINES))
        terminal.send("q")
        terminal.leaves()


def draw_dashboard(prometheus: Prometheus, began: float, ended: float) -> None:
    """Draw panels of the dashboard with what Prometheus answers to their expressions."""
    panels = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    charts = [_chart(prometheus, panels[title], began, ended) for title in _PANELS]
    picture = alt.vconcat(
        *(alt.hconcat(*charts[row : row + 3]).resolve_scale(color="independent") for row in range(0, len(charts), 3)),
        background="white",
    ).configure_legend(orient="bottom", columns=2, labelLimit=190, title=None)
    drawn = io.StringIO()
    picture.save(drawn, format="svg")
    short = re.sub(r"[0-9]+\.[0-9]{2,}", lambda number: f"{float(number[0]):.1f}", drawn.getvalue())
    (PICTURES / "dashboard.svg").write_text(short)


def _chart(prometheus: Prometheus, panel: dict[str, Any], began: float, ended: float) -> Any:
    values = []
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", _RATE).replace("$job", ".+").replace("$instance", ".+")
        times = {"start": str(began), "end": str(ended), "step": str(_STEP_S)}
        asking = partial(prometheus.ask, "query_range", query=expression, **times)
        for series in wait_for(lambda asking=asking: (asking() or {}).get("result"), panel["title"]):
            name = target["legendFormat"]
            for label, value in series["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            values += [
                {"time": round(at - began), "value": float(f"{float(value):.4g}"), "name": name}
                for at, value in series["values"]
                if value != "NaN"
            ]
    unit = _UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    return (
        alt.Chart(alt.InlineData(values=values), title=panel["title"])
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("time:Q", title="seconds"),
            y=alt.Y("value:Q", title=unit or None, axis=alt.Axis(format="~s")),
            color=alt.Color("name:N", title=None),
        )
        .properties(width=260, height=130)
    )


if __name__ == "__main__":
    main()
