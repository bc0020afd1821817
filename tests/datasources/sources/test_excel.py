"""Workbooks of two programs, and hostile ones."""

import io
import logging
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pandas as pd
import pytest
import xlsxwriter
from msgspec.structs import replace
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from datasources.errors import SourceError
from datasources.sources.registry import source_of
from runtimeconf.connector import Package
from runtimeconf.file_formats import EXCEL
from tests.datasources.sources.loads import build, declared, load_in_process
from tests.datasources.sources.test_files import put
from tests.datasources.sources.test_formats import read, refusal_of
from tests.datasources.support import MIB, new_load, rows

DAY, MOMENT = date(2026, 1, 31), datetime.fromisoformat("2026-02-01 13:30:15")
MIDNIGHT = datetime.fromisoformat("2026-01-31")


def by_openpyxl(*table: tuple[Any, ...], **more: Any) -> bytes:
    """Write a workbook with one sheet; *more* are attributes of the workbook."""
    book = openpyxl.Workbook()
    for name, value in more.items():
        setattr(book, name, value)
    for row in table:
        book.active.append(row)
    return saved(book)


def saved(book: openpyxl.Workbook) -> bytes:
    content = io.BytesIO()
    book.save(content)
    return content.getvalue()


@contextmanager
def xlsxwriter_book(content: io.BytesIO, **options: Any) -> Iterator[xlsxwriter.Workbook]:
    with xlsxwriter.Workbook(content, options) as book:
        yield book


def by_xlsxwriter(*table: tuple[Any, ...], **options: Any) -> bytes:
    content = io.BytesIO()
    with xlsxwriter_book(content, default_date_format="yyyy-mm-dd hh:mm:ss", **options) as book:
        sheet = book.add_worksheet()
        for number, row in enumerate(table):
            sheet.write_row(number, 0, row)
    return content.getvalue()


def found(directory: Path, content: bytes, **params: Any) -> list[tuple[Any, ...]]:
    put(directory, "t.xlsx", content)
    return read(directory, declared(directory, "file:t.xlsx", params))


def refusal(directory: Path, content: bytes, **params: Any) -> str:
    put(directory, "t.xlsx", content)
    return refusal_of(directory, declared(directory, "file:t.xlsx", params))


# --- what is read -----------------------------------------------------------------------------------------------------

TABLE: list[tuple[Any, ...]] = [
    ("id", "Name ", "price", "day", "at", "paid", "code", "mixed", 2026),
    (1, "Zoë\n2", 1.5, DAY, MOMENT, True, "007", 1, 10),
    (2, "<&>", 2, MIDNIGHT, DAY, False, "x", "one", 20),
    (3, None, -1e300, None, None, None, None, MOMENT, 2**53),
]


def test_dates_of_asian_editions_are_dates(tmp_path: Path) -> None:
    content = io.BytesIO()
    with xlsxwriter_book(content) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["day", "at", "n"])
        for column, number in enumerate((31, 22, 0)):
            sheet.write(1, column, 46053.5, book.add_format({"num_format": number}))
        sheet.write(1, 0, 46053, book.add_format({"num_format": 58}))

    assert found(tmp_path, content.getvalue()) == [(DAY, datetime.fromisoformat("2026-01-31 12:00"), 46053.5)]


@pytest.mark.parametrize("code", ['"due; "0.0', '0.0"; d"', '0\\""d"', "0.0*s", "0.0_d", '0.0 "[h]"'])
def test_letters_in_the_text_of_a_number_format_make_no_date(tmp_path: Path, code: str) -> None:
    content = io.BytesIO()
    with xlsxwriter_book(content) as book:
        book.add_worksheet().write_column(0, 0, ["v", 5.5], book.add_format({"num_format": code}))

    assert found(tmp_path, content.getvalue()) == [(5.5,)]


def test_a_mark_that_begins_the_first_cell_is_kept(tmp_path: Path) -> None:
    assert found(tmp_path, by_openpyxl(("v",), ("\ufeffa",), ("\ufeffb",))) == [("\ufeffa",), ("\ufeffb",)]


