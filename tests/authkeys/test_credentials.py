import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authkeys.credentials import (
    Absent,
    Credential,
    Malformed,
    Presented,
    Reason,
    from_authorization,
    from_handshake,
    from_headers,
    from_metadata,
)

KEY = "k1-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE"
WRONG = KEY[:-1] + "F"
REPEATED = Malformed(Reason.REPEATED)
SCHEME = Malformed(Reason.SCHEME)


@pytest.mark.parametrize(
    ("x_api_key", "authorization", "expected"),
    [
        pytest.param(None, None, Absent(), id="A01 nothing"),
        pytest.param(KEY, None, Presented(KEY), id="A02 X-API-Key"),
        pytest.param("", None, Absent(), id="A07 empty"),
        pytest.param("   ", None, Absent(), id="A07 spaces"),
        pytest.param(" \t ", None, Absent(), id="A07 tabs"),
        pytest.param(f" \t{KEY} \t", None, Presented(KEY), id="A09 outer white space"),
        pytest.param("K 1", None, Presented("K 1"), id="A09 inner space stays"),
        pytest.param(f"\u00a0{KEY}", None, Presented(f"\u00a0{KEY}"), id="only space and tab are trimmed"),
        pytest.param(f"{KEY},{WRONG}", None, REPEATED, id="A13 right first"),
        pytest.param(f"{WRONG},{KEY}", None, REPEATED, id="A13 wrong first"),
        pytest.param(f"{KEY},", None, REPEATED, id="A13 empty second"),
        pytest.param(",", None, REPEATED, id="A13 both empty"),
        pytest.param(f"{KEY}, {KEY}", f"Bearer {KEY}", REPEATED, id="A13 with Bearer"),
        pytest.param(WRONG, f"Bearer {KEY}", Presented(WRONG), id="A16 X-API-Key decides alone, wrong"),
        pytest.param(KEY, f"Bearer {WRONG}", Presented(KEY), id="A16 X-API-Key decides alone, right"),
        pytest.param(KEY, "Basic x", Presented(KEY), id="A16 X-API-Key beside another scheme"),
        pytest.param("", f"Bearer {KEY}", Presented(KEY), id="A17 empty X-API-Key counts as absent"),
        pytest.param(" ", f"Bearer {KEY}", Presented(KEY), id="A17 blank X-API-Key counts as absent"),
    ],
)
def test_from_headers(x_api_key: str | None, authorization: str | None, expected: Credential) -> None:
    assert from_headers(x_api_key, authorization) == expected


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        pytest.param(None, Absent(), id="none"),
        pytest.param("", Absent(), id="empty"),
        pytest.param(" \t", Absent(), id="blank"),
        pytest.param(f"Bearer {KEY}", Presented(KEY), id="A04 Bearer"),
        pytest.param(f"bearer {KEY}", Presented(KEY), id="A04 bearer"),
        pytest.param(f"BEARER {KEY}", Presented(KEY), id="A04 BEARER"),
        pytest.param(f"bEaReR   {KEY}  ", Presented(KEY), id="A04 more spaces"),
        pytest.param("Bearer", Absent(), id="A18 no token"),
        pytest.param("Bearer  ", Absent(), id="A18 blank token"),
        pytest.param(f"Bearer {KEY} {KEY}", Presented(f"{KEY} {KEY}"), id="A18 two tokens are one wrong key"),
        pytest.param(f"Bearer {KEY},Bearer {WRONG}", REPEATED, id="A15 right first"),
        pytest.param(f"Bearer {WRONG}, Bearer {KEY}", REPEATED, id="A15 wrong first"),
        pytest.param(f",Bearer {KEY}", REPEATED, id="A15 empty first"),
        pytest.param(f"Bearer\t{KEY}", SCHEME, id="a tab is no separator"),
        pytest.param(KEY, SCHEME, id="A18 bare key"),
        pytest.param(f"Token {KEY}", SCHEME, id="A18 Token"),
        pytest.param(f"ApiKey {KEY}", SCHEME, id="A18 ApiKey"),
        pytest.param(f"Bearer:{KEY}", SCHEME, id="A18 colon"),
        pytest.param(f"Bearer{KEY}", SCHEME, id="A18 no space"),
        pytest.param("Basic " + base64.b64encode(f":{KEY}".encode()).decode(), SCHEME, id="A18 Basic password"),
        pytest.param("Basic " + base64.b64encode(f"{KEY}:".encode()).decode(), SCHEME, id="A18 Basic user"),
        pytest.param("Digest x", SCHEME, id="A18 Digest"),
        pytest.param("\uff22earer x", SCHEME, id="a look-alike"),
    ],
)
def test_from_authorization(authorization: str | None, expected: Credential) -> None:
    assert from_authorization(authorization) == expected
    assert from_headers(None, authorization) == expected


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", "Basic x", f"Bearer {KEY},", ""])
def test_version_1_10_looks_at_x_api_key_only(authorization: str) -> None:
    assert from_headers(None, authorization, bearer=False) == Absent()
    assert from_headers(KEY, authorization, bearer=False) == Presented(KEY)


