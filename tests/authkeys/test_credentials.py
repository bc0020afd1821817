import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authkeys.credentials import Credential, Reason, from_authorization, from_handshake, from_headers, from_metadata
from runtimeconf.secret import Secret
from tests.corpus import each
from tests.system.harness import K1, WRONG


@each(
    ("x_api_key", "authorization", "expected"),
    [
        pytest.param(None, None, Reason.MISSING, id="A01 nothing"),
        pytest.param(K1, None, Secret(K1), id="A02 X-API-Key"),
        pytest.param("", None, Reason.MISSING, id="A07 empty"),
        pytest.param("   ", None, Reason.MISSING, id="A07 spaces"),
        pytest.param(" \t ", None, Reason.MISSING, id="A07 tabs"),
        pytest.param(f" \t{K1} \t", None, Secret(K1), id="A09 outer white space"),
        pytest.param("K 1", None, Secret("K 1"), id="A09 inner space stays"),
        *(
            pytest.param(f"{space}{K1}", None, Secret(f"{space}{K1}"), id="only space and tab are trimmed")
            for space in ("\u00a0", "\x85", "\x0b")
        ),
        pytest.param(f"{K1},{WRONG}", None, Reason.REPEATED, id="A13 right first"),
        pytest.param(f"{WRONG},{K1}", None, Reason.REPEATED, id="A13 wrong first"),
        pytest.param(f"{K1},", None, Reason.REPEATED, id="A13 empty second"),
        pytest.param(",", None, Reason.REPEATED, id="A13 both empty"),
        pytest.param(f"{K1}, {K1}", f"Bearer {K1}", Reason.REPEATED, id="A13 with Bearer"),
        pytest.param(WRONG, f"Bearer {K1}", Secret(WRONG), id="A16 X-API-Key decides alone, wrong"),
        pytest.param(K1, f"Bearer {WRONG}", Secret(K1), id="A16 X-API-Key decides alone, right"),
        pytest.param(K1, "Basic x", Secret(K1), id="A16 X-API-Key beside another scheme"),
        pytest.param("", f"Bearer {K1}", Secret(K1), id="A17 empty X-API-Key counts as absent"),
        pytest.param(" ", f"Bearer {K1}", Secret(K1), id="A17 blank X-API-Key counts as absent"),
    ],
)
def test_from_headers(x_api_key: str | None, authorization: str | None, expected: Credential) -> None:
    assert from_headers(x_api_key, authorization) == expected


@each(
    ("authorization", "expected"),
    [
        pytest.param(None, Reason.MISSING, id="none"),
        pytest.param("", Reason.MISSING, id="empty"),
        pytest.param(" \t", Reason.MISSING, id="blank"),
        pytest.param(f"Bearer {K1}", Secret(K1), id="A04 Bearer"),
        pytest.param(f"bearer {K1}", Secret(K1), id="A04 bearer"),
        pytest.param(f"BEARER {K1}", Secret(K1), id="A04 BEARER"),
        pytest.param(f"bEaReR   {K1}  ", Secret(K1), id="A04 more spaces"),
        pytest.param("Bearer", Reason.MISSING, id="A18 no token"),
        pytest.param("Bearer  ", Reason.MISSING, id="A18 blank token"),
        pytest.param(f"Bearer {K1} {K1}", Secret(f"{K1} {K1}"), id="A18 two tokens are one wrong key"),
        pytest.param(f"Bearer {K1},Bearer {WRONG}", Reason.REPEATED, id="A15 right first"),
        pytest.param(f"Bearer {WRONG}, Bearer {K1}", Reason.REPEATED, id="A15 wrong first"),
        pytest.param(f",Bearer {K1}", Reason.REPEATED, id="A15 empty first"),
        pytest.param(f"Bearer\t{K1}", Reason.SCHEME, id="a tab is no separator"),
        pytest.param(K1, Reason.SCHEME, id="A18 bare key"),
        pytest.param(f"Token {K1}", Reason.SCHEME, id="A18 Token"),
        pytest.param(f"ApiKey {K1}", Reason.SCHEME, id="A18 ApiKey"),
        pytest.param(f"Bearer:{K1}", Reason.SCHEME, id="A18 colon"),
        pytest.param(f"Bearer{K1}", Reason.SCHEME, id="A18 no space"),
        pytest.param("Basic " + base64.b64encode(f":{K1}".encode()).decode(), Reason.SCHEME, id="A18 Basic password"),
        pytest.param("Basic " + base64.b64encode(f"{K1}:".encode()).decode(), Reason.SCHEME, id="A18 Basic user"),
        pytest.param("Digest x", Reason.SCHEME, id="A18 Digest"),
        pytest.param("\uff22earer x", Reason.SCHEME, id="a look-alike"),
    ],
)
def test_from_authorization(authorization: str | None, expected: Credential) -> None:
    assert from_authorization(authorization) == expected
    assert from_headers(None, authorization) == expected


