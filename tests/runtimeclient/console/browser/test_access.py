"""Anybody can use the page: by keyboard alone, on a telephone, in the dark, with a screen reader."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeclient.console.server import ConsoleServer
from tests.runtimeclient.console.browser.conftest import Page
from tests.system.harness import REPOSITORY

#: `make console-test` puts the libraries of the page and of its tests here.
MODULES = Path(os.environ.get("CONSOLE_NODE_MODULES", REPOSITORY / ".venv/console/node_modules"))
AXE = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"


def violations(page: Page) -> list[str]:
    page.tab.evaluate((MODULES / "axe-core/axe.min.js").read_text())
    found = page.tab.evaluate(AXE)["violations"]
    return [f"{each['id']}: {node['html']} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_no_automatic_check_finds_a_barrier(
    opened: Callable[..., Page], console: ConsoleServer, scheme: str, width: int, tmp_path: Path
) -> None:
    page = opened(console, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce")
    folder = Path(os.environ.get("CONSOLE_PICTURES", tmp_path))
    if page.tab.locator("nav > details").get_attribute("open") is None:
        page.tab.locator("nav > details > summary").click()
    page.tab.locator("ul.datasets > li summary").first.click()
    page.run("SELECT id, amount, placed_at, name, CASE WHEN id > 3 THEN id END AS high FROM orders ORDER BY id")

    for name in ("Rows", "Chart", "Code", "Running", "History", "Statistics", "Key"):
        panel = page.select(name)
        panel.locator("svg, pre, table, .grid, p:not(:empty)").first.wait_for()
        page.tab.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
        assert violations(page) == [], name
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width, name
    page.write("SELECT nme FROM orders")
    page.tab.get_by_role("button", name="Run").click()
    page.error()
    page.tab.screenshot(path=folder / f"Error-{scheme}-{width}.png", full_page=True)
    assert violations(page) == []


def test_everything_works_by_keyboard(page: Page) -> None:
    press = page.tab.keyboard.press

    def tab_to(name: str) -> None:
        """Press Tab until something with this name has the focus; after the last element it is nowhere once."""
        seen = []
        for _ in range(60):
            press("Tab")
            seen.append(
                page.tab.evaluate("(e => e.getAttribute('aria-label') || e.textContent)(document.activeElement)")
            )
            if seen[-1].strip().startswith(name):
                return
        raise AssertionError(f"{name} is not reached: {seen}")

    page.tab.locator(".cm-content:focus").wait_for()  # nobody has to look for it
    page.tab.keyboard.insert_text("SELECT id, name FROM orders ORDER BY id")
    press("Escape")
    press("Control+Enter")
    page.tab.locator("[id='cell:0:0']").wait_for()
    tab_to("Rows")
    press("ArrowRight")
    page.tab.get_by_role("tab", name="Chart", selected=True).wait_for()
    press("Home")
    tab_to("Rows")  # the grid

    press("ArrowDown")
    press("ArrowRight")
    page.tab.locator(".grid[aria-activedescendant='cell:1:1']").wait_for()
    press("Enter")
    page.tab.locator("dialog pre", has_text="name 1").wait_for()
    press("Escape")
    page.tab.locator(".grid:focus").wait_for()
    press("Control+Home")
    press("ArrowUp")
    press("Enter")
    press("Enter")
    page.tab.locator("[id='cell:0:0']", has_text="999").wait_for()
    press("Control+End")
    page.tab.locator("[id='cell:999:1']", has_text="name 0").wait_for()
    tab_to("Dark")
    press("Enter")
    assert page.tab.locator("html").get_attribute("data-theme") == "dark"
    tab_to("orders")
    press("Enter")
    tab_to("Refresh")
    press("Enter")
    page.tab.get_by_text("Refresh succeeded").wait_for()
