"""CSV files as other programs write them, compared with what pandas reads."""

import gzip
import logging
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from datasources.sources.csv_files import HEADER_LOOKS_LIKE_A_TITLE
from datasources.sources.text_files import decoded, emptied
from tests.datasources.sources.loads import build, declared, loaded
from tests.datasources.sources.loads import types as types_of
from tests.datasources.sources.test_files import put
from tests.datasources.sources.test_formats import read, refusal_of
from tests.datasources.support import rows

#: The query for the rows as pandas would have them: moments with a zone in UTC, which it has too.
ROWS = "SELECT COLUMNS(*)::VARCHAR FROM d"


@dataclass(frozen=True)
class Sample:
    """A file, the parameters that describe it to us and to pandas, and the types of its columns."""

    content: bytes
    types: str
    params: Mapping[str, Any] = field(default_factory=dict)
    pandas: Mapping[str, Any] = field(default_factory=dict)
    #: The format of the columns with dates, in the order of pandas' columns.
    dates: Mapping[int, str] = field(default_factory=dict)


BANK = (
    'Kontoauszug "Giro\nInhaberin:;Jürgen Müller\r\n\nBuchungstag;Text;Betrag;Währung\r\n'
    "01.02.2026;Überweisung;-1.234,50;€\r\n28.02.2026;;10,00;€\r\n"
).encode("windows-1252")

FRENCH = {0x202F: None, 0xA0: None, ord(","): "."}

