"""The grammar of secret references: valid and misspelt ones, and that values are never expanded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeconf.secret_stores import MalformedReferenceError, check_references, expand_references, holds_reference
from tests.corpus import each


@each(
    ("text", "expanded"),
    [
        pytest.param("plain", "plain", id="no reference"),
        pytest.param("", "", id="nothing"),
        pytest.param("${secrets:a}", "<secrets a>", id="no spaces"),
        pytest.param("${ secrets:a }", "<secrets a>", id="as documented"),
        pytest.param("${\t my-store_1 :  a-b_c.d\n}", "<my-store_1 a-b_c.d>", id="white space anywhere"),
        pytest.param("a${ x:b }c${ y:d }", "a<x b>c<y d>", id="text around two"),
        pytest.param("$${ x:b }$", "$<x b>$", id="dollars around"),
        pytest.param("${ x:1 }", "<x 1>", id="a digit first in the secret"),
        pytest.param("a$b{c}d", "a$b{c}d", id="a dollar and braces apart"),
        pytest.param("user:pass", "user:pass", id="a colon"),
        pytest.param("{}[]()<>%$:", "{}[]()<>%$:", id="punctuation"),
        pytest.param("${ x:a }:ro", "<x a>:ro", id="a suffix"),
    ],
)
def test_references_are_found_in_their_text(text: str, expanded: str) -> None:
    check_references(text)

    assert expand_references(text, lambda store, name: f"<{store} {name}>") == expanded
    assert holds_reference(text) is (expanded != text)


@each(
    "text",
    [
        pytest.param("${secrets:}", id="C09 no name"),
        pytest.param("${ secrets:x", id="C09 unclosed"),
        pytest.param("$ {secrets:x}", id="C09 a space after the dollar"),
        pytest.param("${}", id="nothing inside"),
        pytest.param("${ }", id="blank inside"),
        pytest.param("${x}", id="no store"),
        pytest.param("${:x}", id="an empty store"),
        pytest.param("${{ secrets:x }}", id="doubled braces"),
        pytest.param("${{ secrets.x }}", id="as in workflow files"),
        pytest.param("${ secrets x }", id="no colon"),
        pytest.param("${ secrets:x y }", id="a space in the name"),
        pytest.param("${ secrets:x:y }", id="two colons"),
        pytest.param("${ secrets:../x }", id="a path"),
        pytest.param("${ secrets:.x }", id="a hidden file"),
        pytest.param("${ secrets:-x }", id="a dash first"),
        pytest.param("${ secrets:x/y }", id="a slash"),
        pytest.param("${ secrets:é }", id="not ASCII"),
        pytest.param("${ 1a:x }", id="a digit first in the store"),
        pytest.param("${ a.b:x }", id="a dot in the store"),
        pytest.param("{ secrets:x }", id="no dollar"),
        pytest.param("{{ secrets:x }}", id="as in templates"),
        pytest.param("$(secrets:x)", id="round brackets"),
        pytest.param("$[env:x]", id="square brackets"),
        pytest.param("%{env:x}", id="a percent sign"),
        pytest.param("<env:x>", id="angle brackets"),
        pytest.param("%env:x%", id="percent signs"),
        pytest.param("$secrets:x", id="no braces"),
        pytest.param("secrets:x", id="only the store and the name"),
        pytest.param("Secrets: x", id="in another case"),
        pytest.param("secrets:x }", id="only the end"),
        pytest.param("${ secrets:x }${ secrets:y", id="a good one first"),
        pytest.param("${ secrets:x ${ secrets:y }", id="one inside another"),
        pytest.param("$\n{secrets:x}", id="a line break after the dollar"),
    ],
)
def test_c09_a_misspelt_reference_is_never_a_literal(text: str) -> None:
    with pytest.raises(MalformedReferenceError, match="malformed secret reference") as caught:
        check_references(text)

    assert text not in str(caught.value.args)


@given(st.text())
def test_any_text_without_a_reference_is_unchanged_or_refused(text: str) -> None:
    try:
        check_references(text)
    except MalformedReferenceError:
        return
    if not holds_reference(text):
        assert expand_references(text, lambda *_: "") == text
        assert "${" not in text


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]*", fullmatch=True)
LITERALS = st.text(st.characters(blacklist_characters="${}[]()<>%:", blacklist_categories=["Cs"]))


@given(st.lists(st.tuples(LITERALS, NAMES, NAMES, st.text(st.sampled_from(" \t\n"), max_size=3), st.text())), LITERALS)
def test_every_reference_is_replaced_by_its_value(pieces: list[tuple[str, str, str, str, str]], tail: str) -> None:
    text = "".join(
        f"{literal}${{{space}{store}{space}:{space}{name}{space}}}" for literal, store, name, space, _ in pieces
    )
    values = iter([value for *_, value in pieces])
    asked = []

    def resolve(store: str, name: str) -> str:
        asked.append((store, name))
        return next(values)

    check_references(text + tail)
    expanded = expand_references(text + tail, resolve)

    assert asked == [(store, name) for _, store, name, _, _ in pieces]
    assert expanded == "".join(literal + value for literal, _, _, _, value in pieces) + tail
