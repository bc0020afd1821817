"""Values in the grid are those of the API, digit by digit."""

from typing import Any

import pytest

from runtimeclient.http.results import Number, as_json, parse_json
from tests.runtimeclient.console.browser.conftest import Page
from tests.system.harness import Server

VALUES = {
    "integers": (
        "127::TINYINT",
        "255::UTINYINT",
        "(-32768)::SMALLINT",
        "4294967295::UINTEGER",
        "9007199254740993",
        "-9223372036854775808",
        "18446744073709551615::UBIGINT",
        "170141183460469231731687303715884105727::HUGEINT",
        "(-1)::HUGEINT",
        "true",
        "false",
    ),
    "decimals": (
        "1.500::DECIMAL(18,3)",
        "-0.001::DECIMAL(9,3)",
        "0::DECIMAL(4,4)",
        "12345678901234567890123456789012345678::DECIMAL(38,0)",
    ),
    "doubles": (
        "0.1::DOUBLE",
        "1::DOUBLE",
        "-0.0::DOUBLE",
        "1e15::DOUBLE",
        "999999999999999::DOUBLE",
        "9999999999999998::DOUBLE",
        "1234567890123456.5::DOUBLE",
        "1e-6::DOUBLE",
        "1e-7::DOUBLE",
        "1e16::DOUBLE",
        "1e17::DOUBLE",
        "1e22::DOUBLE",
        "1e300::DOUBLE",
        "5e-324::DOUBLE",
        "0.0001::DOUBLE",
        "0.00001::DOUBLE",
        "1.5e-7::DOUBLE",
        "123456789012345680::DOUBLE",
        "1e100::DOUBLE",
        "1/3::DOUBLE",
        "1e5::DOUBLE",
    ),
    "floats": (
        "0.1::FLOAT",
        "16777216::FLOAT",
        "3.4028235e38::FLOAT",
        "1e-45::FLOAT",
        "1/3::FLOAT",
        "1e10::FLOAT",
        "1e16::FLOAT",
        "0.00002::FLOAT",
        "123456792::FLOAT",
        "1e-7::FLOAT",
        "1e15::FLOAT",
    ),
    "texts": (
        "''",
        "'ä 日本 😀'",
        "'a\"b'",
        "uuid '00000000-0000-0000-0000-000000000001'",
        "'00ff'::BLOB",
        "'\\x00\\xFF'::BLOB",
        "'0101'::BIT",
        "'x'::ENUM('x', 'y')",
        "'{\"a\": 1}'::JSON",
        "NULL",
        "INTERVAL '1 year 2 days'",
    ),
    "dates": (
        "DATE '2024-02-29'",
        "DATE '0001-01-01'",
        "DATE '0001-01-01' - 1",
        "DATE '0044-03-15 (BC)'",
        "DATE '9999-12-31' + 1",
        "DATE '1969-12-31'",
    ),
    "times": (
        "TIME '12:34:56'",
        "TIME '00:00:00.000001'",
        "TIME '24:00:00'",
        "TIME '12:34:56.789'",
        "TIMETZ '12:34:56+02'",
    ),
    "timestamps": (
        "TIMESTAMP '2024-01-31 12:34:56.789'",
        "TIMESTAMP '1969-12-31 23:59:59.999999'",
        "TIMESTAMP_NS '2024-01-31 00:00:00.000000001'",
        "TIMESTAMP_S '2024-01-31 12:34:56'",
        "TIMESTAMP_MS '2024-01-31 12:34:56.001'",
        "TIMESTAMPTZ '2024-01-31 12:34:56+02'",
        "TIMESTAMP '10000-01-01 00:00:00'",
        "TIMESTAMP '0001-01-01 00:00:00'",
    ),
    "nested": (
        "[1, NULL, 9007199254740993]",
        "[[1.50::DECIMAL(5,2)], []]",
        "{'a': 1, 'b': NULL, 'c': 'x\"y'}",
        "[{'d': DATE '2024-01-01', 'n': 1::DOUBLE}]",
        "MAP {'k': 1, 'l': NULL}",
        "MAP {1: [2]}",
        "[TIMESTAMP '2024-01-31 12:00:00']",
        "[true, NULL]::BOOLEAN[2]",
        "['nan'::DOUBLE]",
        "union_value(num := 5)",
        "['\\x00'::BLOB]",
        "NULL::INTEGER[]",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_cell_has_the_text_of_the_api(page: Page, runtime: Server, name: str) -> None:
    statement = f"SELECT {', '.join(VALUES[name])}"
    rows: Any = parse_json(runtime.sql(statement).text)
    expected = [
        "null" if value is None else str(value) if isinstance(value, (str, Number)) else as_json(value)
        for value in rows[0].values()
    ]

    page.tab.set_viewport_size({"width": 8000, "height": 900})
    page.run(statement)

    assert [page.cell(0, column) for column in range(len(expected))] == expected


def test_numbers_that_json_lacks_have_a_name(page: Page) -> None:
    page.run("SELECT 'nan'::DOUBLE, 'inf'::DOUBLE, '-inf'::FLOAT, DATE 'infinity', TIMESTAMP '-infinity'")

    assert [page.cell(0, column) for column in range(5)] == ["NaN", "Infinity", "-Infinity", "infinity", "-infinity"]


def test_a_byte_order_mark_in_a_text_is_kept(page: Page) -> None:
    page.run("SELECT chr(65279) || 'x', [chr(65279)]")

    assert [page.cell(0, column) for column in range(2)] == ["<U+FEFF>x", '["<U+FEFF>"]']
