import gzip
import io
import json
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasources.errors import SourceError
from datasources.sources.json_files import with_long_numbers_quoted
from datasources.sources.registry import source_of
from queryengine.manifest import Column
from runtimeconf.model import DatasetConfig
from tests.datasources.sources.loads import build, types
from tests.datasources.sources.test_files import put, put_parquet
from tests.datasources.support import declare, new_load, rows


def load(directory: Path, text: str) -> list[tuple[Any, ...]]:
    """Return the rows of files as an engine reads them, without a snapshot."""
    return read(directory, declare(directory, text))


def read(directory: Path, dataset: DatasetConfig) -> list[tuple[Any, ...]]:
    """As `load`, for a dataset with parameters."""
    with duckdb.connect() as connection, source_of(dataset).open(new_load(directory)) as scan:
        try:
            found = connection.execute(f"FROM {scan.bind(connection)}")
            scan.accept(
                connection.cursor(), [Column(name=name, type=str(type_)) for name, type_, *_ in found.description]
            )
            return found.fetchall()
        except duckdb.Error as exc:
            raise scan.explain(connection, exc) from exc


def refusal(directory: Path, text: str) -> str:
    """Return why files are refused: one sentence, without paths of this machine."""
    return refusal_of(directory, declare(directory, text))


def refusal_of(directory: Path, dataset: DatasetConfig) -> str:
    """As `refusal`, for a dataset with parameters."""
    with pytest.raises(SourceError) as caught:
        read(directory, dataset)
    sentence = str(caught.value)
    assert not any(hidden in sentence for hidden in (str(directory), "/proc", "\n"))
    assert sentence.endswith(".")
    return sentence


def parquet_bytes(directory: Path, table: pa.Table) -> bytes:
    pq.write_table(table, directory / "made.parquet")
    return (directory / "made.parquet").read_bytes()


# --- CSV --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("a,b\n1,x\n2,y", [(1, "x"), (2, "y")], id="no line end at the end"),
        pytest.param("a,b\r\n1,x\r\n", [(1, "x")], id="CRLF"),
        pytest.param("a,b\r1,x\r", [(1, "x")], id="CR"),
        pytest.param("\ufeffa,b\n1,x\n", [(1, "x")], id="byte order mark"),
        pytest.param("a\tb\n1\tx,y\n", [(1, "x,y")], id="tabulator"),
        pytest.param("a;b\n1;1,5\n", [(1, "1,5")], id="semicolon"),
        pytest.param("a|b\n1|x\n", [(1, "x")], id="bar"),
        pytest.param('"a,1";b\n1;x\n', [(1, "x")], id="delimiter between quotes does not count"),
        pytest.param("a\n1\n2\n", [(1,), (2,)], id="one column"),
        pytest.param('"a\nb",c\n1,2\n', [(1, 2)], id="line end in a name"),
        pytest.param('a,b\n1,"x\ny"\n2,"q""q"\n', [(1, "x\ny"), (2, 'q"q')], id="quotes"),
        pytest.param("#a,b\n1,#x\n", [(1, "#x")], id="no comments"),
        pytest.param("a,b\n", [], id="no rows"),
        pytest.param("a,b", [], id="no rows, no line end"),
        pytest.param("a,b\n1,\n", [(1, None)], id="empty is null"),
        pytest.param(
            "a,b\n" + "1,x\n" * 30_000 + "z,x\n", [("1", "x")] * 30_000 + [("z", "x")], id="types of all rows"
        ),
    ],
)
def test_csv_is_read(tmp_path: Path, content: str, expected: list[tuple[Any, ...]]) -> None:
    put(tmp_path, "t.csv", content)
    put(tmp_path, "t.csv.gz", gzip.compress(content.encode()))

    assert load(tmp_path, "t.csv") == expected
    assert load(tmp_path, "t.csv.gz") == expected


