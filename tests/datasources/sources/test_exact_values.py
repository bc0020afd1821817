"""What arrives from files: the table of docs/internals/values-from-sources.md, and values that nobody has listed."""

import io
import json
import random
import re
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasources.errors import SourceError
from datasources.loading.columns import columns_of
from datasources.sources.format_detection import format_named
from datasources.sources.scratch_files import ScratchSpace
from runtimeconf.file_formats import FileParams
from tests.datasources.sources.test_excel import of_cells
from tests.datasources.support import new_load

DOCUMENT = Path(__file__).parents[3] / "docs/internals/values-from-sources.md"
FORMATS = ("csv", "json", "parquet", "xlsx")
REFUSED = "refused"

NS = 1_709_287_200_123_456_789  # 2024-03-01T10:00:00.123456789Z
#: The Parquet columns of the table, by its first column.
PARQUET = {
    "2024-01-05, infinity": pa.array([19_727, 2**31 - 1], pa.int32()).cast(pa.date32()),
    "infinity, 2024-01-05": pa.array([2**31 - 1, 19_727], pa.int32()).cast(pa.date32()),
    "infinity": pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
    "12024-01-05": pa.array([3_672_152], pa.int32()).cast(pa.date32()),
    "2024-03-01T10:00:00.1234567": pa.array([NS - 89], pa.timestamp("ns")),
    "2024-03-01T10:00:00.123456789Z": pa.array([NS], pa.timestamp("ns", "UTC")),
    "10:00:00.1234567": pa.array([36_000_123_456_700], pa.time64("ns")),
    "1000000000000000000001": pa.array([Decimal(10**21 + 1)], pa.decimal128(22, 0)),
    "-9223372036854775809": pa.array([Decimal(-(2**63) - 1)], pa.decimal128(19, 0)),
    "1000000000000000000000000000000000000001": pa.array([Decimal(1)], pa.decimal256(40, 0)),
    "0.1234567890123456789012": pa.array([Decimal("0.1234567890123456789012")], pa.decimal128(23, 22)),
    "1e5": pa.array([1e5]),
    "0.10": pa.array([Decimal("0.10")], pa.decimal128(3, 2)),
    "NaN": pa.array([float("nan")]),
    "true": pa.array([True]),
}


def table() -> list[tuple[list[str], dict[str, list[str]]]]:
    """Return the values of each line, and the type and the first value that arrive, by format; none: not in it."""
    found = []
    for line in DOCUMENT.read_text().partition("## Files")[2].partition("\n## ")[0].splitlines():
        values, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            arrived = [[REFUSED] if cell == REFUSED else re.findall("`([^`]+)`", cell) for cell in cells]
            found.append((re.findall("`([^`]+)`", values), dict(zip(FORMATS, arrived, strict=True))))
    return found


TABLE = table()


def in_json(value: str) -> Any:
    """Return what the value is in JSON text: itself, or a string."""
    return value if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?(e-?\d+)?|true", value) else json.dumps(value)


def content(format_: str, values: Sequence[str]) -> bytes:
    """Return a file of *format_* with one column v."""
    if format_ == "csv":
        return "\n".join(["v", *values, ""]).encode()
    if format_ == "json":
        return "\n".join(f'{{"v":{in_json(value)}}}' for value in values).encode()
    file = io.BytesIO()
    if format_ == "parquet":
        pq.write_table(pa.table({"v": PARQUET[", ".join(values)]}), file)
        return file.getvalue()
    return of_cells(*map(cell, values))


def cell(value: str) -> str:
    """Return a cell of a sheet; the library writes numbers with 16 digits."""
    if value == "true":
        return '<c t="b"><v>1</v></c>'
    is_number = in_json(value) == value
    return f"<c><v>{value}</v></c>" if is_number else f'<c t="inlineStr"><is><t>{value}</t></is></c>'