SAMPLES = {
    "Excel, German": Sample(
        "\ufeffKunden-Nr;Bestellt am;PLZ;Betrag;Notiz\r\n"
        '1;31.01.2026;01067;1.234,50;"kommt; spät"\r\n2;01.02.2026;10115;NA;\r\n3;02.02.2026;;99,90;""\r\n'.encode(),
        "BIGINT DATE VARCHAR DOUBLE VARCHAR",
        {"decimal_separator": ",", "thousands_separator": ".", "null_values": "NA", "date_format": "%d.%m.%Y"},
        {
            "sep": ";",
            "decimal": ",",
            "thousands": ".",
            "encoding": "utf-8-sig",
            "dtype": {"PLZ": str, "Bestellt am": str},
        },
        {1: "%d.%m.%Y"},
    ),
    "statement of a bank": Sample(
        BANK,
        "DATE VARCHAR DOUBLE VARCHAR",
        {"encoding": "windows-1252", "skip_rows": 3, "decimal_separator": ",", "thousands_separator": "."},
        {"sep": ";", "encoding": "windows-1252", "skiprows": 3, "decimal": ",", "thousands": ".", "dtype": {0: str}},
        {0: "%d.%m.%Y"},
    ),
    "latin-1": Sample(
        "id,name\n1,Zoë\n2,Ærø\n".encode("latin-1"), "BIGINT VARCHAR", {"encoding": "latin-1"}, {"encoding": "latin-1"}
    ),
    "Excel, Unicode text": Sample(
        'Name\tMenge\r\n"Tab\tund ""Zitat"""\t1\r\nŁódź\t2\r\n'.encode("utf-16"),
        "VARCHAR BIGINT",
        {},
        {"sep": "\t", "encoding": "utf-16"},
    ),
    "UTF-16 of another byte order, unmarked": Sample(
        "a;b\n1;Łódź\n".encode("utf-16-be"),
        "BIGINT VARCHAR",
        {"encoding": "utf-16"},
        {"sep": ";", "encoding": "utf-16-be"},
    ),
    "PostgreSQL, COPY": Sample(
        b'1\tfirst\t\\N\n2\tsecond "quoted\t3.5\n',
        "BIGINT VARCHAR DOUBLE",
        {"csv_delimiter": r"\t", "csv_quote": "", "csv_has_header": "false", "null_values": r"\N"},
        {"sep": "\t", "quoting": 3, "header": None, "na_values": [r"\N"]},
    ),
    "MySQL, OPTIONALLY ENCLOSED BY": Sample(
        b'1,"a ""b""",\\N\n2,\\N,"x,\\\\N"\n3,"back\\\\slash, \\"quote\\"",\\N\n'.replace(b'""', b'\\"'),
        "BIGINT VARCHAR VARCHAR",
        {"csv_escape": "\\", "csv_has_header": "false", "null_values": [r"\N"]},
        {"escapechar": "\\", "header": None, "na_values": ["N"]},
    ),
    "MySQL, INTO OUTFILE": Sample(
        b"1\ta\\\tb\t\\N\n2\tc\\\\d\t5\n",
        "BIGINT VARCHAR BIGINT",
        {"csv_escape": "\\", "csv_quote": "", "csv_has_header": "false", "null_values": r"\N"},
        {"sep": "\t", "escapechar": "\\", "quoting": 3, "header": None, "na_values": ["N"]},
    ),
    "log of a sensor": Sample(
        b"2026-01-01T00:00:00Z,1,20.5\n2026-01-01T00:01:00+01:00,2,\n",
        "TIMESTAMP WITH TIME ZONE BIGINT DOUBLE",
        {"csv_has_header": "false"},
        {"header": None},
        {0: "ISO8601"},
    ),
    "line ends in quotes": Sample(b'id,text\n1,"two\r\nlines"\n2,"three\n\n""lines"""\n', "BIGINT VARCHAR"),
    "dates of the USA": Sample(
        b'day,amount,zip\n03/04/2026,"1,234.50",02134\n12/31/2026,2,90210\n',
        "DATE DOUBLE VARCHAR",
        {"date_format": "%m/%d/%Y", "thousands_separator": ","},
        {"thousands": ",", "dtype": {"zip": str}},
        {0: "%m/%d/%Y"},
    ),
    "dates of Europe": Sample(
        b"at;n\n03/04/2026 10:15;1\n04/04/2026 23:59;2\n",
        "TIMESTAMP BIGINT",
        {"date_format": "%d/%m/%Y %H:%M"},
        {"sep": ";"},
        {0: "%d/%m/%Y %H:%M"},
    ),
    "delimiter at the end": Sample(b"a;b;\r\n1;x;\r\n2;y;\r\n", "BIGINT VARCHAR VARCHAR", {}, {"sep": ";"}),
    "a mark and a quote first": Sample(
        '\ufeff"name, first",n\n"a,b",1\n'.encode(), "VARCHAR BIGINT", {}, {"encoding": "utf-8-sig"}
    ),
    "one column": Sample(b"name\r\nalpha\r\nbeta\r\n", "VARCHAR"),
    "comments first": Sample(
        b'# made by "a program\n# on Monday\nstation,value\nA,1.5\nB,-\n',
        "VARCHAR DOUBLE",
        {"skip_rows": 2, "null_values": ["-", "n/a"]},
        {"skiprows": 2, "na_values": ["-", "n/a"]},
    ),
    "French numbers": Sample(
        "n;montant\n1;1\u202f234,5\n2;1\u00a0234\u00a0567,25\n3;-12,0\n".encode(),
        "BIGINT DOUBLE",
        {"decimal_separator": ",", "thousands_separator": " "},
        {"sep": ";", "decimal": ",", "converters": {1: lambda text: float(text.translate(FRENCH))}},
    ),
    "another quote and delimiter": Sample(
        "a§b\n'x§y'§'it''s'\n".encode(),
        "VARCHAR VARCHAR",
        {"csv_delimiter": "§", "csv_quote": "'"},
        {"sep": "§", "quotechar": "'", "engine": "python"},
    ),
}


def in_pandas(path: Path, sample: Sample) -> list[tuple[Any, ...]]:
    options = {"keep_default_na": False, "na_values": ["", "NA"], **sample.pandas}
    if "na_values" in sample.pandas:
        options["na_values"] = ["", *sample.pandas["na_values"]]
    frame = pd.read_csv(path, **options)
    for column, format_ in sample.dates.items():
        frame.isetitem(column, pd.to_datetime(frame.iloc[:, column], format=format_, utc=format_ == "ISO8601"))
    return [tuple(frame.iloc[row]) for row in range(len(frame))]


