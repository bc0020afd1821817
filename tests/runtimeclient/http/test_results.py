import json
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeclient.errors import IncompleteResultError
from runtimeclient.http.results import JsonStream, Number


def items(text: str, size: int = 7) -> Sequence[object]:
    stream = JsonStream(text[start : start + size] for start in range(0, len(text), size))
    values = [value for _, value in stream.items()]
    stream.end()
    return values


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def as_written(value: object) -> object:
    if isinstance(value, list):
        return [as_written(item) for item in value]
    if isinstance(value, dict):
        return {name: as_written(item) for name, item in value.items()}
    return Number(json.dumps(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


@given(st.lists(_JSON, max_size=6), st.booleans(), st.sampled_from([None, 1]), st.integers(1, 30))
def test_reads_any_json_in_any_pieces(values: list[object], is_ascii: bool, indent: int | None, size: int) -> None:
    text = json.dumps(values, ensure_ascii=is_ascii, indent=indent)

    assert items(text, size) == [as_written(value) for value in values]


@given(st.lists(_JSON, min_size=1, max_size=4), st.data())
def test_a_cut_text_never_looks_complete(values: list[object], data: st.DataObject) -> None:
    text = json.dumps(values)
    length = data.draw(st.integers(0, len(text) - 1))

    with pytest.raises(IncompleteResultError):
        items(text[:length], 5)


@pytest.mark.parametrize(
    "text",
    [
        "[1 2]",
        "[1,]",
        "[,1]",
        "{}",
        "[1]]",
        "[1] x",
        "[NaN]",
        "[-Infinity]",
        "[tru]",
        '["\n"]',
        '["\\x"]',
        "[" * 100_000,
        "<html>" + " " * 100,
        '[{"a" 1}]' + " " * 100,
    ],
)
def test_rejects_text_that_is_not_a_json_array(text: str) -> None:
    with pytest.raises(IncompleteResultError):
        items(text)


@pytest.mark.parametrize("start", ['[{"a": 1} nonsense', '[{"a" 1}', "[1.", "[1e+", "[tru", "[NaN", "<html>"])
def test_rejects_invalid_text_before_its_end(start: str) -> None:
    def endless() -> Iterator[str]:
        yield start
        for _ in range(100):
            yield "x" * 100
        pytest.fail("read on and on")

    with pytest.raises(IncompleteResultError, match="not valid JSON"):
        list(JsonStream(endless()).items())


def test_keeps_numbers_and_texts_of_values_as_written() -> None:
    digits = "9" * 5000

    assert items(f"[1.50,1e400,-0,{digits}]") == ["1.50", "1e400", "-0", digits]
    assert [text for text, _ in JsonStream(['[ {"a": 1.0}', " , [ ] ]"]).items()] == ['{"a": 1.0}', "[ ]"]


def test_reads_an_object_member_by_member() -> None:
    stream = JsonStream(['{"n": 1', '2, "rows" : [{}], "s":"x"}'])
    found: dict[str, object] = {}

    for name in stream.members():
        found[name] = [value for _, value in stream.items()] if name == "rows" else stream.value()[1]
    stream.end()

    assert found == {"n": "12", "rows": [{}], "s": "x"}
    assert list(JsonStream(["{", "}"]).members()) == []


@pytest.mark.parametrize("text", ["{1:2}", '{"a" 1}', '{"a":1', '{"a":1,}', "{"])
def test_refuses_a_malformed_object(text: str) -> None:
    stream = JsonStream([text])

    with pytest.raises(IncompleteResultError):
        [stream.value() for _ in stream.members()]


def test_a_long_value_in_small_pieces_is_read_in_linear_time() -> None:
    text = json.dumps(["x" * 8_000_000, {"a": "y" * 4_000_000}])
    start = time.process_time()

    assert len(items(text, 1000)) == 2
    assert time.process_time() - start < 30
