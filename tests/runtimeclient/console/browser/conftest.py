"""The page in Chromium, in front of a real runtime."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeclient.console.assets import Asset, load
from runtimeclient.console.server import ConsoleServer
from tests.runtimeclient.console.console_thread import serving
from tests.system.harness import K1, Server

#: What a hostile source could put wherever text is shown.
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"

#: A name that an attacker points to this machine.
ARGUMENTS = ["--no-sandbox", "--host-resolver-rules=MAP rebound.example 127.0.0.1"]

DATASETS = [
    {
        "from": "file:orders.parquet",
        "name": "orders",
        "description": f"Orders of the shop {HOSTILE}",
        "columns": [{"name": "amount", "description": f"In euros {HOSTILE}"}],
        "acceleration": {"enabled": True, "refresh_mode": "full"},
    }
]


@pytest.fixture(scope="session")
def assets() -> Any:
    return load(print)


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("runtime"), changes={"datasets": DATASETS}) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (only `make console-test` installs it)

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is missing: .ci/run installs it")  # a skipped test fails where CI is set
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def console(runtime: Server, assets: dict[str, Asset]) -> Iterator[ConsoleServer]:
    with serving(runtime.url, K1, assets) as server:
        yield server


class Page:
    """The page as a person sees it. `close` checks what must hold for every test."""

    def __init__(self, browser: Any, server: ConsoleServer, **options: Any) -> None:
        self.server = server
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(30_000)
        self.tab = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # Chromium reports every refused request here.
        if not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def open(self, fragment: str = "") -> "Page":
        self.tab.goto(self.server.make_link(fragment))
        self.tab.locator("ul.datasets > li").first.wait_for(state="attached")
        return self

    def write(self, statement: str) -> None:
        self.tab.locator(".cm-content").click()
        self.tab.keyboard.press("Control+a")
        self.tab.keyboard.press("Delete")
        self.tab.keyboard.insert_text(statement)
        self.tab.keyboard.press("Escape")  # the menu of completions

    def run(self, statement: str) -> str:
        """Run a statement that works, and return the summary of its result."""
        self.write(statement)
        self.tab.get_by_role("button", name="Run").click()
        return self.summary()

    def summary(self) -> str:
        self.tab.locator("#cancel:disabled").wait_for()
        return str(self.tab.locator("#summary").text_content())

    def error(self) -> str:
        self.tab.locator("#error p").first.wait_for()
        return str(self.tab.locator("#error").inner_text())

    def select(self, name: str) -> Any:
        """Select a tab, and return its panel."""
        self.tab.get_by_role("tab", name=name).click()
        return self.tab.get_by_role("tabpanel", name=name)

    def cell(self, row: int, column: int) -> str:
        # The grid draws a new result in the next frame, and shows the former one until then.
        self.tab.evaluate("() => new Promise(drawn => requestAnimationFrame(drawn))")
        return str(self.tab.locator(f"[id='cell:{row}:{column}']").text_content())

    def close(self) -> None:
        assert self.tab.title() == "Querykeep console", "a script of somebody else ran"
        own = f"http://127.0.0.1:{self.server.port}/"
        assert [url for url in self.requests if not url.startswith((own, f"blob:{own}"))] == []
        kept = self.tab.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage), document.cookie]")
        assert kept in ([[], ["session"], ""], [[], [], ""]), "nothing but the session is kept"
        assert K1 not in str(self.tab.content()) + str(self.requests)
        self.context.close()
        assert self.complaints == []


def saved(page: Page, button: str) -> bytes:
    """Press a button that saves a file, and return its content."""
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name=button, exact=True).click()
    return Path(download.value.path()).read_bytes()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Page]]:
    """A function that opens a page; it is checked and closed in the end."""
    pages: list[Page] = []

    def open_page(server: ConsoleServer, fragment: str = "", **options: Any) -> Page:
        pages.append(Page(browser, server, **options))
        return pages[-1].open(fragment)

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture
def page(opened: Callable[..., Page], console: ConsoleServer) -> Page:
    return opened(console)
