"""
Take the pictures of docs/console.md from the page in Chromium, in front of a real runtime.

Run `.venv/bin/python -m docs.pictures.console` after `make console-test`. It needs Debian's package chromium.
"""

import shutil
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from runtimeclient.client import RuntimeClient
from runtimeclient.console.assets import load
from runtimeclient.console.server import ConsoleServer
from tests.system.harness import K1, REPOSITORY, Server

PICTURES = Path(__file__).parent
_DATA = REPOSITORY / "examples" / "data"
_DATASETS = [
    {
        "from": f"file:{name}.parquet",
        "name": name,
        "description": description,
        "acceleration": {"enabled": True, "refresh_mode": "full"},
    }
    for name, description in (
        ("flights", "Departures from New York City in 2013, one row for each."),
        ("airlines", "Names of the carriers."),
        ("airports", "Airports of the United States."),
    )
]
_ROWS = """SELECT carrier, origin, dest, dep_delay, air_time, distance
FROM flights
WHERE dep_delay > 60
ORDER BY dep_delay DESC"""
_CHART = """SELECT name AS airline, avg(dep_delay) AS delay
FROM flights JOIN airlines USING (carrier)
GROUP BY 1 ORDER BY 2 DESC LIMIT 8"""


def main() -> None:
    """Take all of them."""
    with tempfile.TemporaryDirectory() as directory:
        for dataset in _DATASETS:
            shutil.copy(_DATA / f"{dataset['name']}.parquet", directory)
        _take(directory)


def _take(directory: str) -> None:
    with (
        Server(Path(directory), changes={"datasets": _DATASETS, "views": []}) as runtime,
        RuntimeClient(runtime.url, K1) as client,
        ConsoleServer(client, load(print), {"endpoint": "http://127.0.0.1:8090", "has_key": True}) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 720}, color_scheme="light")
        page.goto(server.make_link())
        page.locator("ul.datasets > li summary").first.click()
        _run(page, _ROWS)
        page.locator(".grid-row").first.wait_for()
        page.screenshot(path=PICTURES / "console.png")
        page.set_viewport_size({"width": 1200, "height": 860})
        _run(page, _CHART)
        page.get_by_role("tab", name="Chart").click()
        page.locator(".chart svg").wait_for()
        page.screenshot(path=PICTURES / "console-chart.png")
        browser.close()
        server.shutdown()


def _run(page: Page, statement: str) -> None:
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(statement)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Run").click()
    page.locator("#summary", has_text="rows").wait_for()


if __name__ == "__main__":
    main()
