"""Single values: how their text becomes a number, a duration, a size, an address, or a fault."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeconf.fields import (
    BooleanField,
    ChoiceField,
    DurationField,
    Field,
    IntegerField,
    ListField,
    SizeField,
    SqlField,
    TextField,
)
from runtimeconf.validation import Validation, YamlPath
from runtimeconf.yaml_nodes import Entry, Mapping, Node, Scalar, Sequence
from tests.corpus import each
from tests.runtimeconf.configurations import KEY, NO_REFERENCE, Faults, Load


def read(field: Field[Any], node: Node, *, is_sensitive: bool = False) -> tuple[Any, list[str]]:
    """The value of *node*, and the faults as messages."""
    validation = Validation(file=Path("runtime.yaml"), directory=Path(), environ={}, known_paths={})
    value = field.read(node, YamlPath(validation, "a.b", is_sensitive))
    return value, [fault.message for fault in validation.faults]


def plain(text: str) -> Scalar:
    return Scalar(1, text, is_plain=True)


def quoted(text: str) -> Scalar:
    return Scalar(1, text, is_plain=False)


WORKERS = IntegerField(1, 64)
DAY, YEAR = DurationField("1ms", "1d"), DurationField("1ms", "365d")
TIB = SizeField("1B", "1TiB")
VERSION = ChoiceField("2.0", "1.10")
BOOLEAN = BooleanField()

#: Values that read the same with and without quotes.
VALID: dict[Field[Any], dict[str, Any]] = {
    DAY: {"30s": 30.0, "500ms": 0.5, "1m": 60.0, "1h": 3600.0, "1d": 86400.0, "2.5s": 2.5, "0.001s": 0.001}
    | {"30 s": 30.0, "1ms": 0.001},
    TIB: {"1": 1, "1048576": 1048576, "10B": 10, "1kB": 1000, "1KB": 1000, "16MB": 16_000_000, "1TB": 10**12}
    | {"1KiB": 1024, "128MiB": 2**27, "1GiB": 2**30, "1.5GiB": 3 * 2**29, "1 GiB": 2**30, "1TiB": 2**40},
    VERSION: {"2.0": "2.0", "1.10": "1.10"},
    SqlField("SQL", max_length=100): {"SELECT 1\n-- x\n": "SELECT 1\n-- x\n"},
}
#: Values that must be written without quotes.
PLAIN: dict[Field[Any], dict[str, Any]] = {
    BOOLEAN: {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False},
    WORKERS: {"1": 1, "64": 64, "7": 7},
}


@pytest.mark.parametrize("write", [plain, quoted])
@each(("field", "text"), [(field, text) for field, values in VALID.items() for text in values])
def test_values(write: Any, field: Field[Any], text: str) -> None:
    assert read(field, write(text)) == (VALID[field][text], [])


@each(("field", "text"), [(field, text) for field, values in PLAIN.items() for text in values])
def test_c22_values_that_quotes_make_a_text(field: Field[Any], text: str) -> None:
    assert read(field, plain(text)) == (PLAIN[field][text], [])
    assert read(field, quoted(text)) == (None, [f"must be {field.expected}; found {text!r} (without quotes)"])


UNITS = "(the units are ms, s, m, h, d)"
BYTES = "(the units are B, kB, MB, GB, TB, KB, KiB, MiB, GiB, TiB)"

#: Texts that are refused, by the hint that their fault ends with.
INVALID: dict[Field[Any], dict[str, tuple[str, ...]]] = {
    BOOLEAN: {"": ("yes", "no", "on", "off", "y", "1", "0", "ture", "tRUE", "true ", "enabled")},
    WORKERS: {
        "": ("0", "65", "-1", "+4", "04", "4.0", "1_0", "0x4", "0o4", "4 ", "\u0664", "9" * 5000, "1e1"),
    },
    DAY: {
        "(add a unit: ms, s, m, h, d)": ("30",),
        UNITS: ("30x", "30S", "5 minutes"),
        "": (
            *("0s", "0.5ms", "25h", "-1s", "1e3s", ".5s", "1_0s", "1:30", "infs", "nan", "1m30s", "\u0663s"),
            "9" * 19 + "s",
        ),
    },
    TIB: {
        "(not a whole number of bytes)": ("1.5",),
        BYTES: ("1gib", "1Gb"),
        "": ("0", "2TiB", "-1", "1_000", "0x10", "1e6"),
    },
    VERSION: {"(did you mean 1.10?)": ("1.1",)},
    ChoiceField("a", "b", "c"): {"": ("xyz",)},
    ChoiceField("full"): {"": ("append",)},
    TextField("a name", max_length=10): {
        "(it is blank)": ("  ",),
        "(it contains a control character)": ("a\nb",),
        "(it is longer than 10 characters)": ("x" * 11,),
        NO_REFERENCE: ("${ env:x }",),
    },
}


@each(
    ("field", "hint", "text"),
    [(field, hint, text) for field, hints in INVALID.items() for hint, texts in hints.items() for text in texts],
)
def test_c19_c22_invalid_values(field: Field[Any], hint: str, text: str) -> None:
    value, (message,) = read(field, plain(text) if text else quoted(text))

    shown = repr(text if len(text) <= 60 else f"{text[:57]}...")
    assert (value, message) == (None, f"must be {field.expected}; found {shown}{hint and ' '}{hint}")


@each(
    ("node", "found"),
    [
        pytest.param(plain(""), "is empty: it must be true or false, or be omitted", id="nothing"),
        pytest.param(plain("null"), "is empty: it must be true or false, or be omitted", id="null"),
        pytest.param(quoted(""), "must be true or false; found ''", id="an empty text"),
        pytest.param(Sequence(1, ()), "must be true or false; found a list", id="a list"),
        pytest.param(Mapping(1, ()), "must be true or false; found a mapping", id="a mapping"),
        pytest.param(
            Scalar(1, "canary", is_plain=True, may_be_shown=False),
            "must be true or false; found a string",
            id="a value with an anchor",
        ),
        pytest.param(
            Mapping(1, (Entry(1, "${ secrets", plain("x }")),)),
            'must be true or false; found a mapping (quote a string that contains ": ", or remove the space)',
            id="a broken reference",
        ),
        pytest.param(
            plain("\x1b[31m" + "x" * 100), f"must be true or false; found '\\x1b[31m{'x' * 52}...'", id="long, coloured"
        ),
    ],
)
def test_a_fault_shows_the_value_found(node: Node, found: str) -> None:
    assert read(BooleanField(), node) == (None, [found])


@each(
    ("node", "found"),
    [
        (plain("12"), "a number"),
        (plain("1_000.5"), "a number"),
        (quoted("12"), "a string"),
        (plain("canary"), "a string"),
        (quoted("true"), "a string"),
        (plain("true"), "true or false"),
        (Sequence(1, ()), "a list"),
    ],
)
def test_below_sensitive_paths_only_the_type_is_shown(node: Node, found: str) -> None:
    _, (message,) = read(ChoiceField("a", "b"), node, is_sensitive=True)

    assert message == f"must be a or b; found {found}"


@given(
    st.tuples(st.integers(0, 10**6), st.integers(0, 999)),
    st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("d", 86400)]),
    st.integers(0, 10**15),
    st.sampled_from([("", 1), ("B", 1), ("kB", 1000), ("KiB", 1024), ("TiB", 1024**4)]),
)
def test_any_quantity_is_its_number_times_its_unit(
    number: tuple[int, int], unit_of_time: tuple[str, int], size: int, unit_of_size: tuple[str, int]
) -> None:
    whole, thousandths = number
    milliseconds, n_bytes = (whole * 1000 + thousandths) * unit_of_time[1], size * unit_of_size[1]

    for text, field, value, is_valid in (
        (f"{whole}.{thousandths:03}{unit_of_time[0]}", YEAR, milliseconds / 1000, 1 <= milliseconds <= 31_536_000_000),
        (f"{size}{unit_of_size[0]}", TIB, n_bytes, 1 <= n_bytes <= 2**40),
    ):
        found, messages = read(field, plain(text))
        assert (found, len(messages)) == ((value, 0) if is_valid else (None, 1))


@pytest.mark.parametrize(
    ("node", "value", "message"),
    [
        (plain("abc"), None, "must be a list, with one item per line after a dash; found 'abc'"),
        (plain(""), None, "is empty: it must be a list, with one item per line after a dash, or be omitted"),
        (Mapping(1, ()), None, "must be a list, with one item per line after a dash; found a mapping"),
        (Sequence(1, ()), (), "is an empty list: list at least 1, or omit the field"),
    ],
)
def test_invalid_lists(node: Node, value: Any, message: str) -> None:
    assert read(ListField(BOOLEAN, minimum=1), node) == (value, [message])


def test_a_list_keeps_its_good_items_and_names_each_bad_one() -> None:
    node = Sequence(1, (plain("true"), plain("x"), plain("false"), plain("y")))
    validation = Validation(file=Path("runtime.yaml"), directory=Path(), environ={}, known_paths={})

    assert ListField(BooleanField()).read(node, YamlPath(validation, "a")) == (True, False)
    assert [fault.yaml_path for fault in validation.faults] == ["a[1]", "a[3]"]


HIDES = "YAML joins its lines"


@pytest.mark.parametrize(
    ("value", "hides"),
    [
        (">\n    SELECT id FROM a -- own rows\n    WHERE id = 1\n", True),
        (">\n    SELECT id FROM a --\n    WHERE id = 1\n", True),
        (">-\n    SELECT '--', id FROM a -- own\n    -- rows\n", True),
        ("SELECT id FROM a -- own rows\n    WHERE id = 1\n", True),
        ('"SELECT id FROM a -- own rows\n    WHERE id = 1"\n', True),
        ("'SELECT id FROM a -- own rows\n    WHERE id = 1'\n", True),
        ("&sql 'SELECT id FROM a -- own rows\n    WHERE id = 1'\n", True),
        ("|\n    SELECT id FROM a -- own rows\n    WHERE id = 1\n", False),
        (">\n    SELECT id FROM a\n    WHERE id = 1 -- own rows\n", False),
        (">\n    SELECT id -- all\n\n    FROM a\n", False),
        (">\n    SELECT id\n      -- all\n      FROM a\n", False),
        (">\n    SELECT '-- own\n    rows', 1 FROM a WHERE b = 'acme'\n", False),
        (">\n    SELECT 1 /* --\n    */ FROM a\n", True),
        (">\n    SELECT e'\\'' FROM a -- don't\n    WHERE id = 1\n", True),
        ('>\n    SELECT `6" pipe` FROM a -- the 6" one\n    WHERE id = 1\n', True),
        (">\n    SELECT a$$ FROM a -- own\n    WHERE id = 1\n", True),
        (">\n    SELECT id FROM a\n    WHERE id = '$' -- own\n", False),
        ('"SELECT id -- all\\n FROM a\\\n    WHERE id = 1"\n', False),
        ("SELECT id FROM a -- own rows\n", False),
    ],
)
def test_no_comment_hides_lines_that_yaml_has_joined_to_it(
    load_text: Load, faults: Faults, value: str, hides: bool
) -> None:
    text = f"datasets:\n- {{name: a, from: 'file:a.parquet'}}\nviews:\n- name: v\n  sql: {value}"
    if hides:
        (fault,) = faults(text)
        assert (fault.yaml_path, fault.line) == ("views[0].sql", 5)
        assert HIDES in fault.message
    else:
        assert load_text(text).views[0].sql


def test_every_field_for_sql_refuses_such_a_comment(faults: Faults) -> None:
    folded = ">\n              a = 1 -- or\n              OR a = 2\n"
    text = f"""
runtime:
  auth:
    api-key:
      enabled: true
      named_keys:
      - name: partner
        key: {KEY}
        datasets:
        - name: a
          row_filter: {folded}
          masks:
            b: {folded}
datasets:
- name: a
  from: file:a.parquet
  acceleration:
    enabled: true
    refresh_sql: {folded}
"""
    found = [fault.yaml_path.rpartition(".")[2] for fault in faults(text) if HIDES in fault.message]

    assert sorted(found) == ["b", "refresh_sql", "row_filter"]
