"""The editor: the statement at the cursor, the places of errors, completion."""

import pytest

from tests.corpus import each
from tests.runtimeclient.console.browser.conftest import Page


@pytest.mark.parametrize(
    ("statement", "place", "code"),
    [
        ("SELECT id,\n  nme\nFROM orders", "Line 2, column 3", "sql_error"),
        ("SELECT 1\nFROM FROM", "Line 2, column 6", "sql_syntax_error"),
        ("SELECT * FROM absent", "", "sql_error"),
        ("SELECT '日本', nme FROM orders", "Line 1, column 14", "sql_error"),
        ("DELETE FROM orders", "", "statement_not_allowed"),
    ],
)
def test_an_error_is_marked_at_its_place(page: Page, statement: str, place: str, code: str) -> None:
    page.write(statement)
    page.tab.get_by_role("button", name="Run").click()

    shown = page.error()
    assert shown.startswith(place)
    assert code in shown
    assert "request" in shown
    assert page.tab.locator(".cm-lintRange-error").count() == bool(place)


@each(
    ("text", "key", "cell"),
    [
        ("SELECT 1 AS a;\nSELECT 2 AS b", "Home", "1"),
        ("SELECT 1 AS a; -- it's; the end\n/* ; /* ; */ ' */", "End", "1"),
        ("/* ; */ SELECT 1 +-- it's;\n 2", "End", "3"),
        ("SELECT 3 */* a; /* it's */ b; */ 2; SELECT 0", "Home", "6"),
        (r"""SELECT $ä$;'$ä$ || e'\';''' || ";'" FROM (SELECT 'x;''' AS ";'");""", "End", ";'';'x;'"),
    ],
)
def test_only_the_statement_at_the_cursor_runs(page: Page, text: str, key: str, cell: str) -> None:
    page.write(text)
    page.tab.keyboard.press(f"Control+{key}")

    page.tab.keyboard.press("Control+Enter")

    assert page.summary().startswith("1 row,")
    assert page.cell(0, 0) == cell


def test_a_statement_in_a_long_text_runs_whole(page: Page) -> None:
    text = "-- a comment\n" * 50_000 + "SELECT 1 AS a;\nSELECT 2 AS b"
    page.tab.evaluate("text => { location.hash = `sql=${encodeURIComponent(text)}`; }", text)
    page.tab.locator(".cm-content", has_text="a comment").wait_for()

    page.tab.keyboard.press("Control+End")
    page.tab.keyboard.press("Control+Enter")

    page.tab.get_by_role("columnheader", name="b").wait_for()
    assert page.cell(0, 0) == "2"


def test_names_are_completed(page: Page) -> None:
    page.tab.locator(".cm-content").click()
    page.tab.keyboard.type("SELECT o.amo")
    page.tab.keyboard.press("Escape")
    page.tab.keyboard.type(" FROM ord")

    page.tab.locator(".cm-tooltip-autocomplete li", has_text="orders").first.wait_for()
