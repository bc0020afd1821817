"""Rows for a model: exact, and no more than it can use."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpapi.errors import ToolError
from mcpapi.messages import encode
from mcpapi.results import MAX_BYTES, Rows, read_rows
from mcpapi.tools import TOOLS, call


class Answer:
    """The answer to a statement in pieces; `is_read` once all of it was."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.is_read = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        self.is_read = True


def answer_of(columns: dict[str, Any], rows: str) -> bytes:
    fields = [{"name": name, "data_type": kind} for name, kind in columns.items()]
    schema = json.dumps({"fields": fields, "metadata": {}}, ensure_ascii=False, separators=(",", ":"))
    return f'{{"schema":{schema},"data":[{rows}],"row_count":1}}'.encode()


def rows_of(columns: dict[str, Any], rows: str, **limits: int) -> Rows:
    return read_rows(Answer(answer_of(columns, rows)), **limits)


@pytest.mark.parametrize(
    ("sent", "structured"),
    [
        ("9007199254740991", 9007199254740991),
        ("9007199254740992", "9007199254740992"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ("1.50", 1.5),
        ("0.1234567890123456789012", "0.1234567890123456789012"),
        ("0.1", 0.1),
        ("1e+300", 1e300),
        ("123456789012345678.5", "123456789012345678.5"),
        ("-0.0", -0.0),
        ("9" * 5000, "9" * 5000),
        ("null", None),
        ("true", True),
        ('"9223372036854775807"', "9223372036854775807"),
        ('[1.10,{"a":9223372036854775807}]', [1.1, {"a": "9223372036854775807"}]),
    ],
)
def test_text_is_exact_and_structured_content_has_no_number_that_a_double_changes(sent: str, structured: Any) -> None:
    found = rows_of({"a": "Int64"}, f'{{"a":{sent}}}')

    assert found.lines == [f"[{sent}]"]
    assert found.structured()["rows"] == [[structured]]


@given(st.lists(st.tuples(st.text(), st.integers()), max_size=20), st.integers(1, 7))
def test_any_pieces_give_the_same_rows(values: list[tuple[str, int]], size: int) -> None:
    body = answer_of(
        {"tëxt": "Utf8", "n": "Int64"},
        ",".join(json.dumps({"tëxt": text, "n": n}, ensure_ascii=False, separators=(",", ":")) for text, n in values),
    )
    answer = Answer(*(body[at : at + size] for at in range(0, len(body), size)))

    found = read_rows(answer)

    assert [json.loads(line) for line in found.lines] == [list(value) for value in values]
    assert answer.is_read
    assert not found.is_cut
    assert all(line.splitlines() == [line] for line in found.lines)


def test_rows_are_cut_by_their_number_and_by_their_size() -> None:
    many = ",".join(f'{{"a":{number}}}' for number in range(10))
    large = ",".join(f'{{"a":"{"x" * 1000}"}}' for _ in range(100))

    assert not rows_of({"a": "Int64"}, many, max_rows=10).is_cut
    cut = rows_of({"a": "Int64"}, many, max_rows=9)
    assert (len(cut.rows), cut.is_cut, cut.structured()["row_count"]) == (9, True, 9)
    cut = rows_of({"a": "Utf8"}, large)
    assert cut.is_cut
    assert len("".join(cut.lines)) <= MAX_BYTES < len("".join(cut.lines)) + 1004


def test_a_row_or_columns_that_are_too_large_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ToolError, match="select fewer columns") as row:
        rows_of({"a": "Utf8"}, f'{{"a":"{"x" * MAX_BYTES}"}}')
    with pytest.raises(ToolError, match="10,500 columns") as columns:
        rows_of({f"c{number}": "Int64" for number in range(10_500)}, "")

    assert (row.value.code, columns.value.code) == ("row_too_large", "result_too_wide")


@pytest.mark.parametrize("length", [0, 5, 40, 60, 75])
def test_an_answer_that_is_cut_off_is_never_a_result(length: int) -> None:
    body = answer_of({"a": "Int64"}, '{"a":1}')

    with pytest.raises(ToolError, match="incomplete"):
        read_rows(Answer(body[:length]))


def test_rows_are_read_from_a_chunk_of_any_size() -> None:
    row = f'{{"a":"{"x" * 1000}"}}'

    found = rows_of({"a": "Utf8"}, ",".join([row] * 5000))

    assert (len(found.rows), found.is_cut) == (MAX_BYTES // 1004, True)


def test_a_dataset_is_described_without_a_catalog() -> None:
    class Cluster:
        def run(self, sql: str) -> AbstractContextManager[Answer]:
            if "information_schema" in sql:
                raise ToolError("sql_error", "Function 'list' does not exist.")
            return nullcontext(Answer(answer_of({"a": "Int64"}, '{"a":1}')))

        def datasets(self) -> list[dict[str, Any]]:
            return [{"name": "taxi.trips", "rows": 1, "refreshed_at": None, "status": "Ready"}]

    listed, described = (
        call(Cluster(), TOOLS[name], arguments)["content"][0]["text"].splitlines()
        for name, arguments in (("list_datasets", {}), ("describe_dataset", {"name": "TAXI.trips"}))
    )

    assert listed == ["taxi.trips (1 row)", "1 dataset."]
    assert described == ["taxi.trips (1 row)", "  a BIGINT", "first rows:", "[1]"]


@pytest.mark.parametrize("depth", [*range(100, 1100, 100), 10_000])
def test_a_value_of_any_depth_is_answered_or_refused(depth: int) -> None:
    for value in ("[" * depth + "1" + "]" * depth, '{"a":' * depth + "1" + "}" * depth):

        class Runtime:
            def run(self, sql: str, value: str = value) -> AbstractContextManager[Answer]:
                return nullcontext(Answer(answer_of({"a": "Utf8"}, f'{{"a":{value}}}')))

            def datasets(self) -> list[dict[str, Any]]:
                return []

        found = call(Runtime(), TOOLS["query"], {"sql": "SELECT a"})
        text = found["content"][0]["text"]

        assert text.startswith("row_too_large: ") if found["isError"] else value in text
        assert json.loads(encode(found)) == found


def test_an_endless_value_is_not_kept() -> None:
    class Endless(Answer):
        def __iter__(self) -> Iterator[bytes]:
            yield answer_of({"a": "Utf8"}, "").removesuffix(b'],"row_count":1}') + b'{"a":"'
            while True:
                yield b"x" * 65536

    with pytest.raises(ToolError, match="too large"):
        read_rows(Endless())


def test_a_name_cannot_look_like_another_line() -> None:
    found = rows_of({"plain": "Int64", "a, b\nc": "Utf8"}, "")

    assert found.header == 'plain BIGINT, "a, b\\nc" VARCHAR'