def test_csv_names_are_those_of_the_header(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", '"a,x"," b ","c""d",Ü,,\n1,2,3,4,5,6\n')

    assert list(types(tmp_path, declare(tmp_path, "t.csv"))) == ["a,x", "b", 'c"d', "Ü", "column4", "column5"]


def test_csv_files_of_a_directory_may_order_and_type_their_columns_as_they_like(tmp_path: Path) -> None:
    put(tmp_path, "data/1.csv", "a,b\n1,2\n")
    put(tmp_path, "data/2.csv", "B,a\n2.5,x\n")

    assert load(tmp_path, "data") == [("1", 2.0), ("x", 2.5)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param("a,b\n1,2\n1\n", "'t.csv', line 3: it has more or fewer fields", id="R06 row cut short"),
        pytest.param("title\na,b\n1,2\n", "line 2: it has more or fewer fields than the header", id="title line"),
        pytest.param("a,b\n1,2\n1,2,3\n", "'t.csv', line 3: it has more or fewer fields", id="row too long"),
        pytest.param("a,b\n" + "1,2\n" * 30_000 + "1", "line 30002", id="R06 half-written, late"),
        pytest.param("a,b\n" + "x,y\n" * 30_000 + "Smith, J,\n", "line 30002: it has more or fewer", id="empty, late"),
        pytest.param('a,b\nx,1,""\n', "line 2: it has more or fewer fields", id="all rows too long by an empty field"),
        pytest.param('a,b\n1,2\n1,"abc', "line 3: a quote is not closed", id="R06 quote not closed"),
        pytest.param('a,b\n1,2\n1,"a"b\n', "line 3: a quote is not closed", id="text after a quote"),
        pytest.param('a,"b\n1,2\n', "line 1: a quote is not closed", id="quote in the header not closed"),
        pytest.param("a,b\r\n1,2\n3,4\r\n", "the line endings are mixed", id="mixed line ends"),
        pytest.param(b"a,b\n1,\xff\n", "line 2: it is not UTF-8", id="R06 not UTF-8"),
        pytest.param(b"a,b\n" + b"1,2\n" * 30_000 + b"1,\xe9\n", "it is not UTF-8", id="R06 not UTF-8, late"),
        pytest.param(b"a,\xe9\n1,2\n", "line 1: it is not UTF-8", id="R06 header not UTF-8"),
        pytest.param("a,b\n1,2\n".encode("utf-16-le"), "line 1: it is not text, or is in UTF-16: set", id="UTF-16"),
        pytest.param("\n\n", "contains no data", id="only line ends"),
        pytest.param(" \n \t", "contains no data", id="only white space"),
        pytest.param("\na,b\n1,2\n", "has no columns: its first line must name them", id="blank first line"),
        pytest.param("a,a\n1,2\n", "has the column 'a' twice", id="repeated column"),
        pytest.param(
            "a,A\n1,2\n", "has the columns 'a' and 'A', which differ only in case", id="repeated but for case"
        ),
        pytest.param(
            "a,,column1\n1,2,3\n", "'column1' twice; a column without a name gets", id="repeated made-up name"
        ),
        pytest.param("a,b\n1," + "x" * 3_000_000 + "\n", "longer than 2 MB", id="long line"),
        pytest.param("a" * 3_000_000, "the line is longer than 2 MB", id="long header"),
        pytest.param('"' + "a" * 200_000 + '",b\n1,2\n', "line 1: it is not a list of column names", id="long name"),
    ],
)
def test_csv_is_refused(tmp_path: Path, content: str | bytes, said: str) -> None:
    put(tmp_path, "t.csv", content)

    assert said in refusal(tmp_path, "t.csv")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param("a,c\n1,2\n", "has different columns than 'd/1.csv': it lacks 'b', adds 'c'.", id="other"),
        pytest.param("a\n1\n", "it lacks 'b'.", id="fewer"),
        pytest.param("a,b,c,d,e,f\n1,2,3,4,5,6\n", "it adds 'c', adds 'd', adds 'e' and 1 more.", id="more"),
        pytest.param("a;b\n1;2\n", "'d/2.csv' has a different delimiter than 'd/1.csv'.", id="delimiter"),
        pytest.param("a,b\n1\n", "'d/2.csv', line 2: it has more or fewer fields", id="the second is damaged"),
    ],
)
def test_csv_files_that_do_not_fit_together_are_refused(tmp_path: Path, content: str, said: str) -> None:
    put(tmp_path, "d/1.csv", "a,b\n1,2\n")
    put(tmp_path, "d/2.csv", content)

    assert said in refusal(tmp_path, "d")


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.json", "t.ndjson", "t.jsonl", "t.json.gz"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param('{"a":1}\n{"a":2}\n', [(1,), (2,)], id="one a line"),
        pytest.param('[{"a":1},\n{"a":2}]\n', [(1,), (2,)], id="array"),
        pytest.param('{\n "a": 1,\n "b": [1]\n}', [(1, [1])], id="one over several lines"),
        pytest.param('{"a":1}\n{"a":\n2}\n', [(1,), (2,)], id="the second over several lines"),
        pytest.param('\ufeff[{"a":1}] ', [(1,)], id="byte order mark"),
        pytest.param('{"a":1}\n{"b":"x"}\n', [(1, None), (None, "x")], id="keys differ"),
        pytest.param('{"a":1}\n{}\n', [(1,), (None,)], id="an object without keys among others"),
        pytest.param('{"a":1,"a_1":2,"b_2":3}\n', [(1, 2, 3)], id="a key that looks like a repeated one"),
        pytest.param('{"a":null}\n', [(None,)], id="no value at all"),
        pytest.param(json.dumps({f"c{n}": n for n in range(300)}), [tuple(range(300))], id="300 columns"),
    ],
)
def test_json_is_read(tmp_path: Path, name: str, content: str, expected: list[tuple[Any, ...]]) -> None:
    put(tmp_path, name, gzip.compress(content.encode()) if name.endswith(".gz") else content)

    assert load(tmp_path, name) == expected