def arrived(directory: Path, format_: str, values: Sequence[str]) -> tuple[str, list[Any]]:
    """Return the type of a column of a file, and the engine's texts of its values."""
    params = FileParams(csv_delimiter="~" if format_ == "csv" else None)
    with ExitStack() as stack, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        space = ScratchSpace(new_load(directory), stack)
        file = space.save([content(format_, values)], "t")
        scan = format_named(format_)([file], "t", space, params, compression="UNCOMPRESSED", version=None)
        connection.execute(f"CREATE TABLE t AS FROM {scan.bind(connection)}")
        (column,) = columns_of(connection, "t")
        scan.accept(connection, [column])
        return column.type, [text for (text,) in connection.execute("SELECT v::VARCHAR FROM t").fetchall()]


@pytest.mark.parametrize("format_", FORMATS)
def test_the_table_of_the_documents_is_what_arrives(tmp_path: Path, format_: str) -> None:
    lines = [(values, cells[format_]) for values, cells in TABLE if cells[format_] and cells[format_] != [REFUSED]]

    found = []
    for values, _ in lines:
        type_, texts = arrived(tmp_path, format_, values)
        found.append((values, [type_, texts[0]]))

    assert found == lines
    assert len(lines) > 10


@pytest.mark.parametrize(
    ("format_", "values"),
    [(format_, values) for values, cells in TABLE for format_ in FORMATS if cells[format_] == [REFUSED]],
)
def test_a_value_that_no_type_keeps_is_refused(tmp_path: Path, format_: str, values: list[str]) -> None:
    with pytest.raises(SourceError, match="the column 'v'"):
        arrived(tmp_path, format_, values)


# --- values that nobody has listed ------------------------------------------------------------------------------------

DIGITS = st.text("0123456789", min_size=1, max_size=24)
NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "", "-", "+"]),
    DIGITS | st.sampled_from(["0", "1", "007", "0x1F"]),
    st.just("") | DIGITS.map(".{}".format),
    st.just("") | st.integers(-400, 400).map("e{}".format),
)
DAYS = st.sampled_from(
    [
        *("2024-01-05", "2024-1-5", "05/01/2024", "31/12/2024", "12/31/2024", "31.12.24", "2024-02-30", "0044-03-15"),
        *("12024-01-05", "1600-06-07", "9999-12-31", "44-03-15", "20240105", "0000-00-00"),
    ]
)
CLOCKS = st.builds(
    lambda clock, fraction: f"{clock}{fraction}",
    st.sampled_from(["10:00:00", "24:00:00", "23:59:60", "1:2:3", "10:00", "00:00:00", "25:00:00"]),
    st.just("") | st.text("0123456789", min_size=1, max_size=12).map(".{}".format),
)
MOMENTS = st.builds(
    lambda day, between, clock, zone: f"{day}{between}{clock}{zone}",
    DAYS,
    st.sampled_from([" ", "T"]),
    CLOCKS,
    st.sampled_from(["", "", "Z", "+02", "+0530", "-05:00", " UTC", " Europe/Berlin"]),
)
WORDS = st.sampled_from(
    [
        *(
            "infinity",
            "-infinity",
            "epoch",
            "now",
            "today",
            "inf",
            "nan",
            "NaN",
            "Infinity",
            "true",
            "True",
            "t",
            "yes",
        ),
        *("NO", "null"),
    ]
)
#: Columns of one kind, perhaps with a value of another.
COLUMNS = st.builds(
    lambda values, odd: [*values, *odd],
    st.one_of(*(st.lists(kind, min_size=1, max_size=4) for kind in (NUMBERS, DAYS, CLOCKS, MOMENTS, WORDS))),
    st.lists(NUMBERS | DAYS | CLOCKS | MOMENTS | WORDS, max_size=1),
)


