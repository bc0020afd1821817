"""The types of `mssql:` sources, as the driver decodes them from the bytes of a server of the protocol."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.mssql.mssql_server import Declare, MssqlServer, Table
from tests.connectors.mssql.mssql_values import BEGIN, EAST, END, NOON
from tests.datasources.sources.loads import check_values, scan, types
from tests.datasources.support import refusal

MIDNIGHT = datetime(1970, 1, 1)  # noqa: DTZ001
#: The ends of the days that TIMESTAMP_NS has as a whole.
NS_BEGIN, NS_END = datetime(1677, 9, 22), datetime(2262, 4, 10, 23, 59, 59, 999999)  # noqa: DTZ001
#: For each type of SQL Server the engine's, and values as the server sends them with the engine's text of them.
TYPES: list[tuple[str, str, list[tuple[Any, str]]]] = [
    ("bit", "BOOLEAN", [(True, "true"), (False, "false")]),
    ("tinyint", "UTINYINT", [(255, "255"), (0, "0")]),
    ("smallint", "SMALLINT", [(-32768, "-32768")]),
    ("int", "INTEGER", [(-(2**31), "-2147483648"), (2**31 - 1, "2147483647")]),
    ("bigint", "BIGINT", [(-(2**63), "-9223372036854775808"), (2**63 - 1, "9223372036854775807")]),
    ("real", "FLOAT", [(1.1, "1.1"), (-3.4028234663852886e38, "-3.4028235e+38")]),
    ("float", "DOUBLE", [(0.1, "0.1"), (5e-324, "5e-324"), (-0.0, "-0.0")]),
    ("decimal(5,2)", "DECIMAL(5,2)", [(Decimal("-1.5"), "-1.50"), (Decimal("999.99"), "999.99")]),
    ("numeric(38,0)", "DECIMAL(38,0)", [(Decimal("9" * 38), "9" * 38), (Decimal(0), "0")]),
    ("decimal(38,38)", "DECIMAL(38,38)", [(Decimal(f"-0.{'9' * 38}"), f"-.{'9' * 38}")]),
    ("money", "DECIMAL(19,4)", [(Decimal("-922337203685477.5808"), "-922337203685477.5808")]),
    ("smallmoney", "DECIMAL(10,4)", [(Decimal("214748.3647"), "214748.3647")]),
    ("date", "DATE", [(date(1, 1, 1), "0001-01-01"), (date(9999, 12, 31), "9999-12-31")]),
    ("time(0)", "TIME", [(time(23, 59, 59), "23:59:59")]),
    ("time(7)", "TIME_NS", [((time(23, 59, 59, 999999), 9), "23:59:59.9999999"), (time(), "00:00:00")]),
    ("smalldatetime", "TIMESTAMP", [(datetime(2079, 6, 6, 23, 59), "2079-06-06 23:59:00")]),  # noqa: DTZ001
    ("datetime", "TIMESTAMP", [(datetime(1753, 1, 1, 0, 0, 0, 997000), "1753-01-01 00:00:00.997")]),  # noqa: DTZ001
    ("datetime2(3)", "TIMESTAMP", [(datetime(2024, 1, 1, 0, 0, 0, 1000), "2024-01-01 00:00:00.001")]),  # noqa: DTZ001
    ("datetime2(7)", "TIMESTAMP_NS", [((NOON, 9), "2024-02-29 12:00:00.0000019"), (MIDNIGHT, "1970-01-01 00:00:00")]),
    ("datetime2(7)", "TIMESTAMP_NS", [((NS_BEGIN, 1), "1677-09-22 00:00:00.0000001"), ((NS_END, 9), "2262-04-10 23:59:59.9999999")]),  # noqa: E501
    ("datetime2(7)", "TIMESTAMP", [(END, "9999-12-31 23:59:59.999999"), (BEGIN, "0001-01-01 00:00:00")]),
    ("datetime2(7)", "VARCHAR", [((END, 9), "9999-12-31 23:59:59.9999999"), (NOON, "2024-02-29 12:00:00.0000010")]),
    ("datetimeoffset(6)", "TIMESTAMP WITH TIME ZONE", [(NOON.replace(tzinfo=EAST), "2024-02-29 06:30:00.000001+00")]),
    ("datetimeoffset(7)", "TIMESTAMPTZ_NS", [((NOON.replace(tzinfo=EAST), 9), "2024-02-29 06:30:00.0000019+00")]),
    ("datetimeoffset(7)", "TIMESTAMP WITH TIME ZONE", [(BEGIN.replace(tzinfo=UTC), "0001-01-01 00:00:00+00")]),
    ("datetimeoffset(7)", "VARCHAR", [((END.replace(tzinfo=UTC), 9), "9999-12-31 23:59:59.9999999 +00:00"), (NOON.replace(tzinfo=EAST), "2024-02-29 12:00:00.0000010 +05:30")]),  # noqa: E501
    ("char(3)", "VARCHAR", [("é€ ", "é€ ")]),
    ("varchar(max)", "VARCHAR", [("x😀" * 5000, "x😀" * 5000), ("", "")]),
    ("varchar(8000)", "VARCHAR", [("Straße", "Straße")]),
    ("nvarchar(50)", "VARCHAR", [("é€😀'\"\\%s{0}", "é€😀'\"\\%s{0}"), ("", "")]),
    ("nvarchar(max)", "VARCHAR", [("y" * 9000, "y" * 9000)]),
    ("nchar(3)", "VARCHAR", [("a  ", "a  ")]),
    ("ntext", "VARCHAR", [("long", "long")]),
    ("xml", "VARCHAR", [("<a b='ü'/>", "<a b='ü'/>")]),
    ("json", "JSON", [('{"a": "ü"}', '{"a": "ü"}')]),
    ("binary(3)", "BLOB", [(b"\0\xff\0", r"\x00\xFF\x00")]),
    ("varbinary(max)", "BLOB", [(b"\0" * 9000, r"\x00" * 9000), (b"", "")]),
    ("image", "BLOB", [(b"\xc3\xa9", r"\xC3\xA9")]),
    ("timestamp", "BLOB", [(b"\0\0\0\0\0\0\7\xd1", r"\x00\x00\x00\x00\x00\x00\x07\xD1")]),
    ("uniqueidentifier", "UUID", [("00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff")]),
]  # fmt: skip


def test_values_of_each_type_arrive_as_they_are(tmp_path: Path, mssql: MssqlServer, mssql_table: Declare) -> None:
    most = max(len(values) for *_, values in TYPES)
    columns = {f"c{index}": declared for index, (declared, *_) in enumerate(TYPES)}
    sent = [[values[line][0] if line < len(values) else None for *_, values in TYPES] for line in range(most + 1)]
    mssql.tables["[dbo].[t]"] = Table(columns, sent)

    cases = [(declared, kind, [text for _, text in values]) for declared, kind, values in TYPES]
    check_values(tmp_path, mssql_table("dbo.t"), cases)


class Written:
    """Rows of a table that has one more, which is written last, each time it is read."""

    def __init__(self, *rows: Any) -> None:
        self._rows, self._reads = rows, 0

    def __iter__(self) -> Iterator[Any]:
        self._reads += 1
        return iter([(row,) for row in self._rows[: self._reads]])


@pytest.mark.parametrize(("values", "type_"), [([(NOON, 1), BEGIN], "TIMESTAMP_NS"), ([BEGIN, (NOON, 1)], "TIMESTAMP")])
def test_a_time_written_after_its_type_was_chosen_is_refused_with_its_row(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, values: list[Any], type_: str
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"v": "datetime2(7)"}, Written(*values))

    assert refusal(tmp_path, mssql_table("dbo.t")) == (
        f"Row 2 of the column 'v' has a time that {type_} cannot represent; it was written during the load, so the "
        "next refresh will read it."
    )
    assert set(types(tmp_path, mssql_table("dbo.t")).values()) == {"VARCHAR"}


@pytest.mark.parametrize(
    ("declared", "form"),
    [
        ("geography", "v.STAsText()"),
        ("geometry", "v.STAsText()"),
        ("hierarchyid", "CAST(v AS nvarchar(4000))"),
        ("sql_variant", "CAST(v AS nvarchar(4000))"),
        ("vector(3)", "CAST(v AS nvarchar(4000))"),
    ],
)
def test_a_type_that_the_engine_does_not_have_is_refused_once_it_is_asked_for(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, declared: str, form: str
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"a": "int", "v": declared}, [(1, None)])

    assert refusal(tmp_path, mssql_table("dbo.t")) == (
        f"The column 'v' has the type {declared.partition('(')[0]}, which the engine does not support: omit it in "
        f"refresh_sql, or read a view that has {form}."
    )
    assert scan(tmp_path, mssql_table("dbo.t"), columns="a") == (["a"], [(1,)])


@pytest.mark.parametrize("value", ["half \ud83d", "\ude00 half"])
@pytest.mark.parametrize("declared", ["nvarchar(50)", "nvarchar(max)"])
def test_a_text_that_is_not_unicode_is_an_error(
    tmp_path: Path, mssql: MssqlServer, mssql_table: Declare, declared: str, value: str
) -> None:
    mssql.tables["[dbo].[t]"] = Table({"v": declared}, [("good",), (value,)])

    assert refusal(tmp_path, mssql_table("dbo.t")).startswith(
        "A string in dbo.t is not valid Unicode (half of a UTF-16 pair)"
    )