def is_same(found: str | None, expected: Any) -> bool:
    """Compare a value of ours, as a text, with one of pandas."""
    if found is None or pd.isna(expected):
        return found is None and bool(pd.isna(expected))
    if isinstance(expected, pd.Timestamp):
        return bool(pd.Timestamp(found) == expected)
    return found == expected if isinstance(expected, str) else bool(float(found) == expected)


@pytest.mark.parametrize("sample", [pytest.param(sample, id=name) for name, sample in SAMPLES.items()])
def test_a_file_of_another_program_is_read_as_pandas_reads_it(tmp_path: Path, sample: Sample) -> None:
    path = put(tmp_path, "t.csv", sample.content)

    snapshot = build(tmp_path, declared(tmp_path, "file:t.csv", dict(sample.params)))

    assert " ".join(column.type for column in snapshot.columns) == sample.types
    for row, others in zip(rows(tmp_path, snapshot, ROWS), in_pandas(path, sample), strict=True):
        assert all(is_same(found, other) for found, other in zip(row, others, strict=True)), (row, others)


def test_compression_and_several_files_change_nothing(tmp_path: Path) -> None:
    sample = SAMPLES["statement of a bank"]
    for directory, suffix, content in (
        ("plain", "", sample.content),
        ("gz", ".gz", gzip.compress(sample.content)),
        ("zst", ".zst", pa.compress(sample.content, codec="zstd", asbytes=True)),
    ):
        put(tmp_path, f"{directory}/a.csv{suffix}", content)
        put(tmp_path, f"{directory}/b.csv{suffix}", content)
    put(tmp_path, "none.bin", gzip.compress(sample.content))

    one = loaded(tmp_path, "file:plain/a.csv", **sample.params)

    assert one == [(date(2026, 2, 1), "Überweisung", -1234.5, "€"), (date(2026, 2, 28), None, 10.0, "€")]
    more = {"file_format": "csv", "file_compression_type": "GZIP"}
    assert loaded(tmp_path, "file:none.bin", **more, **sample.params) == one
    for directory in ("plain", "gz", "zst"):
        assert loaded(tmp_path, f"file:{directory}/", **sample.params) == one * 2
        assert loaded(tmp_path, f"file:{directory}/*.csv*", **sample.params) == one * 2


def test_types_of_dates_and_numbers_are_those_that_were_described(tmp_path: Path) -> None:
    put(
        tmp_path,
        "t.csv",
        "us;iso;short;code;ip;grouped;whole;plain;pointed;small;uneven\n"
        "03/04/2026;2026-01-02;12/11/26;01,067;192.168.001.100;1,234.5;1,234;5;1.5;0,123;1,234\n"
        "12/31/2026;2026-01-03;01/02/03;10,115;10.0.0.1;2;-2,345,678;6;12,3;5;1234,567\n",
    )
    params = {"csv_delimiter": ";", "date_format": "%m/%d/%Y", "thousands_separator": ","}

    found = types_of(tmp_path, declared(tmp_path, "file:t.csv", params))

    texts = dict.fromkeys(("short", "code", "ip", "pointed", "small", "uneven"), "VARCHAR")
    assert found == {"us": "DATE", "iso": "DATE", "grouped": "DOUBLE", "whole": "BIGINT", "plain": "BIGINT"} | texts


# --- errors and warnings ----------------------------------------------------------------------------------------------

UMLAUTS = "a,b\n1,x\n2,äöü\n"
SET = ": set params.encoding."
#: The engine does not find its last field among those that it samples.
LATE_FIELD = b"a,b\n" + b"x,y\n" * 3000 + b"x,y,z\n"