@pytest.mark.parametrize("cut", [1, 2, 8, 9])
def test_r06_json_cut_short_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    put(tmp_path, "t.json", '[{"a":1},{"a":2}]'[:-cut])

    assert "'t.json'" in refusal(tmp_path, "t.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param('{"a":1}\n{"a":', "', line 2: the JSON was cut short", id="R06 half-written"),
        pytest.param('{"a":1}\nnot json\n', "', line 2: the JSON is malformed", id="malformed"),
        pytest.param('{"a":1,"a":2}\n', "an object has the same key twice", id="repeated key"),
        pytest.param(
            '[{"a":1,"A":2}]',
            "has the columns 'A' and 'a', which differ only in case; rename one of the keys",
            id="repeated but for case",
        ),
        pytest.param('{"a":1}\n{"":2}', "an object has an empty key, which cannot be a", id="empty key"),
        pytest.param('{"o":{"x":1,"X":2}}', "in a column have the key 'X' twice in different case", id="inner keys"),
        pytest.param(b'{"a":"\xff"}\n', "it is not UTF-8", id="R06 not UTF-8"),
        pytest.param("[]", "it has no columns", id="empty array"),
        pytest.param("[1,2]", "it has no columns", id="no objects"),
        pytest.param("null", "it has no columns", id="null"),
        pytest.param("{}", "it has no columns", id="no keys"),
        pytest.param("\n\n", "contains no data", id="only line ends"),
        pytest.param('{"a":"' + "x" * 17_000_000 + '"}', "an object is larger than 16 MB", id="large object"),
    ],
)
def test_json_is_refused(tmp_path: Path, content: str | bytes, said: str) -> None:
    put(tmp_path, "t.json", content)

    assert said in refusal(tmp_path, "t.json")


def test_json_files_of_a_directory_are_read_together_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    put(tmp_path, "d/1.json", '[{"a":1}]')
    put(tmp_path, "d/2.ndjson", '{"b":2}\n')

    assert load(tmp_path, "d") == [(1, None), (None, 2)]

    put(tmp_path, "d/3.json", '{"a":')
    assert "'d/3.json'" in refusal(tmp_path, "d")