def is_kept(written: str, type_: str, arrived: str) -> bool:
    """Return whether a value is the one that was written, by rules of its own."""
    if type_ in {"VARCHAR", "JSON"}:
        text = arrived.strip('"')
        # The engine writes a number of JSON in its own way.
        return written == text or (in_json(written) == written != "true" and Decimal(written) == Decimal(text))
    if re.fullmatch(r"BIGINT|HUGEINT|BIGNUM|DOUBLE|DECIMAL.*", type_):
        found, wanted = Decimal(arrived), Decimal(written)
        is_code = re.match(r"[-+]?0\d|\+", written) is not None
        is_same = found == wanted or (found.is_nan() and wanted.is_nan())
        return not is_code and (is_same or (type_ == "DOUBLE" and is_expanded(written, found)))
    if type_ == "BOOLEAN":
        return written.lower() == arrived
    if "infinity" in written.lower():
        return written.lower() == arrived
    return moment(written) == moment(arrived)


def is_expanded(written: str, found: Decimal) -> bool:
    """Return whether the digits of a number are those that the double has, written with as many."""
    digits = len(re.sub(r"\D", "", written.partition("e")[0]).lstrip("0"))
    return Decimal(written) == Decimal(f"{Decimal(float(found)):.{max(digits, 1) - 1}e}")


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_doubles_with_17_digits_are_doubles(tmp_path: Path, format_: str) -> None:
    """As `%.17g` writes them; such columns of a program must not change their type with the data."""
    chance = random.Random(1)
    doubles = [chance.uniform(-1, 1) * 10 ** chance.randint(-3, 8) for _ in range(500)]

    type_, texts = arrived(tmp_path, format_, [*(f"{number:.17g}" for number in doubles), "0.10000000000000001"])

    assert type_ == "DOUBLE"
    assert [float(text) for text in texts] == [*doubles, 0.1]


@pytest.mark.parametrize("format_", ["csv", "json"])
@pytest.mark.parametrize(
    ("other", "type_"),
    [
        ("12345678901234567.83", "DECIMAL(38,18)"),
        ("9007199254740993", "DECIMAL(38,18)"),
        ("123456789012345678901234.5", "VARCHAR"),
    ],
)
def test_numbers_keep_their_digits_beside_one_that_is_no_double(
    tmp_path: Path, format_: str, other: str, type_: str
) -> None:
    """Each is a double alone, whose shortest text is another number."""
    values = ["548617662966892.62", "0.10000000000000001", other]

    found, texts = arrived(tmp_path, format_, values)

    assert (found, list(map(Decimal, texts))) == (type_, list(map(Decimal, values)))


def moment(text: str) -> tuple[timedelta | None, str | None, Decimal, str]:
    """Return the seconds of a moment since the year 1, its year beyond those of Python, and its fraction, exactly."""
    match = re.fullmatch(r"(?:(\d{4,6})-(\d+)-(\d+))?[ T]?(?:(\d+):(\d+)(?::(\d+))?(\.\d+)?)?(.*)", text)
    german = re.fullmatch(r"(\d\d)/(\d\d)/(\d{4})", text)
    if german is not None:  # The samples leave one reading.
        day, month, year = (
            (german[1], german[2], german[3]) if int(german[1]) > 12 else (german[2], german[1], german[3])
        )
        return moment(f"{year}-{month}-{day}")
    assert match is not None, text
    year, *parts = match.groups()[:6]
    month, day, hour, minute, second = (int(part or 0) for part in parts)
    fraction, zone = Decimal(f"0{match[7] or ''}"), match[8].strip().replace(":", "")
    offset = timedelta()
    if re.fullmatch(r"[+-]\d{2,4}", zone):
        offset = timedelta(hours=int(zone[:3]), minutes=int(zone[0] + (zone[3:] or "0")))
    if year is None or len(year) > 4:
        return timedelta(hours=hour, minutes=minute, seconds=second), f"{year}-{month}-{day}", fraction, zone
    found = datetime(int(year), month, day, hour, minute, second, tzinfo=UTC) - offset
    return found - datetime(1, 1, 1, tzinfo=UTC), None, fraction, "UTC" if zone else ""


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=COLUMNS, format_=st.sampled_from(["csv", "json"]))
def test_every_value_arrives_or_stays_text(tmp_path: Path, values: list[str], format_: str) -> None:
    type_, texts = arrived(tmp_path, format_, values)

    for written, text in zip(values, texts, strict=True):
        assert is_kept(written, type_, text), (type_, values, texts)