@pytest.mark.parametrize(
    ("content", "params", "said"),
    [
        pytest.param(UMLAUTS.encode("latin-1"), {}, f", line 3: it is not UTF-8{SET}", id="latin-1 for UTF-8"),
        pytest.param(UMLAUTS.encode(), {"encoding": "windows-1252"}, f": it is not windows-1252 but utf-8{SET}"),
        pytest.param(UMLAUTS.encode("utf-8-sig"), {"encoding": "latin-1"}, f"its byte order mark says utf-8{SET}"),
        pytest.param("a\n5 €\n".encode("cp1252"), {"encoding": "latin-1"}, "line 2: it is not latin-1, but perhaps"),
        pytest.param(b"a\n\x81\n", {"encoding": "windows-1252"}, f", line 2: it is not windows-1252{SET}"),
        pytest.param(UMLAUTS.encode(), {"encoding": "utf-16"}, f", line 1: it is not utf-16{SET}"),
        pytest.param(UMLAUTS.encode("utf-16")[:-1], {}, f", line 3: it is not utf-16{SET}", id="cut"),
        pytest.param(UMLAUTS.encode("utf-16"), {"encoding": "utf-8"}, f"line 1: it is not text, or is in UTF-16{SET}"),
        pytest.param(UMLAUTS.encode("utf-16-le"), {}, f"line 1: it is not text, or is in UTF-16{SET}"),
        pytest.param(b"x\n", {"skip_rows": 2}, "has fewer lines than params.skip_rows"),
        pytest.param(b"x\r\ny\r\n", {"skip_rows": 2}, "contains no data"),
        pytest.param(b"x\r\na,b\r\n1\r\n", {"skip_rows": 1}, ", line 3: it has more or fewer fields than the header"),
        pytest.param(b"1,1\n2,2\n", {}, "if the file has no header line, set params.csv_has_header to false"),
        pytest.param(b"1,2\n3\n", {"csv_has_header": "false"}, ", line 2: it has more or fewer fields"),
        pytest.param(b"a;b\n1;2\n", {"null_values": ["x;y"]}, ": one of params.null_values contains the delimiter."),
        pytest.param(b'a\n"x\\"\n', {"csv_escape": "\\"}, "a quote is not closed"),
        pytest.param(LATE_FIELD, {"csv_quote": ""}, ", line 3002: it has more or fewer fields"),
        pytest.param(LATE_FIELD, {"csv_quote": "", "csv_escape": "\\"}, ", line 3002: it has more or fewer"),
        pytest.param(b'"a\nb",c\r\n1,2\r\n', {}, ", line 1: it has a quoted line ending that differs from"),
        pytest.param(b"sep=;\na;b\n1;2\n", {}, "it is an Excel delimiter line (sep=): set params.skip_rows."),
    ],
)  # fmt: skip
def test_what_a_description_does_not_fit_is_refused(
    tmp_path: Path, content: bytes, params: dict[str, Any], said: str
) -> None:
    put(tmp_path, "t.csv", content)

    assert said in refusal_of(tmp_path, declared(tmp_path, "file:t.csv", params))