NUMBERS = (
    b'[{"v": 0.1234567890123456789012, "t": ", 0.1234567890123456789012 \\" -1"}, {"v":-1e400,"t":"\\\\"},\n'
    b'{"v":0.30000000000000004,"w":[-12345678901234567.25,9007199254740993,1.000000000000000056e-01]}]'
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
def test_only_numbers_that_a_double_changes_become_strings(size: int) -> None:
    expected = NUMBERS.replace(b'": 0.1234567890123456789012', b'": "0.1234567890123456789012"')
    for number in (b"-1e400", b"-12345678901234567.25", b"1.000000000000000056e-01"):
        expected = expected.replace(number, b'"' + number + b'"')

    found = b"".join(with_long_numbers_quoted(NUMBERS[at : at + size] for at in range(0, len(NUMBERS), size)))

    assert found == expected
    assert json.loads(found)[0]["t"] == ', 0.1234567890123456789012 " -1'


def test_json_values_in_lists_and_objects_are_exact(tmp_path: Path) -> None:
    put(
        tmp_path,
        "t.json.gz",
        gzip.compress(
            b'[{"o":{"until":"infinity","at":["2024-03-01T10:00:00.123456789Z"]},"n":[0.123456789012345678]},\n'
            b'{"o":{"until":"2024-01-05","at":[]},"n":[1, 1000000000000000000]},{"o":{"until":"epoch"},"n":null}]'
        ),
    )
    dataset = declare(tmp_path, "t.json.gz")

    assert types(tmp_path, dataset) == {
        "o": 'STRUCT("until" VARCHAR, "at" TIMESTAMPTZ_NS[])',
        "n": "DECIMAL(38,18)[]",
    }
    found = rows(tmp_path, build(tmp_path, dataset), "SELECT o.until, o.at::VARCHAR, n FROM d")
    assert [until for until, _, _ in found] == ["infinity", "2024-01-05", "epoch"]
    assert [at for _, at, _ in found] == ["['2024-03-01 10:00:00.123456789+00']", "[]", None]
    assert [n for _, _, n in found] == [[Decimal("0.123456789012345678")], [Decimal(1), Decimal(10**18)], None]


# --- Parquet ----------------------------------------------------------------------------------------------------------


NESTED = {"x": 1, "y": [{"z": "t"}]}


def test_parquet_keeps_names_types_and_values(tmp_path: Path) -> None:
    cases: dict[str, tuple[Any, str, object]] = {
        'q"uoted': ([1], "BIGINT", 1),
        "decimal": (pa.array([Decimal("0.10")], pa.decimal128(38, 2)), "DECIMAL(38,2)", Decimal("0.10")),
        "nested": ([NESTED], "STRUCT(x BIGINT, y STRUCT(z VARCHAR)[])", NESTED),
        "list": ([[1, 2]], "BIGINT[]", [1, 2]),
        "nothing": (pa.nulls(1), "INTEGER", None),
    }
    put_parquet(tmp_path, "t.parquet", **{name: values for name, (values, _, _) in cases.items()})

    assert load(tmp_path, "t.parquet") == [tuple(value for _, _, value in cases.values())]
    assert types(tmp_path, declare(tmp_path, "t.parquet")) == {name: kind for name, (_, kind, _) in cases.items()}


def test_parquet_files_of_a_directory_get_the_widest_type_if_they_fit_together(tmp_path: Path) -> None:
    put_parquet(tmp_path, "d/1.parquet", a=[1], b=[1])
    put_parquet(tmp_path, "d/2.parquet", b=[2], a=[1.5])

    assert load(tmp_path, "d") == [(1.0, 1), (1.5, 2)]

    put_parquet(tmp_path, "d/3.parquet", a=[1])
    assert "'d/3.parquet' has different columns than 'd/1.parquet': it lacks 'b'." in refusal(tmp_path, "d")


def test_parquet_files_whose_values_would_change_in_a_common_type_are_refused(tmp_path: Path) -> None:
    put_parquet(tmp_path, "d/1.parquet", a=[2**53], b=[{"c": 1}])
    put_parquet(tmp_path, "d/2.parquet", a=[1.5], b=[{"c": 2}])
    assert load(tmp_path, "d") == [(2.0**53, {"c": 1}), (1.5, {"c": 2})]

    put_parquet(tmp_path, "d/3.parquet", a=[2**53 + 1], b=[{"c": 3}])
    said = refusal(tmp_path, "d")
    assert said.startswith("'d/3.parquet': some values of the column 'a' (BIGINT) would change as DOUBLE, its type in")


@pytest.mark.parametrize(
    ("values", "others", "type_"),
    [
        ([True], [7], "BOOLEAN"),
        ([[True]], [[7]], "BOOLEAN[]"),
        ([datetime(2024, 1, 1)], [datetime(2024, 1, 1, tzinfo=UTC)], "TIMESTAMP"),  # noqa: DTZ001
        ([date(2024, 1, 1)], [datetime(2024, 1, 1, tzinfo=UTC)], "DATE"),
        ([datetime(2024, 1, 1, tzinfo=UTC)], pa.array([1], pa.timestamp("ns")), "TIMESTAMP WITH TIME ZONE"),
        (["a"], [b"a"], "VARCHAR"),
    ],
)
def test_parquet_files_whose_values_would_mean_another_thing_in_a_common_type_are_refused(
    tmp_path: Path, values: list[object], others: list[object], type_: str
) -> None:
    put_parquet(tmp_path, "d/1.parquet", a=values)
    put_parquet(tmp_path, "d/2.parquet", a=others)

    assert f"'d/1.parquet': some values of the column 'a' ({type_}) would change as" in refusal(tmp_path, "d")

    put_parquet(tmp_path, "d/2.parquet", a=["text"] if type_ != "BOOLEAN[]" else [["text"]])
    assert len(load(tmp_path, "d")) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param(pa.array([None, 1001], pa.timestamp("ns")), "', row 2: the column 't' has nanoseconds", id="row"),
        pytest.param(pa.array([[0, 1001]], pa.list_(pa.timestamp("ns"))), "': the column 't' has nano", id="list"),
        pytest.param(pa.array([1000, None], pa.timestamp("ns")), None, id="microseconds"),
        pytest.param(pa.array([253_402_214_400_000_005], pa.timestamp("us")), None, id="year 9999"),
    ],
)
def test_nanoseconds_of_the_old_type_of_parquet_are_refused(tmp_path: Path, values: pa.Array, said: str | None) -> None:
    pq.write_table(pa.table({"t": values}), tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)

    if said is None:
        assert len(load(tmp_path, "t.parquet")) == len(values)
    else:
        assert said in refusal(tmp_path, "t.parquet")


