import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authkeys.keys import FINGERPRINT_DIGITS, KeySet
from authkeys.principal import Principal
from runtimeconf.secret import Secret
from tests.corpus import each
from tests.system.harness import K1, K2, REPOSITORY

SALT = bytes(range(32))

#: How the documents show a fingerprint: as a member of JSON, or in the second column of `apikey list`.
SHOWN = re.compile(r'"fingerprint":"([^"]*)"|^ +[a-z0-9-]+ +\| ([0-9a-f]+) +\|', re.MULTILINE)


def key_set(*texts: str, salt: bytes = SALT) -> KeySet:
    return KeySet([Secret(text) for text in texts], salt)


def test_the_documents_show_fingerprints_of_the_right_length() -> None:
    pages = (REPOSITORY / "docs").rglob("*.md")
    shown = ["".join(found.groups(default="")) for page in pages for found in SHOWN.finditer(page.read_text())]

    assert len(shown) >= 3
    assert {len(fingerprint) for fingerprint in shown} == {FINGERPRINT_DIGITS}
    security = (REPOSITORY / "docs" / "security.md").read_text()
    assert f"by {FINGERPRINT_DIGITS} hexadecimal digits" in security


@each(
    "presented",
    [
        pytest.param("", id="empty"),
        pytest.param(K1[:-1], id="prefix"),
        pytest.param(K1 + "E", id="longer"),
        pytest.param(K1[:-1] + "F", id="A05 last character changed"),
        pytest.param(K1.lower(), id="lower case"),
        pytest.param(f" {K1}", id="space before"),
        pytest.param(f"{K1} ", id="space after"),
        pytest.param("\xe9", id="A10 Latin-1"),
        pytest.param("kéy🔑", id="A10 beyond Latin-1"),
        pytest.param("\ud800", id="A10 lone surrogate"),
        pytest.param("\x00", id="NUL"),
        pytest.param("x" * 1_000_000, id="A12 a megabyte"),
    ],
)
def test_anything_else_is_not_found(presented: str) -> None:
    assert key_set(K1, K2).find(presented) is None


@given(st.lists(st.text(min_size=1), min_size=1), st.text(alphabet=st.characters(codec=None, exclude_categories=())))
def test_found_if_and_only_if_configured(texts: list[str], presented: str) -> None:
    keys = key_set(*texts)

    assert (keys.find(presented) is not None) is (presented in texts)
    assert all(keys.find(text) is not None for text in texts)


def test_the_empty_key_never_matches_and_a_repeated_key_counts_once() -> None:
    for keys, size in (((), 0), (("",), 0), ((K1, ""), 1), ((K1, K2, K1), 2)):
        assert key_set(*keys).find("") is None
        assert len(key_set(*keys)) == size


def test_fingerprints_are_short_distinct_and_depend_on_key_and_salt_only() -> None:
    first, second = key_set(K1, K2), key_set(K2, K1)

    assert [first.find(K1), first.find(K2)] == [Principal(fingerprint=text) for text in first.fingerprints()]
    assert set(first.fingerprints()) == set(second.fingerprints())
    assert len(set(first.fingerprints())) == 2
    assert all(len(text) == FINGERPRINT_DIGITS and int(text, 16) >= 0 for text in first.fingerprints())
    assert key_set(K1).fingerprints() != key_set(K1, salt=SALT[::-1]).fingerprints()


def test_nothing_of_a_key_is_kept_printed_or_handed_over() -> None:
    keys = key_set(K1)

    assert K1 not in f"{keys!r} {keys._keys!r} {keys.find(K1)!r} {keys.handover()}"
    # A fingerprint is not the start of a look-up digest.
    assert not any(digest.hex().startswith(keys.fingerprints()[0]) for digest in keys._keys)


def test_ten_thousand_keys_build_within_a_second_and_are_found_at_once() -> None:
    texts = [f"key-{number:032d}" for number in range(10_000)]

    began = time.process_time()
    keys = key_set(*texts)
    built = time.process_time() - began
    began = time.process_time()
    found = [keys.find(texts[-1]) for _ in range(1_000)]

    assert built < 1
    assert time.process_time() - began < 30
    assert all(found)
    assert len(set(keys.fingerprints())) == 10_000


@given(st.lists(st.text(min_size=1)), st.text())
def test_another_process_finds_the_same_keys(texts: list[str], presented: str) -> None:
    keys = key_set(*texts)
    fields = keys.handover()

    other = KeySet.from_handover(json.loads(json.dumps(fields)))

    assert other.fingerprints() == keys.fingerprints()
    assert other.find(presented) == keys.find(presented)
    assert all(other.find(text) == keys.find(text) is not None for text in texts)