def test_any_space_around_names_is_dropped(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", "a\t;\u00a0; c\u2003\n1;2;3\n")

    assert list(types_of(tmp_path, declared(tmp_path, "file:t.csv", {}))) == ["a", "column1", "c"]


def test_names_with_line_ends_can_be_skipped(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", b'"Price\n(EUR)",n\r\n1.5,x\r\n2,"x\ny"\r\n')

    assert loaded(tmp_path, "file:t.csv", skip_rows=2, csv_has_header="false") == [(1.5, "x"), (2.0, "x\ny")]


#: Rows with quoted texts so long that a part of the file, for a thread of the engine, may begin and end within one.
LONG = b"a,b\n" + b"".join(b'%d,"%s"\n' % (number, b'He said ""no"", and then\n' * 5000) for number in range(90))


def test_long_texts_with_line_ends_are_read(tmp_path: Path) -> None:
    put(tmp_path, "d/a.csv", LONG)
    put(tmp_path, "d/b.csv", b"a,b\n90,x\n\n")

    found = loaded(tmp_path, "file:d")

    assert [first for first, _ in found] == [*range(91)]
    assert {text for _, text in found} == {'He said "no", and then\n' * 5000, "x"}


@pytest.mark.parametrize("end", [b'90,"x', b'5" pipe,x\n90,"x', b'90,"x"y\n'])
def test_long_texts_do_not_hide_a_quote_that_is_not_closed(tmp_path: Path, end: bytes) -> None:
    for name, content in (("a.csv", LONG + end), ("d/a.csv", LONG), ("d/b.csv", b"a,b\n1,x\n" + end)):
        put(tmp_path, name, content)

    for path in ("a.csv", "d"):
        assert "a quote is not closed" in refusal_of(tmp_path, declared(tmp_path, f"file:{path}", {}))


def test_dates_of_several_files_that_could_have_several_orders_are_text(tmp_path: Path) -> None:
    put(tmp_path, "d/a.csv", "day\n03/14/2026\n")
    put(tmp_path, "d/b.csv", "day\n03/04/2026\n")
    put(tmp_path, "e/a.csv", "day\n03/14/2026\n")
    put(tmp_path, "e/b.csv", "day\n03/15/2026\n")

    assert loaded(tmp_path, "file:d") == [("03/14/2026",), ("03/04/2026",)]
    described = loaded(tmp_path, "file:d", date_format="%m/%d/%Y")
    assert described == [(date(2026, 3, 14),), (date(2026, 3, 4),)]
    assert loaded(tmp_path, "file:e") == [(date(2026, 3, 14),), (date(2026, 3, 15),)]


def test_a_described_date_is_read_as_described_or_not_at_all(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", "a;b;c\n03/04/26;infinity;05/06/26\n31/12/26;03/04/26;epoch\n")

    found = loaded(tmp_path, "file:t.csv", date_format="%d/%m/%y")

    assert found == [(date(2026, 4, 3), "infinity", "05/06/26"), (date(2026, 12, 31), "03/04/26", "epoch")]


@pytest.mark.parametrize("params", [{}, {"date_format": "%d/%m/%Y"}])
def test_each_column_has_a_date_format_of_its_own(tmp_path: Path, params: dict[str, str]) -> None:
    put(
        tmp_path,
        "t.csv",
        "day;iso;at;until\n31/12/2024;2024-01-05;2024-01-05T10:00:00Z;infinity\n01/02/2024;;;2024-01-05\n",
    )

    found = types_of(tmp_path, declared(tmp_path, "file:t.csv", params))

    assert found == {"day": "DATE", "iso": "DATE", "at": "TIMESTAMP WITH TIME ZONE", "until": "DATE"}


def test_a_value_behind_the_rows_that_the_engine_looks_at_counts(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", "a;b;c;d\n" + "1;;2024-01-05;\n" * 21_000 + "1.5;7;x;31/12/2024\n")

    found = types_of(tmp_path, declared(tmp_path, "file:t.csv", {}))

    assert found == {"a": "DOUBLE", "b": "BIGINT", "c": "VARCHAR", "d": "DATE"}


def test_one_warning_tells_of_all_columns_of_a_wide_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "t.csv", ";".join(f"c{at}" for at in range(1200)) + "\n" + ";".join(["05/01/2024", "1,5", "7"] * 400))

    with caplog.at_level(logging.WARNING):
        read(tmp_path, declared(tmp_path, "file:t.csv", {}))

    dates, numbers = caplog.messages
    assert dates.startswith("The column 'c0' and 399 more of 't.csv' looks like dates")
    assert numbers.startswith("The column 'c1' and 399 more of 't.csv' looks like numbers with a comma")


def test_files_in_any_order_of_columns_have_one_type_for_each(tmp_path: Path) -> None:
    put(tmp_path, "d/a.csv", "n,at\n9007199254740993,2026-01-01 00:00:00.123456789\n")
    put(tmp_path, "d/b.csv", "AT,n\n2026-01-02 00:00:00,1.5\n")

    found = types_of(tmp_path, declared(tmp_path, "file:d", {}))

    assert found == {"n": "DECIMAL(38,18)", "at": "TIMESTAMP_NS"}


@pytest.mark.parametrize(
    ("value", "params", "type_", "text"),
    [
        ("1,23456789012345678901", {"decimal_separator": ","}, "VARCHAR", "1,23456789012345678901"),
        ("1.234.567.890.123.456.789.012", {"thousands_separator": ".", "decimal_separator": ","}, "HUGEINT", None),
        ("1,234567890123456789", {"decimal_separator": ","}, "DECIMAL(38,18)", "1.234567890123456789"),
        (
            "1.234.567.890.123.456,77",
            {"thousands_separator": ".", "decimal_separator": ","},
            "DECIMAL(38,18)",
            "1234567890123456.770000000000000000",
        ),
        ("1.234,50", {"thousands_separator": ".", "decimal_separator": ","}, "DOUBLE", "1234.5"),
        ("1.234", {"decimal_separator": ","}, "VARCHAR", "1.234"),
        ("2.5", {"thousands_separator": ".", "decimal_separator": ","}, "VARCHAR", "2.5"),
    ],
)
def test_digits_of_described_numbers_are_kept(
    tmp_path: Path, value: str, params: dict[str, Any], type_: str, text: str | None
) -> None:
    put(tmp_path, "t.csv", f"v;w\n{value};x\n")

    snapshot = build(tmp_path, declared(tmp_path, "file:t.csv", params))

    assert snapshot.columns[0].type == type_
    expected = text or value.replace(".", "").replace(",", ".")
    assert rows(tmp_path, snapshot, "SELECT v::VARCHAR FROM d") == [(expected,)]


@pytest.mark.parametrize(
    ("values", "params", "said"),
    [
        pytest.param(["1,5", "2"], {}, "looks like numbers with a comma", id="decimal comma"),
        pytest.param(["1.234,50"], {}, "looks like numbers with a comma", id="grouped by points"),
        pytest.param(["1,234,567.5"], {}, "looks like numbers with a comma", id="grouped by commas"),
        pytest.param(["1,5"], {"decimal_separator": "."}, None, id="said to be text"),
        pytest.param(["1,5", "x"], {}, None, id="not all are numbers"),
        pytest.param(["1,2,3"], {}, None, id="a list"),
        pytest.param(["03/04/2026"], {}, "looks like dates", id="two readings"),
        pytest.param(["31.12.26"], {}, "looks like dates", id="two digits of a year"),
        pytest.param(["31.12.2026"], {}, None, id="one reading"),
        pytest.param(["x"], {}, None, id="words"),
    ],
)
def test_a_column_that_a_parameter_would_describe_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, values: list[str], params: dict[str, str], said: str | None
) -> None:
    put(tmp_path, "t.csv", "id;v\n" + "".join(f"{at};{value}\n" for at, value in enumerate(values)))

    with caplog.at_level(logging.WARNING):
        read(tmp_path, declared(tmp_path, "file:t.csv", params))

    assert [f"The column 'v' of 't.csv' {said}" in message for message in caplog.messages] == [True] * bool(said)


@pytest.mark.parametrize("content", [b"not zstd", pa.compress(b"a,b\n" + b"1,2\n" * 9999, "zstd", asbytes=True)[:-9]])
def test_damaged_zstd_is_refused(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, "t.csv.zst", content)

    assert "is damaged: it was cut short" in refusal_of(tmp_path, declared(tmp_path, "file:t.csv.zst", {}))


def test_a_parameter_of_another_format_is_refused_when_the_format_is_known(tmp_path: Path) -> None:
    put(tmp_path, "d/a.json", '{"a": 1}')

    said = refusal_of(tmp_path, declared(tmp_path, "file:d", {"csv_delimiter": ";"}))

    assert said == "'d': params.csv_delimiter is a parameter of csv files, not of json files."


@pytest.mark.parametrize(
    ("content", "params", "is_warned_of"),
    [
        pytest.param("2026-01-01,1,x\n2026-01-02,2,y\n", {}, True, id="headerless"),
        pytest.param("31.12.2026;1,5\n01.01.2027;2,5\n", {"decimal_separator": ","}, True, id="described types"),
        pytest.param("day,n,t\n2026-01-02,2,y\n", {}, False, id="header"),
        pytest.param("a,b\nx,y\n", {}, False, id="only texts"),
        pytest.param("id,2024,2025\n1,2,3\n", {}, False, id="a name among numbers"),
        pytest.param("1,2\n3,4\n", {"csv_has_header": "true"}, False, id="said to be a header"),
        pytest.param("1,2\n3,4\n", {"csv_has_header": "false"}, False, id="said to be none"),
    ],
)
def test_a_first_line_that_looks_like_data_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, params: dict[str, str], is_warned_of: bool
) -> None:
    put(tmp_path, "t.csv", content)

    with caplog.at_level(logging.WARNING):
        read(tmp_path, declared(tmp_path, "file:t.csv", params))

    said = "The first row of 't.csv' is used as the header, but looks like data: set params.csv_has_header to false"
    assert [said in message for message in caplog.messages] == [True] * is_warned_of


def test_a_title_with_delimiters_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "t.csv", "Sales;;\nday;n;t\n1;2;x\n")

    with caplog.at_level(logging.WARNING):
        read(tmp_path, declared(tmp_path, "file:t.csv", {}))

    assert caplog.messages == [HEADER_LOOKS_LIKE_A_TITLE % "t.csv"]