@pytest.mark.parametrize(("nanoseconds", "is_exact"), [(86_399_999_999_999, False), (86_399_999_999_000, True)])
@pytest.mark.parametrize("day", [-719_162, 106_751, 213_504, 2_932_896])
def test_nanoseconds_of_the_old_type_are_found_in_years_that_the_new_one_lacks(
    tmp_path: Path, day: int, nanoseconds: int, is_exact: bool
) -> None:
    table = pa.table({"t": pa.array([0], pa.timestamp("ns"))})
    content = io.BytesIO()
    pq.write_table(
        table, content, use_deprecated_int96_timestamps=True, use_dictionary=False, write_statistics=False,
        compression="none",
    )  # fmt: skip
    epoch, written = (struct.pack("<qi", part, 2_440_588 + days) for part, days in ((0, 0), (nanoseconds, day)))
    (tmp_path / "t.parquet").write_bytes(content.getvalue().replace(epoch, written))

    if is_exact:
        ((moment,),) = load(tmp_path, "t.parquet")
        assert f"{moment:%T.%f}" == "23:59:59.999999"
    else:
        assert "row 1: the column 't' has nanoseconds" in refusal(tmp_path, "t.parquet")


def test_parquet_is_refused(tmp_path: Path) -> None:
    good = parquet_bytes(tmp_path, pa.table({"a": list(range(1000))}))
    footer = bytearray(good)
    footer_length = int.from_bytes(good[-8:-4], "little")
    footer[-8 - footer_length : -8] = b"\xff" * footer_length
    cases = {
        "half": (good[: len(good) // 2], "it is not a Parquet file, or it was cut short"),
        "magic": (good[:-4] + b"PARX", "it is not a Parquet file, or it was cut short"),
        "tiny": (b"PAR1", "it is not a Parquet file, or it was cut short"),
        "random": (random.Random(1).randbytes(5000), "it is not a Parquet file, or it was cut short"),
        "text": (b"a,b\n1,2\n" * 10, "it is not a Parquet file, or it was cut short"),
        "footer": (bytes(footer), "the engine cannot read it as Parquet"),
        "none": (parquet_bytes(tmp_path, pa.table({})), "it has no columns"),
        "twice": (parquet_bytes(tmp_path, pa.table([[1], [2]], names=["a", "a"])), "has the column 'a' twice"),
        "case": (parquet_bytes(tmp_path, pa.table([[1], [2]], names=["a", "A"])), "which differ only in case"),
        "nested": (
            parquet_bytes(tmp_path, pa.table({"a": [[{"b": {"c": 1, "C": 2}, "d": 3}]], "e": [{"C": 1}]})),
            "has the columns 'c' and 'C', which differ only in case; names in a column must be unique",
        ),
        "wide": (
            parquet_bytes(tmp_path, pa.table({"a": pa.array([1], pa.decimal256(60, 2))})),
            "the column 'a' has decimals of 60 digits; the engine supports at most 38",
        ),
    }
    for name, (content, said) in cases.items():
        put(tmp_path, f"{name}.parquet", content)
        assert said in refusal(tmp_path, f"{name}.parquet"), name


# --- gzip and the rest ------------------------------------------------------------------------------------------------


WHOLE = gzip.compress(b"a,b\n" + b"1,2\n" * 20_000)


def flipped(at: int) -> bytes:
    """Return the file with one byte changed."""
    content = bytearray(WHOLE)
    content[at] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.json.gz"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(flipped(-6), "is damaged", id="R06 checksum"),
        pytest.param(flipped(-1), "is damaged", id="R06 length"),
        pytest.param(flipped(20), "is damaged", id="R06 body"),
        pytest.param(WHOLE + b"garbage", "is damaged", id="R06 trailing"),
        pytest.param(b"a,b\n1,2\n", "is damaged", id="R06 not gzip"),
        pytest.param(WHOLE[:-30], "is damaged", id="R06 cut"),
        pytest.param(gzip.compress(b""), "contains no data", id="nothing"),
    ],
)
def test_damaged_or_empty_gzip_is_refused(tmp_path: Path, content: bytes, name: str, said: str) -> None:
    put(tmp_path, name, content)

    assert f"'{name}' {said}" in refusal(tmp_path, name)