def test_control_characters_of_texts_are_kept(tmp_path: Path) -> None:
    table = [("x\ry", 1), ('"\r\n,', 2), ("\a", 3)]

    assert found(tmp_path, by_xlsxwriter(("text", "n"), *table)) == table


@pytest.mark.parametrize("write", [by_openpyxl, by_xlsxwriter])
def test_texts_of_spaces_are_no_nulls(tmp_path: Path, write: Callable[..., bytes]) -> None:
    table = [(" ", 1), (" NA ", 2), ("NA", 3)]

    assert found(tmp_path, write(("text", "n"), *table), null_values=["NA"]) == [*table[:2], (None, 3)]
    assert found(tmp_path, write(("text", " "), *table)) == table


@pytest.mark.parametrize("write", [by_openpyxl, by_xlsxwriter])
@pytest.mark.parametrize("is_1904", [False, True])
def test_a_workbook_is_read_as_pandas_reads_it(tmp_path: Path, write: Callable[..., bytes], is_1904: bool) -> None:
    options = {by_openpyxl: {"epoch": CALENDAR_MAC_1904}, by_xlsxwriter: {"date_1904": True}}[write]
    path = put(tmp_path, "t.xlsx", write(*TABLE, **(options if is_1904 else {})))

    snapshot = build(tmp_path, declared(tmp_path, "file:t.xlsx", {}))

    assert {column.name: column.type for column in snapshot.columns} == {
        "id": "BIGINT",
        "Name": "VARCHAR",
        "price": "DOUBLE",
        "day": "DATE",
        "at": "TIMESTAMP",
        "paid": "BOOLEAN",
        "code": "VARCHAR",
        "mixed": "VARCHAR",
        "2026": "BIGINT",
    }
    frame = pd.read_excel(path)
    for ours, theirs in zip(rows(tmp_path, snapshot), frame.itertuples(index=False, name=None), strict=True):
        for value, other in zip(ours, theirs, strict=True):
            expected = None if pd.isna(other) else other
            if isinstance(value, date):
                assert pd.Timestamp(value) == expected
            else:
                assert value == expected or value == str(expected)


def test_times_durations_and_errors_have_types_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = by_openpyxl(
        ("time", "duration", "value", "nothing"),
        (time(1, 2, 3), timedelta(hours=30), "#N/A", None),
        (None, None, 5, None),
    )

    with caplog.at_level(logging.WARNING):
        assert found(tmp_path, content) == [(time(1, 2, 3), timedelta(hours=30), None, None), (None, None, 5, None)]
    assert caplog.messages == ["'t.xlsx' has 1 cells with an error such as #N/A, read as null"]