@pytest.mark.parametrize(
    ("content", "params", "texts"),
    [
        (b'"x,\\N,y",1\n\\N,2\n', {}, ["x,N,y", None]),
        (b'"x\n\\N\ny",1\n"\\"\n\\N,""",\\N\n'.replace(b'""",', b'\\"",'), {}, ["x\nN\ny", '"\nN,"']),
        (b"\\N,1\rz,\\N\r\\N,\\N", {"csv_quote": ""}, [None, "z", None]),
        (b"\\N,1\r\nz,\\N\r\n", {"csv_quote": ""}, [None, "z"]),
    ],
)
def test_null_strings_with_the_escape_character_are_whole_fields(
    tmp_path: Path, content: bytes, params: dict[str, str], texts: list[str | None]
) -> None:
    """Inside a quoted field they are text, as Python's parser has it; lines may end with a carriage return."""
    put(tmp_path, "t.csv", content)
    params = {"csv_escape": "\\", "null_values": r"\N", "csv_has_header": "false", **params}

    assert [row[0] for row in read(tmp_path, declared(tmp_path, "file:t.csv", params))] == texts


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
def test_null_strings_are_emptied_whatever_the_size_of_blocks(size: int) -> None:
    content = b'\\N,"a,\\N,b","\\",\\N",\\N\r\n"x\r\n\\N",\\Nz,\\N\r\n\\N'
    blocks = (content[at : at + size] for at in range(0, len(content), size))

    assert b"".join(emptied(blocks, [r"\N"], ",", '"', "\\")) == (b',"a,\\N,b","\\",\\N",\r\n"x\r\n\\N",\\Nz,\r\n')


def test_decoding_takes_little_memory_whatever_the_size_of_blocks() -> None:
    text = "Zeile mit Ümläuten €\n" * 200

    for size in (1, 2, 3, 7, 4096):
        content = text.encode("utf-16")
        blocks = (content[at : at + size] for at in range(0, len(content), size))
        if size > 1:  # a byte order mark comes in the first block
            assert b"".join(decoded(blocks, "utf-16", "t")) == text.encode()
    tracemalloc.start()
    try:
        for _ in decoded((b"\xe4" * 2**20 for _ in range(64)), "latin-1", "t"):
            pass
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
