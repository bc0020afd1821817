"""
How the console copes with long results: 100,000 rows of 20 columns in Chromium, and a million that are cut.

    python -m benchmarks.console            # after `make console-test`; it needs Debian's package chromium

For each way of scrolling it prints how long the tasks of the page took, from a trace of Chromium. On a busy machine
they also wait for a core, so the processor time is printed beside the duration.
"""

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

from runtimeclient.client import RuntimeClient
from runtimeclient.console.assets import load
from runtimeclient.console.server import ConsoleServer
from tests.system.harness import K1, Server

_VALUES = (
    "i * {n}",
    "'text ' || (i % {n} + 90)",
    "TIMESTAMP '2024-01-01' + to_seconds(i + {n})",
    "(i / {n})::DOUBLE",
)
_COLUMNS = ", ".join(f"{_VALUES[n % 4].format(n=n + 1)} AS c{n}" for n in range(20))
_STATEMENT = f"SELECT {_COLUMNS} FROM range({{rows}}) t(i)"
_SCROLL_S = 5.0
_LONG_MS = 100
_CATEGORIES = ["disabled-by-default-devtools.timeline", "devtools.timeline", "toplevel"]
# Notes when the first cell is there, and returns its milliseconds after the first byte of the result.
_WATCH = """() => {
  const seen = window.seen = {};
  const whenCell = () => {
    if (document.getElementById('cell:0:0')) seen.painted = performance.now();
    else requestAnimationFrame(whenCell);
  };
  requestAnimationFrame(whenCell);
}"""
_FIRST_ROWS = """() => {
  const sent = performance.getEntriesByType('resource').filter(({name}) => name.endsWith('/v1/sql'));
  return window.seen.painted - sent.at(-1).responseStart;
}"""


def main() -> None:
    """Measure, and print a line for each figure."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(Path(directory)) as runtime,
        RuntimeClient(runtime.url, K1) as client,
        ConsoleServer(client, load(print), {"endpoint": runtime.url, "has_key": True}) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        _open(page, server, 100_000)
        page.evaluate(_WATCH)
        print(f"100,000 rows: {_run(page)}")
        print(f"first rows {page.evaluate(_FIRST_ROWS):.0f} ms after the first byte")
        print(f"memory: {_memory(page)}")
        _scroll(browser, page)
        page.close()
        page = browser.new_page()
        _open(page, server, 1_000_000)
        print(f"1,000,000 rows: {_run(page)}")
        print(f"memory: {_memory(page)}")
        _download(page)
        print(f"load {os.getloadavg()[0]:.1f}")
        browser.close()
        server.shutdown()


def _open(page: Page, server: ConsoleServer, rows: int) -> None:
    page.goto(server.make_link(f"&sql={quote(_STATEMENT.format(rows=rows))}"))
    page.locator("ul.datasets > li").first.wait_for(state="attached")


def _run(page: Page) -> str:
    page.get_by_role("button", name="Run").click()
    page.locator("#summary", has_text="rows").wait_for(timeout=120_000)
    return str(page.locator("#summary").text_content())


def _memory(page: Page) -> str:
    """Return the memory of the tab after garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    script, buffers = (usage[name] / 2**20 for name in ("usedSize", "backingStorageSize"))
    return f"{script:.0f} MiB of JavaScript, {buffers:.0f} MiB of buffers"


def _scroll(browser: Browser, page: Page) -> None:
    grid = page.locator(".grid")
    grid.hover()
    ways: dict[str, Callable[[int], None]] = {
        "wheel": lambda _: page.mouse.wheel(0, 360),
        "Page Down": lambda _: page.keyboard.press("PageDown"),
        "Arrow Down": lambda _: page.keyboard.press("ArrowDown"),
        "End and Home": lambda n: page.keyboard.press("Control+Home" if n % 2 else "Control+End"),
        "End and Home of the row": lambda n: page.keyboard.press("Home" if n % 2 else "End"),
    }
    for name, act in ways.items():
        grid.focus()
        page.keyboard.press("Control+Home")
        browser.start_tracing(page=page, categories=_CATEGORIES)
        end, acts = time.monotonic() + _SCROLL_S, 0
        while time.monotonic() < end:
            act(acts)
            acts += 1
        print(f"{name}, {acts} times in {_SCROLL_S:.0f} s: {_tasks(browser.stop_tracing())}")


def _tasks(trace: bytes) -> str:
    """Return how long the tasks of the page's main thread took: of those with this name, it is the one with layouts."""
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    main = {_thread(e) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}
    main &= {_thread(e) for e in events if e["name"] == "Layout"}
    tasks = [e for e in events if _thread(e) in main and e["name"] == "RunTask" and "dur" in e]
    durations = [task["dur"] / 1000 for task in tasks]
    processor = [task.get("tdur", 0) / 1000 for task in tasks]
    return (
        f"{sum(each > _LONG_MS for each in durations)} of {len(tasks)} tasks over {_LONG_MS} ms,"
        f" {sum(each > _LONG_MS for each in processor)} by processor time;"
        f" the longest {max(durations):.0f} ms, most processor time {max(processor):.0f} ms"
    )


def _thread(event: dict[str, Any]) -> tuple[int, int]:
    return event["pid"], event["tid"]


def _download(page: Page) -> None:
    started = time.monotonic()
    with page.expect_download(timeout=300_000) as download:
        page.get_by_role("button", name="Download CSV").click()
    size = Path(download.value.path()).stat().st_size
    print(f"all of them as CSV: {size / 1e6:.0f} MB after {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
