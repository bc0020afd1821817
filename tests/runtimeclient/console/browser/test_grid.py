"""The rows of a result: sorted, copied, scrolled, cut, and downloaded whole."""

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq

from tests.runtimeclient.console.browser.conftest import Page, saved
from tests.system.harness import Server, wait_for


def test_rows_are_shown_sorted_and_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    summary = page.run("SELECT id, name FROM orders ORDER BY id")
    assert summary.startswith("1,000 rows, 2 columns")
    assert [page.cell(0, 0), page.cell(1, 1)] == ["0", "name 1"]

    header = page.tab.get_by_role("columnheader", name="id")
    header.click()
    header.click()
    page.tab.locator("[id='cell:0:0']:text('999')").wait_for()
    assert header.get_attribute("aria-sort") == "descending"

    page.tab.locator("[id='cell:0:0']").click()
    page.tab.locator("[id='cell:1:1']").click(modifiers=["Shift"])
    page.tab.keyboard.press("Control+c")
    page.tab.get_by_text("Copied 4 cells").wait_for()
    assert page.tab.evaluate("navigator.clipboard.readText()") == "999\tname 999\n998\tname 998"


def test_a_long_result_scrolls_to_its_end(page: Page) -> None:
    page.run("SELECT i, i * 2 AS j FROM range(100000) t(i)")

    page.tab.locator(".grid").focus()
    page.tab.keyboard.press("Control+End")

    page.tab.locator("[id='cell:99999:1']:text('199998')").wait_for()
    assert page.tab.locator(".grid .cell").count() < 200, "only what is in view exists"


def test_a_result_that_is_too_long_is_cut_with_a_notice(page: Page) -> None:
    assert "are shown" not in page.run("SELECT i FROM range(250000) t(i)"), "these are all"
    summary = page.run("SELECT i FROM range(1000000) t(i)")

    assert "are shown" in summary
    assert saved(page, "Download CSV").count(b"\n") == 1_000_001


def test_downloads_are_whole_and_exact(page: Page) -> None:
    page.run("SELECT 9007199254740993 AS n, NULL AS e, 'a,\"b' AS t")

    assert saved(page, "Download JSON") == b'[{"n":9007199254740993,"e":null,"t":"a,\\"b"}]'
    assert list(csv.reader(io.StringIO(saved(page, "Download CSV").decode()))) == [
        ["n", "e", "t"],
        ["9007199254740993", "", 'a,"b'],
    ]
    with pa.ipc.open_stream(saved(page, "Download Arrow")) as reader:
        table = reader.read_all()
    assert table.to_pylist() == [{"n": 9007199254740993, "e": None, "t": 'a,"b'}]
    assert pq.read_table(io.BytesIO(saved(page, "Download Parquet"))).to_pylist() == table.to_pylist()


def test_a_download_can_be_cancelled(page: Page, runtime: Server) -> None:
    page.run("SELECT 1")
    page.write("SELECT i FROM range(100000000000) t(i)")
    page.tab.get_by_role("button", name="Run").click()
    page.tab.get_by_text("are shown").wait_for()
    wait_for(lambda: not runtime.active(), "the statement to stop", patience_s=5)
    for name in ("CSV", "Parquet"):
        page.tab.get_by_role("button", name=f"Download {name}").click()
        wait_for(runtime.active, "the statement to run")

        page.tab.get_by_role("button", name="Cancel download").click()

        page.tab.get_by_text("Nothing was saved: cancelled").wait_for()
        page.tab.get_by_role("button", name="Cancel download").wait_for(state="hidden")
        wait_for(lambda: not runtime.active(), "the statement to stop")


def test_widths_of_columns_can_be_changed(page: Page) -> None:
    page.run("SELECT i AS a, i + 1 AS b FROM range(100) t(i)")

    def width() -> float:
        return float(page.tab.locator("[id='cell:0:0']").evaluate("e => e.getBoundingClientRect().width"))

    def becomes(expected: float) -> None:
        wait_for(lambda: width() == expected, f"a width of {expected}, not {width()}")

    automatic = width()
    edge = page.tab.locator(".grip").first.bounding_box()
    assert edge is not None
    page.tab.mouse.move(edge["x"] + 3, edge["y"] + 9)
    page.tab.mouse.down()
    page.tab.mouse.move(edge["x"] + 103, edge["y"] + 200)
    becomes(automatic + 100)
    page.tab.mouse.up()
    page.tab.mouse.move(edge["x"], edge["y"])
    assert page.tab.get_by_role("columnheader", name="a").get_attribute("aria-sort") == "none"
    page.run("SELECT i AS a, 5 AS c FROM range(10) t(i)")
    becomes(automatic + 100)

    page.tab.locator(".grip").first.dblclick()
    becomes(automatic)
    assert page.tab.locator("dialog[open]").count() == 0
    page.tab.locator("[id='cell:0:0']").click()
    page.tab.keyboard.press("+")
    becomes(automatic + 40)
    for _ in range(9):
        page.tab.keyboard.press("-")
    becomes(40)