@pytest.mark.parametrize("authorization", [f"Bearer {K1}", "Basic x", f"Bearer {K1},", ""])
def test_version_1_10_looks_at_x_api_key_only(authorization: str) -> None:
    assert from_headers(None, authorization, bearer=False) == Reason.MISSING
    assert from_headers(K1, authorization, bearer=False) == Secret(K1)


values = st.one_of(st.none(), st.text(), st.sampled_from([K1, f"Bearer {K1}", f" {K1} ", f"{K1},{K1}", "Bearer"]))


@given(values, values)
def test_any_header_value_gives_a_credential(x_api_key: str | None, authorization: str | None) -> None:
    credential = from_headers(x_api_key, authorization)

    if isinstance(credential, Secret):
        text = credential.reveal()
        assert text
        assert "," not in text
        assert text == text.strip(" \t")


@each(
    ("authorization", "x_api_key", "token", "expected"),
    [
        pytest.param([], [], [], Reason.MISSING, id="F01 nothing"),
        pytest.param([f"Bearer {K1}"], [], [], Secret(K1), id="F02 bearer"),
        pytest.param([""], [""], [""], Reason.MISSING, id="F05 empty"),
        pytest.param([], [K1], [], Reason.MISSING, id="F05 x-api-key alone"),
        pytest.param([f"Bearer {WRONG}"], [K1], [], Reason.CONFLICTING, id="F06 x-api-key beside a wrong key"),
        pytest.param([f"Bearer {K1}"], [WRONG], [], Reason.CONFLICTING, id="F06 a wrong x-api-key beside"),
        pytest.param([f"Bearer {K1}"], [K1, WRONG], [], Reason.CONFLICTING, id="F06 one of two"),
        pytest.param([f"Bearer {K1}"], [f" {K1}", ""], [], Secret(K1), id="the same, and nothing"),
        pytest.param([f"Bearer {K1}", f"Bearer {K1}"], [], [], Reason.REPEATED, id="twice"),
        pytest.param([f"Bearer {K1}", ""], [], [], Reason.REPEATED, id="twice, one empty"),
        pytest.param([], [], [K1], Secret(K1), id="a token"),
        pytest.param([], [], [K1, K1], Reason.REPEATED, id="two tokens"),
        pytest.param([], [WRONG], [K1], Reason.CONFLICTING, id="a token beside x-api-key"),
        pytest.param([f"Bearer {K1}"], [], [K1], Secret(K1), id="both the same"),
        pytest.param([f"Bearer {K1}"], [], [WRONG], Reason.CONFLICTING, id="both, differing"),
        pytest.param(["Basic eDp5"], [], [K1], Reason.SCHEME, id="a token beside another scheme"),
    ],
)
def test_from_metadata(authorization: list[str], x_api_key: list[str], token: list[str], expected: Credential) -> None:
    assert from_metadata(authorization, x_api_key, token) == expected


@each(
    ("authorization", "expected"),
    [
        pytest.param([], Reason.MISSING, id="nothing"),
        pytest.param([""], Reason.MISSING, id="empty"),
        pytest.param([f"Bearer {K1}"], Secret(K1), id="bearer"),
        pytest.param(["Basic dTpw"], Secret("p"), id="basic"),
        pytest.param(["bAsIc dTpw"], Secret("p"), id="any case"),
        pytest.param(["Basic OnBwcA"], Secret("ppp"), id="no padding, no user"),
        pytest.param(["Basic OnBwcA=="], Secret("ppp"), id="padding"),
        pytest.param(["Basic dTpwOnA="], Secret("p:p"), id="a colon in the password"),
        pytest.param(["Basic dTo="], Reason.MISSING, id="no password"),
        pytest.param(["Basic dQ=="], Reason.ENCODING, id="no colon"),
        pytest.param(["Basic"], Reason.ENCODING, id="nothing encoded"),
        pytest.param(["Basic !!!"], Reason.ENCODING, id="no Base64"),
        pytest.param(["Basic a"], Reason.ENCODING, id="half a byte"),
        pytest.param(["Basic YTpwcHA"], Secret("ppp"), id="one sign of padding less"),
        pytest.param(["Basic d T p w"], Reason.ENCODING, id="spaces"),
        pytest.param(["Basic //79"], Reason.ENCODING, id="not UTF-8"),
        pytest.param(["Basic é"], Reason.ENCODING, id="not ASCII"),
        pytest.param(["Digest x"], Reason.SCHEME, id="another scheme"),
        pytest.param(["Basic dTpw", "Basic dTpw"], Reason.REPEATED, id="twice"),
    ],
)
def test_from_handshake(authorization: list[str], expected: Credential) -> None:
    assert from_handshake(authorization, []) == expected
    assert from_handshake(authorization, ["other"]) == (
        Reason.CONFLICTING if isinstance(expected, Secret) else expected
    )


@given(st.lists(st.text(), max_size=2), st.lists(st.text(), max_size=2), st.lists(st.text(), max_size=2))
def test_any_metadata_gives_a_credential(authorization: list[str], x_api_key: list[str], token: list[str]) -> None:
    for credential in (from_metadata(authorization, x_api_key, token), from_handshake(authorization, x_api_key)):
        assert isinstance(credential, Secret | Reason)