def test_a_presented_text_does_not_print() -> None:
    assert KEY not in repr(from_headers(KEY, None))


values = st.one_of(st.none(), st.text(), st.sampled_from([KEY, f"Bearer {KEY}", f" {KEY} ", f"{KEY},{KEY}", "Bearer"]))


@given(values, values)
def test_any_header_value_gives_a_credential(x_api_key: str | None, authorization: str | None) -> None:
    credential = from_headers(x_api_key, authorization)

    match credential:
        case Presented(text):
            assert text
            assert "," not in text
            assert text == text.strip(" \t")
        case Absent() | Malformed():
            pass


CONFLICTING = Malformed(Reason.CONFLICTING)


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "token", "expected"),
    [
        pytest.param([], [], [], Absent(), id="F01 nothing"),
        pytest.param([f"Bearer {KEY}"], [], [], Presented(KEY), id="F02 bearer"),
        pytest.param([""], [""], [""], Absent(), id="F05 empty"),
        pytest.param([], [KEY], [], Absent(), id="F05 x-api-key alone"),
        pytest.param([f"Bearer {WRONG}"], [KEY], [], CONFLICTING, id="F06 x-api-key beside a wrong key"),
        pytest.param([f"Bearer {KEY}"], [WRONG], [], CONFLICTING, id="F06 a wrong x-api-key beside"),
        pytest.param([f"Bearer {KEY}"], [KEY, WRONG], [], CONFLICTING, id="F06 one of two"),
        pytest.param([f"Bearer {KEY}"], [f" {KEY}", ""], [], Presented(KEY), id="the same, and nothing"),
        pytest.param([f"Bearer {KEY}", f"Bearer {KEY}"], [], [], REPEATED, id="twice"),
        pytest.param([f"Bearer {KEY}", ""], [], [], REPEATED, id="twice, one empty"),
        pytest.param([], [], [KEY], Presented(KEY), id="a token"),
        pytest.param([], [], [KEY, KEY], REPEATED, id="two tokens"),
        pytest.param([], [WRONG], [KEY], CONFLICTING, id="a token beside x-api-key"),
        pytest.param([f"Bearer {KEY}"], [], [KEY], Presented(KEY), id="both the same"),
        pytest.param([f"Bearer {KEY}"], [], [WRONG], CONFLICTING, id="both, differing"),
        pytest.param(["Basic eDp5"], [], [KEY], SCHEME, id="a token beside another scheme"),
    ],
)
def test_from_metadata(authorization: list[str], x_api_key: list[str], token: list[str], expected: Credential) -> None:
    assert from_metadata(authorization, x_api_key, token) == expected


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        pytest.param([], Absent(), id="nothing"),
        pytest.param([""], Absent(), id="empty"),
        pytest.param([f"Bearer {KEY}"], Presented(KEY), id="bearer"),
        pytest.param(["Basic dTpw"], Presented("p"), id="basic"),
        pytest.param(["bAsIc dTpw"], Presented("p"), id="any case"),
        pytest.param(["Basic OnBwcA"], Presented("ppp"), id="no padding, no user"),
        pytest.param(["Basic OnBwcA=="], Presented("ppp"), id="padding"),
        pytest.param(["Basic dTpwOnA="], Presented("p:p"), id="a colon in the password"),
        pytest.param(["Basic dTo="], Absent(), id="no password"),
        pytest.param(["Basic dQ=="], Malformed(Reason.ENCODING), id="no colon"),
        pytest.param(["Basic"], Malformed(Reason.ENCODING), id="nothing encoded"),
        pytest.param(["Basic d T p w"], Malformed(Reason.ENCODING), id="spaces"),
        pytest.param(["Basic //79"], Malformed(Reason.ENCODING), id="not UTF-8"),
        pytest.param(["Basic é"], Malformed(Reason.ENCODING), id="not ASCII"),
        pytest.param(["Digest x"], SCHEME, id="another scheme"),
        pytest.param(["Basic dTpw", "Basic dTpw"], REPEATED, id="twice"),
    ],
)
def test_from_handshake(authorization: list[str], expected: Credential) -> None:
    assert from_handshake(authorization, []) == expected
    assert from_handshake(authorization, ["other"]) == (CONFLICTING if isinstance(expected, Presented) else expected)


@given(st.lists(st.text(), max_size=2), st.lists(st.text(), max_size=2), st.lists(st.text(), max_size=2))
def test_any_metadata_gives_a_credential(authorization: list[str], x_api_key: list[str], token: list[str]) -> None:
    for credential in (from_metadata(authorization, x_api_key, token), from_handshake(authorization, x_api_key)):
        assert isinstance(credential, Absent | Presented | Malformed)