def test_gzip_of_several_members_and_of_many_blocks_is_read_whole(tmp_path: Path) -> None:
    put(tmp_path, "t.csv.gz", gzip.compress(b"a\n1\n") + gzip.compress(b"2\n"))
    put(tmp_path, "large.csv.gz", gzip.compress(b"a\n" + b"123456789\n" * 400_000, 1))

    assert load(tmp_path, "t.csv.gz") == [(1,), (2,)]
    assert len(load(tmp_path, "large.csv.gz")) == 400_000


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.json", "t.csv.gz", "t.json.gz"])
@pytest.mark.parametrize("seed", range(5))
def test_r06_random_bytes_are_refused(tmp_path: Path, name: str, seed: int) -> None:
    put(tmp_path, name, random.Random(seed).randbytes(2000))

    assert f"'{name}'" in refusal(tmp_path, name)


def test_trailing_white_space_is_skipped(tmp_path: Path) -> None:
    put(tmp_path, "t.json", '[{"a":1}]' + " " * 3_000_000)
    put(tmp_path, "blank.json", " " * 3_000_000)

    assert load(tmp_path, "t.json") == [(1,)]
    assert "contains no data" in refusal(tmp_path, "blank.json")


@pytest.mark.parametrize(
    ("text", "message", "said"),
    [
        ("d/1.csv", "Some Error: secret /etc/passwd", "CSV"),
        ("d/1.csv", "Error when sniffing file: secret", "CSV"),
        ("d", "Some Error: secret /etc/passwd", "CSV"),
        ("d", "Error when sniffing file: secret", "CSV"),
        pytest.param(
            "t.parquet", 'IO Error: Cannot open file "{}": Gone', "Parquet: Cannot open the file: Gone", id="file"
        ),
        pytest.param(
            "t.parquet", "IO Error: Failed to read the file '{}'.", "Parquet: Failed to read the file", id="the file"
        ),
        ("t.parquet", 'Invalid Input Error: "{}" ends early', "Parquet: the file ends early"),
    ],
)
def test_an_unknown_message_becomes_a_sentence_without_contents_and_paths(
    tmp_path: Path, text: str, message: str, said: str
) -> None:
    put(tmp_path, "d/1.csv", "a\nsecret\n")
    put(tmp_path, "d/2.csv", "a\nsecret\n")
    put_parquet(tmp_path, "t.parquet", n=[1])

    with duckdb.connect() as connection, source_of(declare(tmp_path, text)).open(new_load(tmp_path)) as scan:
        scan.bind(connection)
        sentence = str(scan.explain(connection, duckdb.Error(message.format(*scan.paths))))

    assert sentence == f"'{text}': the engine cannot read it as {said}."


def test_names_that_the_engine_made_up_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", "a,b\n1,2\n")

    with duckdb.connect() as connection, source_of(declare(tmp_path, "t.csv")).open(new_load(tmp_path)) as scan:
        scan.bind(connection)
        scan.accept(connection, [Column(name=name, type="VARCHAR") for name in ("B", "a")])
        with pytest.raises(SourceError, match=r"^'t\.csv': its first line is not a header\.$"):
            scan.accept(connection, [Column(name=name, type="VARCHAR") for name in ("a", "column1")])