def sheets() -> bytes:
    """Write a workbook with a hidden sheet, one with a title, margins and merged cells, and a formula."""
    content = io.BytesIO()
    with xlsxwriter_book(content) as book:
        book.add_worksheet("Hidden").write_row(0, 0, ["secret"])
        shown = book.add_worksheet("Report 1")
        book.worksheets()[0].hide()
        shown.activate()
        shown.set_first_sheet()
        shown.write(0, 1, "Sales, first quarter")
        shown.write_row("B4", ["item", "n", ""])
        shown.write_row("B5", ["a", 1, "x"])
        shown.write_row("B7", ["b", 2, "n/a"])
        shown.merge_range("B8:C8", "sum")
        shown.write_formula("C10", "=SUM(C5:C7)", None, 3)
        chart = book.add_chart({"type": "line"})
        chart.add_series({"values": "='Report 1'!$C$5:$C$7"})
        book.add_chartsheet("Chart").set_chart(chart)
    return content.getvalue()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param({"range": "B4:D7"}, [("a", 1, "x"), ("b", 2, "n/a")], id="range"),
        pytest.param({"range": "b4:c"}, [("a", 1), ("b", 2), ("sum", None), (None, 3)], id="columns from a row on"),
        pytest.param({"range": "C:C", "skip_rows": 3}, [(1,), (2,), (3,)], id="lines to skip"),
        pytest.param({"range": "A4:D7", "null_values": "n/a, a"}, [(None, 1, "x"), ("b", 2, None)], id="nulls, margin"),
        pytest.param({"range": "B5:D7", "csv_has_header": "false"}, [("a", 1, "x"), ("b", 2, "n/a")], id="no header"),
        pytest.param({"sheet": "Hidden", "csv_has_header": "false"}, [("secret",)], id="hidden sheet"),
    ],
)
def test_a_part_of_a_workbook_is_read(tmp_path: Path, params: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    assert found(tmp_path, sheets(), **params) == expected


def test_several_workbooks_are_one_table(tmp_path: Path) -> None:
    put(tmp_path, "d/a.xlsx", by_openpyxl(("n", "day"), (1, DAY)))
    put(tmp_path, "d/b.xlsx", by_xlsxwriter(("day", "N"), (MOMENT, 2.5)))

    assert read(tmp_path, declared(tmp_path, "file:d", {})) == [(1.0, MIDNIGHT), (2.5, MOMENT)]


def test_a_first_row_that_looks_like_data_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found(tmp_path, by_openpyxl((1, "x"), (2, "y")))
        found(tmp_path, by_openpyxl((1, "x"), (2, "y")), csv_has_header="true")
        found(tmp_path, by_openpyxl(("id", 2026), (2, 3)))

    assert [message.partition(":")[0] for message in caplog.messages] == [
        "The first row of 't.xlsx' is used as the header, but looks like data"
    ]


# --- what is refused --------------------------------------------------------------------------------------------------


def changed(content: bytes, part: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return the workbook *content* with one *part* changed."""
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for name in source.namelist():
            target.writestr(name, change(source.read(name)) if name == part else source.read(name))
    return result.getvalue()


def with_sheet(change: Callable[[bytes], bytes]) -> bytes:
    return changed(by_openpyxl(("a", "b"), (1, 2)), "xl/worksheets/sheet1.xml", change)


def laughs(text: bytes) -> bytes:
    """Return *text* with a name in it that stands for 10 ** 9 others."""
    entities = b"".join(
        b'<!ENTITY e%d "%s">' % (depth, b"&e%d;" % (depth - 1) * 10 if depth else b"ha") for depth in range(10)
    )
    end = text.index(b"?>") + 2 if text.startswith(b"<?xml") else 0
    return text[:end] + b"<!DOCTYPE x [" + entities + b"]>" + text[end:].replace(b"<v>2<", b"<v>&e9;<")


COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
NO_WORKBOOK = "'t.xlsx' is not an Excel workbook (.xlsx), or is damaged."

REFUSED: Mapping[str, tuple[Callable[[], bytes], dict[str, Any], str]] = {
    "old format": (lambda: COMPOUND_FILE, {}, "is a workbook of Excel 2003 or older (.xls): save it as .xlsx"),
    "password": (
        lambda: COMPOUND_FILE + "EncryptedPackage".encode("utf-16-le"),
        {},
        "is protected with a password: save it without one",
    ),
    "text": (lambda: b"a,b\n1,2\n", {}, NO_WORKBOOK),
    "cut": (lambda: by_openpyxl(("a",))[:-100], {}, NO_WORKBOOK),
    "another archive": (lambda: changed(by_openpyxl(("a",)), "[Content_Types].xml", lambda _: b""), {}, NO_WORKBOOK),
    "cut sheet": (lambda: with_sheet(lambda text: text[:-30]), {}, NO_WORKBOOK),
    "entities": (lambda: with_sheet(laughs), {}, NO_WORKBOOK),
    "column beyond the last": (lambda: with_sheet(lambda text: text.replace(b'"B2"', b'"ZZZZ2"')), {}, NO_WORKBOOK),
    "row beyond the last": (
        lambda: with_sheet(lambda text: text.replace(b'<row r="2"', b'<row r="2000000000"')),
        {},
        "has more than 1,048,576 rows, the maximum for a sheet",
    ),
    "sheet beyond the scratch space": (
        lambda: with_sheet(lambda text: text + b" " * 20 * 2**20),
        {},
        "is larger than query.temp_directory_limit allows",
    ),
    "empty": (by_openpyxl, {}, "contains no data"),
    "no visible sheet": (
        lambda: changed(by_openpyxl(("a",)), "xl/workbook.xml", lambda text: text.replace(b"visible", b"hidden")), {},
        "has no visible sheet: set params.sheet"),
    "no such sheet": (sheets, {"sheet": "report 1"}, "has no sheet 'report 1', only 'Hidden', 'Report 1'"),
    "title first": (sheets, {}, "row 4: it has more cells than the first one: set params.range, or params.skip_rows"),
    "equal names": (lambda: by_openpyxl(("a", "A")), {}, "has the columns 'a' and 'A', which differ only in case"),
    "no columns": (lambda: by_openpyxl((1,)), {"csv_has_header": "false", "null_values": "1"}, ""),
    "long row": (
        lambda: by_openpyxl(*[tuple(range(100)), ("x" * 32_000,) * 100]), {}, ": a row is longer than 2 MB."
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_workbook_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    write, params, said = REFUSED[name]

    assert said in refusal(tmp_path, write(), **params)


def test_a_cell_far_away_takes_no_memory(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active["A1"], book.active["ZZ1"], book.active["ZZ50000"] = "a", "zz", 1
    put(tmp_path, "t.xlsx", saved(book))
    dataset = declared(tmp_path, "file:t.xlsx", {})

    assert load_in_process(tmp_path, dataset, "SELECT zz, count(*) FROM d GROUP BY ALL") == [(1, 1)]


def test_texts_that_would_fill_the_memory_are_refused_unread(tmp_path: Path) -> None:
    content = changed(by_openpyxl(("a",)), "xl/styles.xml", lambda text: text + b" " * 130 * MIB)
    put(tmp_path, "t.xlsx", content)
    load = replace(new_load(tmp_path), scratch_bytes=512 * MIB)
    dataset = declared(tmp_path, "file:t.xlsx", {})

    with (
        source_of(dataset).open(load) as scan,
        duckdb.connect() as connection,
        pytest.raises(SourceError, match=r"^'t.xlsx' has more than 128 MiB of strings and styles\.$"),
    ):
        scan.bind(connection)


def test_a_missing_library_is_named_when_a_directory_holds_workbooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "d/t.xlsx", by_openpyxl(("a",)))
    monkeypatch.setattr(Package, "is_installed", property(lambda package: package is not EXCEL))

    said = refusal_of(tmp_path, declared(tmp_path, "file:d", {}))

    assert said == "'d/t.xlsx' needs a library from the sources extra: python -m pip install 'openpyxl~=3.1'."


# --- exact values -----------------------------------------------------------------------------------------------------


def of_cells(*cells: str) -> bytes:
    """Return a workbook with a column v of *cells*, written as XML."""
    content, changed = io.BytesIO(by_openpyxl(("v",))), io.BytesIO()
    below = "".join(f"<row>{cell}</row>" for cell in cells)
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"</sheetData>", f"{below}</sheetData>".encode()))
    return changed.getvalue()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        pytest.param("_x005F_x000D_", "_x000D_", id="an underscore that is escaped"),
        pytest.param("a_x000D_b", "a\rb", id="a control character"),
        pytest.param("_x0041__x00e9_", "Aé", id="any character"),
        pytest.param("_xD83D__xDE00_", "\U0001f600", id="a pair of halves"),
        pytest.param("_xD83D_", "_xD83D_", id="half a character"),
        pytest.param("_x005F_x005F_x0041_", "_x005FA", id="one escape after another"),
        pytest.param("x_x41_", "x_x41_", id="no escape"),
    ],
)
def test_escapes_of_texts_are_decoded_once(tmp_path: Path, written: str, text: str) -> None:
    put(tmp_path, "t.xlsx", of_cells(f'<c t="inlineStr"><is><t>{written}</t></is></c>'))
    put(tmp_path, "s.xlsx", of_cells(f'<c t="str"><v>{written}</v></c>'))

    assert read(tmp_path, declared(tmp_path, "file:t.xlsx", {})) == [(text,)]
    assert read(tmp_path, declared(tmp_path, "file:s.xlsx", {})) == [(text,)]


def test_shared_strings_are_decoded_once(tmp_path: Path) -> None:
    texts = ["x005F_abc", "_x0041_", "_x005F_", "a\x01b", "plain"]

    assert found(tmp_path, by_xlsxwriter(("v",), *((text,) for text in texts))) == [(text,) for text in texts]


@pytest.mark.parametrize(
    ("cells", "type_", "texts"),
    [
        (["<v>9007199254740993</v>", "<v>1</v>"], "HUGEINT", ["9007199254740993", "1"]),
        (["<v>9007199254740993</v>", "<v>1.5</v>"], "VARCHAR", ["9007199254740993", "1.5"]),
        (["<v>1E+20</v>", "<v>1</v>"], "DOUBLE", ["1e+20", "1.0"]),
        (["<v>2026-01-31T10:00:00.123456</v>"], "TIMESTAMP", ["2026-01-31 10:00:00.123456"]),
        (["<v>2026-01-31T10:00:00.1234567</v>"], "VARCHAR", ["2026-01-31T10:00:00.1234567"]),
        (["<v>2026-01-31T10:00:00+02:00</v>"], "VARCHAR", ["2026-01-31T10:00:00+02:00"]),
        (["<v>2026-01-31</v>", "<v>2026-02-01</v>"], "DATE", ["2026-01-31", "2026-02-01"]),
        (["<v>2026-02-01T10:00Z</v>"], "TIMESTAMP", ["2026-02-01 10:00:00"]),
        (["<v>10:00:00.5</v>"], "TIME", ["10:00:00.5"]),
        (["<v>PT1H</v>"], "INTERVAL", ["01:00:00"]),
        *(([f"<v>{text}</v>"], "VARCHAR", [text]) for text in ("24:00:00", "2026-01-31T24:00")),
        *(([f"<v>{text}</v>"], "VARCHAR", [text]) for text in ("2026-02-30", "P1D", "PT1.1234567S")),
    ],
)  # fmt: skip
def test_cells_of_other_programs_keep_their_digits(
    tmp_path: Path, cells: list[str], type_: str, texts: list[str]
) -> None:
    is_date = "-" in cells[0] or ":" in cells[0] or "P" in cells[0]
    put(tmp_path, "t.xlsx", of_cells(*(f'<c t="{"d" if is_date else "n"}">{cell}</c>' for cell in cells)))

    snapshot = build(tmp_path, declared(tmp_path, "file:t.xlsx", {}))

    assert snapshot.columns[0].type == type_
    assert rows(tmp_path, snapshot, "SELECT v::VARCHAR FROM d") == [(text,) for text in texts]


def dates(*numbers: float, is_1904: bool = False) -> bytes:
    content = io.BytesIO()
    with xlsxwriter_book(content, date_1904=is_1904) as book:
        format_ = book.add_format({"num_format": 22})
        book.add_worksheet().write_column(0, 0, ["v", *numbers], format_)
    return content.getvalue()


def test_days_around_one_that_never_was_are_told_apart(tmp_path: Path) -> None:
    first, second = date(1900, 2, 28), date(1900, 3, 1)

    assert found(tmp_path, dates(59, 61)) == [(first,), (second,)]
    assert found(tmp_path, dates(60, is_1904=True)) == [(date(1904, 3, 1),)]


@pytest.mark.parametrize("number", [60, 60.25, 2_958_466, 1e300, -1, -0.5])
def test_a_number_without_a_day_is_refused_with_its_row(tmp_path: Path, number: float) -> None:
    assert refusal(tmp_path, dates(1, number)).startswith(
        f"'t.xlsx', row 3: the column 'v' has the date number {number:.15g}, which is not a date"
    )
